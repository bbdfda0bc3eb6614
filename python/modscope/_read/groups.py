"""Modules whose names differ only in numbers, as one group: GPT.h.0.mlp and GPT.h.1.mlp are GPT.h.*.mlp."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from modscope._read.text import natural_key

T = TypeVar("T")

_NUMBER = re.compile(r"(?<![^.])[0-9]{1,9}(?![^.])")  # a part of a name, as is_number has it


class Group(NamedTuple, Generic[T]):
    name: str
    """The name of the only member, or the common name with * for each number that differs."""
    members: list[T]


def is_number(part: str) -> bool:
    """Whether a part of a module's name is a number, as in nn.Sequential and nn.ModuleList."""
    return part.isascii() and part.isdecimal() and len(part) < 10


def last_named_part(fqn: str) -> str:
    """The end of a module's name, from the last part that is no number: h.0 of GPT.h.0, mlp of GPT.h.*.mlp."""
    parts = fqn.split(".")
    at = len(parts) - 1
    while at and (parts[at] == "*" or is_number(parts[at])):
        at -= 1
    return ".".join(parts[at:])


def merge_numbers(fqn: str) -> str:
    """The name that a module shares with those whose names differ only in numbers: GPT.h.*.mlp."""
    return _NUMBER.sub("*", fqn)


def _common_name(names: Iterable[str]) -> str:
    first, *others = names
    if not others:
        return first
    common = first.split(".")
    for name in others:
        common = [part if part == other else "*" for part, other in zip(common, name.split("."))]
    return ".".join(common)


def group_modules(
    items: Iterable[T], fqn_of: Callable[[T], str], key_of: Callable[[T], Hashable] = lambda item: None
) -> list[Group[T]]:
    """Group the items of equal keys whose module names differ only in numbers, in the order of the first members."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault((merge_numbers(fqn_of(item)), key_of(item)), []).append(item)
    return [Group(_common_name(map(fqn_of, members)), members) for members in found.values()]


def lies_in(name: str, other: str) -> bool:
    """Whether a module, or a group of modules, is below another one."""
    return name.startswith(other + ".")


def describe_numbers(numbers: Iterable[int]) -> str:
    """Join numbers to a text with ranges: "0-3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def describe_some(group: str, numbers: Iterable[int]) -> str:
    """ "GPT.h.{0-3,7}.mlp": some members of a group GPT.h.*.mlp, by the numbers that stand for its only *."""
    found = list(numbers)
    text = describe_numbers(found).replace(" ", "")
    return group.replace("*", f"{{{text}}}" if len(found) > 1 else text)


def _last_number(fqn: str) -> tuple[str, int | None]:
    """The name with * for its last number, and that number."""
    parts = fqn.split(".")
    for i in range(len(parts) - 1, -1, -1):
        if is_number(parts[i]):
            return ".".join([*parts[:i], "*", *parts[i + 1 :]]), int(parts[i])
    return fqn, None


def describe_groups(names: Iterable[str], among: Iterable[str] = ()) -> list[str]:
    """ "GPT2.h.{0-5}.mlp (6 of 12)": one line for the modules whose names differ in their last number only. ``among``:
    all modules, which are counted after "of"."""
    totals = Counter(_last_number(name)[0] for name in among)
    groups: dict[str, list[tuple[str, int | None]]] = {}
    for name in sorted(names, key=natural_key):
        group, number = _last_number(name)
        groups.setdefault(group, []).append((name, number))
    lines = []
    for group, members in groups.items():
        numbers, total = [number for _, number in members if number is not None], totals[group]
        if len(members) == 1:
            lines.append(members[0][0])
            continue
        text = group if len(members) == total else describe_some(group, numbers)
        lines.append(f"{text} ({len(members)} of {total})" if total else text)
    return lines
