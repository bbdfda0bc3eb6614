"""The lines and operators that made blocks, in the reports of the commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from modscope._categories import TOTAL, Sums
from modscope._lines_read import Place, shown_file
from modscope._summary import Report
from modscope._text import clean

_Made = Iterable[tuple[Place | None, Sums]]


def place_report(place: Place | None) -> Report:
    """For JSON: the innermost line, its operator, and the frames around it. None where it is not known."""
    if place is None:
        return {"file": None, "line": None, "function": None, "operator": None, "node": None, "stack": []}
    frames = [{"file": each.file, "line": each.line or None, "function": each.function} for each in place.frames]
    operator = {"operator": place.operator, "node": place.node, "stack": frames}
    return {"file": place.file, "line": place.line, "function": place.function, **operator}


def short_line(block: Report) -> str:
    """ "train.py:41", or in backward without a line the node."""
    if block["file"] is None:
        return str(block["operator"] or "")
    return clean(f"{os.path.basename(block['file'])}:{block['line'] or '?'}")


def describe_line(line: Report) -> str:
    return clean(f"{shown_file(line['file'])}:{line['line']} in {line['function']}")


def line_label(place: Place | None) -> str:
    """ "train.py:41 in forward": what a line is called in a table."""
    if place is None or place.lost or not place.frames:
        return _words_without_line(place)
    return clean(f"{shown_file(place.frames[0].file)}:{place.line or '?'} in {place.function}")


def _words_without_line(place: Place | None) -> str:
    if place is not None and place.lost:
        return "(line lost: the table of lines was full)"
    return "(no Python line)" if place is not None else "(line not known)"


# ---- trees ----


def _plus(one: Sums, other: Sums) -> Sums:
    return {category: one.get(category, 0) + other.get(category, 0) for category in {**one, **other}}


def _level(made: _Made, key: Callable[[Place | None], str], below: Callable[[list[tuple[Place | None, Sums]]], list[Report]]) -> list[Report]:
    groups: dict[str, list[tuple[Place | None, Sums]]] = {}
    for place, sums in made:
        groups.setdefault(key(place), []).append((place, sums))
    rows = []
    for name, members in groups.items():
        subtree: Sums = {}
        for _, sums in members:
            subtree = _plus(subtree, sums)
        children = below(members)
        own = subtree if not children else dict.fromkeys(subtree, 0)
        rows.append({"name": name, "fqn": None, "own": own, "subtree": subtree, "children": children})
    return sorted(rows, key=lambda row: -int(row["subtree"][TOTAL]))


def _nothing(members: list[tuple[Place | None, Sums]]) -> list[Report]:
    return []


def _file_of(place: Place | None) -> str:
    return shown_file(place.frames[0].file) if place is not None and place.frames else _words_without_line(place)


def _source_of(place: Place | None) -> str:
    """The line's number and its text, or why there is none."""
    assert place is not None
    number = f"line {place.line or '?'}"
    if place.source_note:
        return f"{number} ({place.source_note})"
    return f"{number}: {place.source}" if place.source else number


def tree_of_lines(made: _Made, depth: int | None) -> list[Report]:
    """Files, in them functions, in them lines."""

    def functions(members: list[tuple[Place | None, Sums]]) -> list[Report]:
        has_line = members[0][0] is not None and bool(members[0][0].frames)
        return _level(members, lambda place: f"in {place.function}" if place else "", lines) if has_line and depth != 1 else []

    def lines(members: list[tuple[Place | None, Sums]]) -> list[Report]:
        return _level(members, _source_of, _nothing) if depth != 2 else []

    return _level(made, _file_of, functions)


def tree_of_operators(made: _Made, depth: int | None) -> list[Report]:
    """Operators: the node in backward, the function called in forward; in them the lines."""

    def operator_of(place: Place | None) -> str:
        return (place.operator if place is not None else None) or "(operator not known)"

    def lines(members: list[tuple[Place | None, Sums]]) -> list[Report]:
        return _level(members, line_label, _nothing) if depth != 1 else []

    return _level(made, operator_of, lines)
