"""The lines that made the blocks of a page, and their source text."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from typing import TypedDict, TypeVar

from modscope._read.lines import LOST, Place, Places

__all__ = ["LEFT_OUT", "lines_of_page"]

LEFT_OUT = "source left out"
_AROUND = 3  # lines of source text before and after each line
_MOST_TEXT = 1 << 20  # characters of source text in all
_MOST_COLUMNS = 300  # Longer lines of source text are cut.

_Key = TypeVar("_Key", bound=Hashable)


class PlaceRow(TypedDict):
    """The place of one stack. Texts are numbers in the lists of ``PageLines``; -1 stands for none."""

    frames: list[list[int]]
    """The file, the function and the line of each frame, innermost first."""
    operator: int
    node: int


class SourceText(TypedDict):
    """The used lines of a file and those around them, by number, or why they are missing."""

    note: str | None
    lines: dict[int, str]


class PageLines(TypedDict):
    """What the page says about the lines and operators that made its blocks."""

    folder: str
    files: list[str]
    functions: list[str]
    operators: list[str]
    rows: dict[int, PlaceRow]
    sources: dict[int, SourceText]


class _Numbers(dict[_Key, int]):
    """Each key once, in the order of first use."""

    def number(self, key: _Key) -> int:
        return self.setdefault(key, len(self))


def lines_of_page(places: Places, used: Sequence[int], with_source: bool = True) -> PageLines | None:
    """What the page says about these stacks; None if nothing is known about any of them.

    A row is the place of one stack: its frames, innermost first, as numbers of a file and a function and a line; the
    number of its operator and of the node's class, or -1. Texts are as they are in the capture: what shows them cleans
    them. The source text has all used lines and a few around each; there is none if ``with_source`` is false."""
    files, functions, operators = _Numbers[str](), _Numbers[str](), _Numbers[str]()
    rows, notes = dict[int, PlaceRow](), dict[int, str | None]()
    wanted: dict[int, set[int]] = {}
    for number in used:
        place = places.find(number)
        if place is None or number == LOST:
            continue
        frames = [
            [files.number(frame.file), functions.number(frame.function), frame.line] for frame in place.attributed.stack
        ]
        for file, _, line in frames:
            wanted.setdefault(file, set()).add(line)
        operator, node = (operators.number(name) if name else -1 for name in (place.operator, place.node))
        rows[number] = {"frames": frames, "operator": operator, "node": node}
        _note_files(place, files, notes)
    if not with_source:
        notes = dict.fromkeys(notes, LEFT_OUT)
    if not rows and LOST not in used:
        return None
    return {
        "folder": _folder(files),
        "files": list(files),
        "functions": list(functions),
        "operators": list(operators),
        "rows": rows,
        "sources": _sources(list(files), wanted, notes, places),
    }


def _folder(files: Iterable[str]) -> str:
    """The present folder if files are below it: the page shows their names without it."""
    here = os.path.join(os.getcwd(), "")
    return here if any(file.startswith(here) for file in files) else ""


def _note_files(place: Place, files: _Numbers[str], notes: dict[int, str | None]) -> None:
    for frame in place.attributed.stack:
        number = files[frame.file]
        if number not in notes:
            notes[number] = place.note_of(frame)


def _sources(
    files: list[str], wanted: dict[int, set[int]], notes: dict[int, str | None], places: Places
) -> dict[int, SourceText]:
    room = _MOST_TEXT
    sources: dict[int, SourceText] = {}
    for file, lines in wanted.items():
        texts = {} if notes[file] else _text_around(places.source_lines(files[file]), lines)
        length = sum(map(len, texts.values()))
        if length > room:
            sources[file] = {"note": LEFT_OUT, "lines": {}}
            continue
        room -= length
        sources[file] = {"note": notes[file], "lines": texts}
    return sources


def _text_around(text: list[str], lines: Iterable[int]) -> dict[int, str]:
    around = {
        each for line in lines for each in range(max(line - _AROUND, 1), min(line + _AROUND, len(text)) + 1) if line
    }
    whole = {line: text[line - 1].rstrip() for line in sorted(around)}
    return {
        line: text if len(text) <= _MOST_COLUMNS else text[: _MOST_COLUMNS - 1] + "…" for line, text in whole.items()
    }
