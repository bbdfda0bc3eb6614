"""``modscope diff --by line``: what each line of two versions of a program made."""

from __future__ import annotations

from typing import NamedTuple

from modscope._categories import parts_of, sums_of
from modscope._commands.line_match import Line, LineMatch, Side
from modscope._commands.modules import Matches
from modscope._commands.places import words_without_line
from modscope._lines_read import Place
from modscope._load import Capture, Snapshot
from modscope._summary import Report
from modscope._text import clean


class _Line(NamedTuple):
    """What made bytes: a line of both captures or of one of them, or what has no line."""

    a: Line | None = None
    b: Line | None = None
    function: str | None = None
    node: str | None = None
    """In backward, if the line is that of the forward."""
    words: str = ""
    """Without a line, why there is none."""


def compare_lines(
    captures: tuple[Capture, Capture], snapshots: tuple[Snapshot, Snapshot], devices: tuple[str, str], matches: Matches
) -> list[Report]:
    """A row for each line and category, of what is owned by the modules that match."""
    side_a, side_b = (Side(capture.places, capture.pack()[1], capture.info.get("program", "")) for capture in captures)
    match = LineMatch(side_a, side_b)
    made: dict[tuple[_Line, str], list[int]] = {}
    for at, (snapshot, device) in enumerate(zip(snapshots, devices)):
        for fqn, place, raw in snapshot.by_module_and_place(device):
            if not matches(fqn):
                continue
            line = _line_of(place, match, at)
            for word, value in parts_of(sums_of(raw)).items():
                made.setdefault((line, word), [0, 0])[at] += value
    return [
        {**_report(line, match), "category": str(word), "a": a, "b": b, "change": b - a}
        for (line, word), (a, b) in made.items()
    ]


def _line_of(place: Place | None, match: LineMatch, at: int) -> _Line:
    if place is None or place.lost or not place.attributed.frames:
        return _Line(words=words_without_line(place))
    frame = place.attributed.frames[0]
    node = place.node if place.forward else None
    own, asked = (frame.file, frame.line), (frame.file, frame.function, frame.line)
    a, b = (own, match.in_b(*asked)) if at == 0 else (match.in_a(*asked), own)
    return _Line(a, b, frame.function, node)


# ---- names ----


def _report(line: _Line, match: LineMatch) -> Report:
    keys: Report = {"function": line.function, "node": line.node}
    for side, at in (("a", line.a), ("b", line.b)):
        keys |= {f"{side}_file": at[0] if at else None, f"{side}_line": at[1] or None if at else None}
    return {"module": clean(_label(line, match)), **keys}


def _label(line: _Line, match: LineMatch) -> str:
    """ "train.py:14 (was 12) in main": the number in B, and in parentheses that in A if it differs."""
    if line.a is None and line.b is None:
        return line.words
    node = f", {line.node}" if line.node else ""
    if line.b is None or line.a is None:
        only, capture = (line.a, "A") if line.b is None else (line.b, "B")
        assert only is not None
        return f"{match.shown(capture == 'B', only[0])}:{only[1] or '?'} (only in {capture}) in {line.function}{node}"
    now, before = match.shown(True, line.b[0]), match.shown(False, line.a[0])
    was = (
        ""
        if (now, line.b[1]) == (before, line.a[1])
        else f" (was {line.a[1]})"
        if now == before
        else f" (was {before}:{line.a[1]})"
    )
    return f"{now}:{line.b[1] or '?'}{was} in {line.function}{node}"
