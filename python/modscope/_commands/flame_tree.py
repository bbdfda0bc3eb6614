"""The tree of ``modscope flame``: the modules that own bytes, below each the stack that made them, outermost frame first,
and at its end the operator. Every byte is in exactly one leaf, or in a module whose lines are not known.

A report of the tree has ``name``, ``what`` ("category", "module", "frame" or "operator"), ``fqn`` of a module, ``file``, ``line``
and ``function`` of a frame, and ``own``, the bytes that none of its ``children`` has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from operator import add
from typing import NamedTuple

from modscope._branch import Branch, grow
from modscope._categories import CATEGORIES, TOTAL, Raw, sums_of
from modscope._commands.places import line_label
from modscope._groups import merge_numbers
from modscope._lines_read import Frame, Place
from modscope._summary import Report
from modscope._text import clean

Made = list[tuple[str, Place | None, Raw]]
"""Modules, the places where what they own was made, and its bytes by category."""

ORDERS = ("module", "layers", "line", "operator", "category")


class _Level(NamedTuple):
    """What makes two siblings the same."""

    what: str
    name: str
    frame: Frame | None = None


class _Tree:
    """A node to which bytes are still added."""

    __slots__ = ("own", "children")

    def __init__(self) -> None:
        self.own: Raw = (0,) * len(CATEGORIES)
        self.children: dict[_Level, _Tree] = {}

    def add(self, levels: Iterable[_Level], raw: Raw) -> None:
        node = self
        for level in levels:
            below = node.children.get(level)
            if below is None:
                below = node.children[level] = _Tree()
            node = below
        node.own = tuple(map(add, node.own, raw))

    def reports(self) -> list[Report]:
        return _sorted([_report_of(level, child.own, child.reports()) for level, child in self.children.items()])


def _sorted(reports: list[Report]) -> list[Report]:
    return sorted(reports, key=lambda report: (-report["subtree"][TOTAL], report["name"]))


def _report_of(level: _Level, own: Raw, children: list[Report]) -> Report:
    own_sums, subtree = sums_of(own), sums_of(own)
    for child in children:
        for category, value in child["subtree"].items():
            subtree[category] += value
    frame = level.frame
    return {
        "name": level.name,
        "what": level.what,
        "fqn": level.name if level.what == "module" else None,
        "file": frame.file if frame else None,
        "line": frame.line or None if frame else None,
        "function": frame.function if frame else None,
        "own": own_sums,
        "subtree": subtree,
        "children": children,
    }


# ---- the levels of a place ----


def _frame_level(frame: Frame) -> _Level:
    """Frames in different columns of a line are the same."""
    short = Frame(frame.file, frame.function, frame.line)
    return _Level("frame", clean(f"{frame.function} ({os.path.basename(frame.file)}:{frame.line or '?'})"), short)


def _operator_levels(place: Place | None) -> list[_Level]:
    operator = place.operator if place is not None else None
    return [_Level("operator", clean(operator))] if operator else []


def _stack_levels(place: Place | None) -> list[_Level]:
    """Outermost first. Empty: nothing is known."""
    if place is not None and place.lost:
        return [_Level("frame", line_label(place))]
    frames = reversed(place.attributed.frames) if place is not None else ()
    return [*map(_frame_level, frames), *_operator_levels(place)]


class _Levels:
    """The levels of each place, which are made once."""

    def __init__(self, make: Callable[[Place | None], list[_Level]]) -> None:
        self._make = make
        self._made: dict[int, list[_Level]] = {}

    def of(self, place: Place | None) -> list[_Level]:
        levels = self._made.get(id(place))
        if levels is None:
            levels = self._made[id(place)] = self._make(place)
        return levels


# ---- orders ----


def _by_module(made: Made) -> list[Report]:
    levels = _Levels(_stack_levels)
    stacks: dict[str, _Tree] = {}
    for fqn, place, raw in made:
        stacks.setdefault(fqn, _Tree()).add(levels.of(place), raw)
    return [_module_report(branch, stacks) for branch in grow((fqn, raw) for fqn, _, raw in made)]


def _by_layers(made: Made) -> list[Report]:
    """Modules whose names differ only in numbers are one, with * for the numbers."""
    return _by_module([(merge_numbers(fqn), place, raw) for fqn, place, raw in made])


def _module_report(branch: Branch, stacks: dict[str, _Tree]) -> Report:
    children = [_module_report(child, stacks) for child in branch.children]
    held = stacks.get(branch.fqn)
    children = _sorted(children + held.reports()) if held else children
    level = _Level("module", branch.name)
    return {**_report_of(level, held.own if held else _Tree().own, children), "fqn": branch.fqn}


def _by_line(made: Made) -> list[Report]:
    """The frames, then the operator, then the module that owns the bytes."""
    levels = _Levels(lambda place: _stack_levels(place) or [_Level("frame", line_label(place))])
    tree = _Tree()
    for fqn, place, raw in made:
        tree.add([*levels.of(place), _Level("module", fqn)], raw)
    return tree.reports()


def _by_operator(made: Made) -> list[Report]:
    """The operator, then the innermost line that called it, then the module that owns the bytes."""

    def levels_of(place: Place | None) -> list[_Level]:
        operator = _operator_levels(place) or [_Level("operator", "(operator not known)")]
        frames = place.attributed.frames if place is not None else ()
        return operator + [_frame_level(frame) for frame in frames[:1]]

    levels = _Levels(levels_of)
    tree = _Tree()
    for fqn, place, raw in made:
        tree.add([*levels.of(place), _Level("module", fqn)], raw)
    return tree.reports()


def _by_category(made: Made) -> list[Report]:
    found = []
    for i, category in enumerate(CATEGORIES):
        part = [
            (fqn, place, tuple(value if at == i else 0 for at, value in enumerate(raw)))
            for fqn, place, raw in made
            if raw[i]
        ]
        if part:
            found.append(_report_of(_Level("category", str(category)), _Tree().own, _by_module(part)))
    return _sorted(found)


_MAKERS = dict(zip(ORDERS, (_by_module, _by_layers, _by_line, _by_operator, _by_category), strict=True))


def tree_of_stacks(made: Made, by: str, module: str | None) -> list[Report]:
    """The roots, largest first. ``made`` is all below ``module``, if that is given: by module, what it names are the roots."""
    roots = _MAKERS[by](made)
    if module is None:
        return roots
    depth = module.count(".") + 1
    if by == "category":
        return [{**root, "children": _descend(root["children"], depth)} for root in roots]
    return _descend(roots, depth) if by in ("module", "layers") else roots


def _descend(roots: list[Report], depth: int) -> list[Report]:
    """The modules whose names have so many parts, with their whole names. Those around them have no bytes of their own."""
    found = []
    for root in roots:
        is_above = root["what"] == "module" and root["fqn"].count(".") + 1 < depth
        found += _descend(root["children"], depth) if is_above else [{**root, "name": root["fqn"] or root["name"]}]
    return _sorted(found)


def mark_matches(reports: list[Report], text: str) -> tuple[int, int]:
    """Set ``matches`` in each report whose name, or a module's whole name, contains the text in upper or lower case. How
    many there are, and their bytes together: what is inside a match counts once."""
    count = size = 0
    for report in reports:
        names = report["name"], report["fqn"] or "", report["file"] or ""
        report["matches"] = any(text.casefold() in name.casefold() for name in names)
        count_below, size_below = mark_matches(report["children"], text)
        count += count_below + report["matches"]
        size += report["subtree"][TOTAL] if report["matches"] else size_below
    return count, size


def cut_below(reports: list[Report], depth: int) -> None:
    """Leave out what is deeper. What it holds becomes the own bytes of what is around it."""
    for report in reports:
        if depth == 1:
            report["own"], report["children"] = dict(report["subtree"]), []
        else:
            cut_below(report["children"], depth - 1)
