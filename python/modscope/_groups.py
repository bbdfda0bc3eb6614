"""Modules whose names differ only in numbers, as one group: GPT.h.0.mlp and GPT.h.1.mlp are GPT.h.*.mlp."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Group(NamedTuple, Generic[T]):
    name: str
    """The name of the only member, or the common name with * for each number that differs."""
    members: list[T]


def is_number(part: str) -> bool:
    """Whether a part of a module's name is a number, as in nn.Sequential and nn.ModuleList."""
    return part.isascii() and part.isdecimal() and len(part) < 10


def _pattern(parts: Sequence[str], also_last: bool) -> tuple[str, ...]:
    starred = len(parts) if also_last else len(parts) - 1
    return tuple("*" if i < starred and is_number(part) else part for i, part in enumerate(parts))


def _common_name(names: list[list[str]]) -> str:
    return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*names))


def group_modules(
    items: Iterable[T],
    fqn_of: Callable[[T], str],
    key_of: Callable[[T], Hashable] = lambda item: None,
    also_last: bool = True,
) -> list[Group[T]]:
    """Group the items of equal keys whose module names differ only in numbers, in the order of the first members.

    Without ``also_last`` the last part of the name must not differ: the members of an ``nn.Sequential`` are numbered,
    and need not be alike.
    """
    found: dict[Hashable, list[tuple[list[str], T]]] = {}
    for item in items:
        parts = fqn_of(item).split(".")
        found.setdefault((_pattern(parts, also_last), key_of(item)), []).append((parts, item))
    return [
        Group(_common_name([parts for parts, _ in members]), [item for _, item in members]) for members in found.values()
    ]


def describe_numbers(numbers: Iterable[int]) -> str:
    """ "0-3, 7" """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
