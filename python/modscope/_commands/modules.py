"""Modules as a user names them with ``--module``: as the commands print them, with ``*`` or ``0-3`` for several numbers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

from modscope._groups import merge_numbers
from modscope._load import CaptureError

_MOST_PARTS = 64  # of a name; deeper modules are not among the names that are suggested


Matches = Callable[[str], bool]


def every_module(fqn: str) -> bool:
    """What matches if nothing was asked for."""
    return True


def matcher(pattern: str) -> Matches:
    """Whether a module is one of those that the pattern names, or is inside one: ``GPT.blocks.*.mlp``, ``GPT.blocks.0-3, 7.mlp``."""
    if pattern.partition(" (")[0] == "Global":
        pattern = "Global"
    parts = list(map(_matcher_of_part, pattern.split(".")))

    def matches(fqn: str) -> bool:
        names = fqn.split(".")
        return len(names) >= len(parts) and all(matches(name) for matches, name in zip(parts, names))

    return matches


def _matcher_of_part(part: str) -> Matches:
    if re.fullmatch(r"[0-9]+(-[0-9]+)?(, ?[0-9]+(-[0-9]+)?)*", part) and not part.isdecimal():
        runs = [run.strip().partition("-") for run in part.split(",")]
        bounds = [(int(low), int(high or low)) for low, _, high in runs]
        return lambda name: (
            name.isdecimal()
            and name.isascii()
            and len(name) < 10
            and any(low <= int(name) <= high for low, high in bounds)
        )
    if "*" in part:
        expression = re.compile(".*".join(map(re.escape, part.split("*"))))
        return lambda name: expression.fullmatch(name) is not None
    return lambda name: name == part


def check(pattern: str, names: Iterable[str], device: str) -> Matches:
    """``matcher``. CaptureError, with names that are similar, if no module matches."""
    matches, names = matcher(pattern), set(names)
    if any(map(matches, names)):
        return matches
    known = {
        ".".join(parts[:count])
        for name in names
        for parts in [name.split(".")[:_MOST_PARTS]]
        for count in range(1, len(parts) + 1)
    }
    if "*" in pattern:
        known = set(map(merge_numbers, known))
    similar = difflib.get_close_matches(pattern, sorted(known), 3, 0.5)
    hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
    raise CaptureError(f"No module {pattern!r} holds anything on {device} at this moment.{hint}")
