"""``modscope diff --by line``: which line of one capture is which line of another, and what each made in both.

Files are matched first, then functions by their qualified names, then the lines of a function: by their text where the
source of both runs is there, else by the columns of the calls that were recorded in them. docs/reading.md has the
rules."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import NamedTuple, TypeVar

from modscope._read.categories import parts_of, sums_of
from modscope._read.lines import Frame, Place, Places, shown_file
from modscope._read.load import Capture, Snapshot
from modscope._read.summary import Report
from modscope._read.text import clean
from modscope._show.lines import words_without_line
from modscope._show.modules import Matches

_Key = TypeVar("_Key", bound=Hashable)
_SIMILAR = 0.6  # the ratio of difflib from which on a line that replaces another is the same line, changed
_MOST_COMPARED = 40_000  # pairs of changed lines whose texts are compared
_LONG = 2000  # lines; in longer functions difflib ignores the most frequent ones


class Side:
    """The lines of one capture. ``used`` are the numbers of the stacks that made blocks in it: its table also has those
    of earlier recordings of the same process."""

    def __init__(self, places: Places, used: Iterable[int], program: str) -> None:
        self._places = places
        self._used = used
        self._program = program
        self._sources: dict[str, dict[str, list[int]]] = {}

    @cached_property
    def script(self) -> str | None:
        """The program's file. What the capture has is what the user typed: it may be relative, or the name of a
        module."""
        module = self._program.replace(".", os.sep)
        typed = os.path.normpath(self._program)
        while typed.startswith(os.path.join(os.pardir, "")):
            typed = typed[len(os.pardir) + 1 :]
        names = [typed, f"{module}.py", os.path.join(module, "__main__.py")]
        ends = tuple(os.path.join(os.sep, name) for name in names)
        found = [file for file in self._recorded if file == self._program or file.endswith(ends)]
        return found[0] if len(found) == 1 else self._program if os.path.isabs(self._program) else None

    def relative(self, file: str) -> str | None:
        """The file's name from the script's folder; None if that is not known, or for a notebook's cell."""
        return os.path.relpath(file, os.path.dirname(self.script)) if self.script and os.path.isabs(file) else None

    @cached_property
    def _recorded(self) -> dict[str, tuple[Place, dict[str, set[Frame]]]]:
        """File to a place in it, and function to the frames that were recorded in it."""
        found: dict[str, tuple[Place, dict[str, set[Frame]]]] = {}
        for place in filter(None, map(self._places.find, self._used)):
            for at in (place, place.attributed):
                frame = at.innermost
                if frame and frame.line:
                    found.setdefault(frame.file, (at, {}))[1].setdefault(frame.function, set()).add(frame)
        return found

    @property
    def files(self) -> Sequence[str]:
        return list(self._recorded)

    def functions(self, file: str) -> Mapping[str, set[Frame]]:
        return self._recorded[file][1]

    def text(self, file: str) -> list[str] | None:
        """The lines of a file as they were in the run; None if it is gone or has changed since."""
        place = self._recorded[file][0]
        return None if place.innermost is None or place.note_of(place.innermost) else self._places.source_lines(file)

    def numbers_of_lines(self, file: str, function: str) -> list[int]:
        """The lines of a function, and of all others with its qualified name, by the source; empty: not known."""
        if file not in self._sources:
            self._sources[file] = _lines_by_function("".join(self.text(file) or ()), file)
        return self._sources[file].get(function, [])


Line = tuple[str, int]
"""The file of a line, and its number."""


class LineMatch:
    """The lines of capture A and of capture B that are the same line."""

    def __init__(self, a: Side, b: Side) -> None:
        self._a, self._b = a, b
        self._to_b = _match_files(a, b)
        self._to_a = {other: file for file, other in self._to_b.items()}
        self._lines: dict[tuple[str, str], tuple[dict[int, int], dict[int, int]]] = {}

    def in_b(self, file: str, function: str, line: int) -> Line | None:
        """What a line of A is in B; None if B does not have it."""
        other = self._to_b.get(file)
        return None if other is None else _numbered(other, self._pairs(file, other, function)[0], line)

    def in_a(self, file: str, function: str, line: int) -> Line | None:
        """What a line of B is in A; None if A does not have it."""
        other = self._to_a.get(file)
        return None if other is None else _numbered(other, self._pairs(other, file, function)[1], line)

    def shown(self, is_b: bool, file: str) -> str:
        """What a file is called: if it is in another folder in the other capture, its name from the script's folder."""
        own, side, other = (self._to_a, self._b, self._a) if is_b else (self._to_b, self._a, self._b)
        same, relative = own.get(file, file), side.relative(file)
        is_relative = same != file and relative is not None and relative == other.relative(same)
        return relative if is_relative and relative is not None else shown_file(file)

    def _pairs(self, file: str, other: str, function: str) -> tuple[dict[int, int], dict[int, int]]:
        """The numbers of a function's lines in A to those in B, and the other way round."""
        if (file, function) not in self._lines:
            found = self._match_lines(file, other, function)
            self._lines[file, function] = found, {number: line for line, number in found.items()}
        return self._lines[file, function]

    def _match_lines(self, file: str, other: str, function: str) -> dict[int, int]:
        texts = self._a.text(file), self._b.text(other)
        numbers = self._a.numbers_of_lines(file, function), self._b.numbers_of_lines(other, function)
        if texts[0] and texts[1] and numbers[0] and numbers[1]:
            return _match_texts(numbers[0], numbers[1], texts[0], texts[1])
        frames = self._a.functions(file).get(function, set()), self._b.functions(other).get(function, set())
        return _match_frames(*frames)


def _numbered(file: str, numbers: Mapping[int, int], line: int) -> Line | None:
    found = numbers.get(line) if line else 0
    return None if found is None else (file, found)


# ---- files ----


def _match_files(a: Side, b: Side) -> dict[str, str]:
    """A's files to B's: by their names relative to the scripts' folders, then by their whole names, then the two
    scripts, then by the last part of their names. A name that several files share matches none."""
    found: dict[str, str] = {}
    rules: list[Callable[[Side, str], str | None]] = [
        Side.relative,
        lambda side, file: file,
        lambda side, file: "the script" if file == side.script else None,
        lambda side, file: os.path.basename(file),
    ]
    for rule in rules:
        taken = set(found.values())
        of_a = _unique((rule(a, file), file) for file in a.files if file not in found)
        of_b = _unique((rule(b, file), file) for file in b.files if file not in taken)
        found |= {of_a[name]: of_b[name] for name in of_a if name in of_b}
    return found


def _unique(pairs: Iterable[tuple[_Key | None, str]]) -> dict[_Key, str]:
    files: dict[_Key, list[str]] = {}
    for key, file in pairs:
        if key is not None:
            files.setdefault(key, []).append(file)
    return {key: same[0] for key, same in files.items() if len(same) == 1}


# ---- functions ----


def _lines_by_function(source: str, file: str) -> dict[str, list[int]]:
    """Qualified name to the numbers of the lines of the functions that have it. The program is compiled, not run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return {}
    found: dict[str, set[int]] = {"<module>": set(range(1, source.count("\n") + 2))}
    for code in _codes_in(module):
        lines = [line for each in (code, *_codes_in(code)) for _, _, line in each.co_lines() if line]
        found.setdefault(code.co_qualname, set()).update(range(code.co_firstlineno, max(lines, default=0) + 1))
    return {name: sorted(lines) for name, lines in found.items()}


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


# ---- lines ----


def _match_texts(of_a: list[int], of_b: list[int], text_a: list[str], text_b: list[str]) -> dict[int, int]:
    # Blank lines are all alike, and would match where nothing else does.
    a, b = (
        [(number, text[number - 1].strip()) for number in numbers if text[number - 1 : number]]
        for numbers, text in ((of_a, text_a), (of_b, text_b))
    )
    a, b = ([(number, line) for number, line in side if line] for side in (a, b))
    found: dict[int, int] = {}
    for is_equal, i, j, k, n in _stretches([line for _, line in a], [line for _, line in b]):
        if is_equal:
            found |= {a[i + each][0]: b[k + each][0] for each in range(j - i)}
        else:
            found |= _match_similar(a[i:j], b[k:n])
    return found


def _stretches(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[tuple[bool, int, int, int, int]]:
    """The stretches of a and b that are equal, and those of which one was replaced by the other."""
    for word, i, j, k, n in difflib.SequenceMatcher(None, a, b, max(len(a), len(b)) > _LONG).get_opcodes():
        if word in ("equal", "replace"):
            yield word == "equal", i, j, k, n


def _match_similar(a: list[tuple[int, str]], b: list[tuple[int, str]]) -> dict[int, int]:
    """Pairs of lines whose texts are similar, in the order of the lines."""
    found, first = dict[int, int](), 0
    if len(a) * len(b) > _MOST_COMPARED:
        return found
    for number, text in a:
        ratios = [
            (difflib.SequenceMatcher(None, text, other).ratio(), -i) for i, (_, other) in enumerate(b[first:], first)
        ]
        best, i = max(ratios, default=(0.0, 0))
        if best >= _SIMILAR:
            found[number] = b[-i][0]
            first = 1 - i
    return found


def _match_frames(of_a: set[Frame], of_b: set[Frame]) -> dict[int, int]:
    """Match lines by the columns of what was recorded in them, and by their order. Where columns are not known, match
    them by their distance from the first line of the function that was recorded."""
    a, b = _spans(of_a), _spans(of_b)
    found: dict[int, int] = {}
    for is_equal, i, j, k, n in _stretches([span for _, span in a], [span for _, span in b]):
        pairs = zip(_lines(a[i:j]), _lines(b[k:n])) if is_equal else _match_replaced(a[i:j], b[k:n])
        for line, other in pairs:
            if line not in found and other not in found.values():
                found[line] = other
    return found


_Span = tuple[int, int, int]  # first column, last column, how many lines more than one; or the distance, 0, -1


def _match_replaced(a: list[tuple[int, _Span]], b: list[tuple[int, _Span]]) -> list[tuple[int, int]]:
    """Pairs of lines of which one replaced the other: those with calls as long as before, in other columns; or as many
    lines as there were before, in their order."""
    lengths = [[(end - begin, more) for _, (begin, end, more) in side] for side in (a, b)]
    found = []
    for is_equal, i, j, k, n in _stretches(*lengths):
        if is_equal:
            found += [(line, other) for (line, (_, _, more)), (other, _) in zip(a[i:j], b[k:n]) if more >= 0]
    of_a, of_b = ([*dict.fromkeys(_lines(side))] for side in (a, b))
    return found + (list(zip(of_a, of_b)) if len(of_a) == len(of_b) else [])


def _lines(spans: list[tuple[int, _Span]]) -> list[int]:
    return [line for line, _ in spans]


def _spans(frames: set[Frame]) -> list[tuple[int, _Span]]:
    """The line of each frame, and what tells it from others, wherever the function begins."""
    first = min((frame.line for frame in frames), default=0)
    return sorted(
        {
            (
                each.line,
                (each.column, each.end_column, each.end_line - each.line)
                if each.end_line
                else (each.line - first, 0, -1),
            )
            for each in frames
        }
    )


# ---- what each line made ----


class _ComparedLine(NamedTuple):
    """What made bytes: a line of both captures or of one of them, or what has no line."""

    a: Line | None = None
    b: Line | None = None
    function: str | None = None
    node: str | None = None
    """The backward node, if the line is that of the forward."""
    words: str = ""
    """Why there is no line; "" if there is one."""


def compare_lines(
    captures: tuple[Capture, Capture], snapshots: tuple[Snapshot, Snapshot], devices: tuple[str, str], matches: Matches
) -> list[Report]:
    """A row for each line and category, of what is owned by the modules that match."""
    side_a, side_b = (Side(capture.places, capture.pack()[1], capture.info.get("program", "")) for capture in captures)
    match = LineMatch(side_a, side_b)
    made: dict[tuple[_ComparedLine, str], list[int]] = {}
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


def _line_of(place: Place | None, match: LineMatch, at: int) -> _ComparedLine:
    frame = place.attributed.innermost if place is not None and not place.lost else None
    if place is None or frame is None:
        return _ComparedLine(words=words_without_line(place))
    node = place.node if place.forward else None
    own, asked = (frame.file, frame.line), (frame.file, frame.function, frame.line)
    a, b = (own, match.in_b(*asked)) if at == 0 else (match.in_a(*asked), own)
    return _ComparedLine(a, b, frame.function, node)


# ---- names ----


def _report(line: _ComparedLine, match: LineMatch) -> Report:
    keys: Report = {"function": line.function, "node": line.node}
    for side, at in (("a", line.a), ("b", line.b)):
        keys |= {f"{side}_file": at[0] if at else None, f"{side}_line": at[1] or None if at else None}
    return {"module": clean(_label(line, match)), **keys}


def _label(line: _ComparedLine, match: LineMatch) -> str:
    """Name a line: "train.py:14 (was 12) in main" has the number in B, and in parentheses that in A if it differs."""
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
