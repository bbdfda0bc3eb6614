"""The terminal: text that fits it (lines of a width, colours, bars, tables), and writing to it.

Every command lays out what it prints with a Screen, and writes it with ``write``, ``say`` or ``complain``."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TextIO

from modscope._read.categories import CATEGORIES
from modscope._read.text import clean, escape, label, shorten_alike, shorten_end, shorten_line, shorten_middle, width_of

NARROWEST, WIDEST = 60, 400
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"
_FIRST_COLUMN = re.compile(r" +\S+(?: \S+)* {2,}|  {3,}")
_EACH = re.compile(r", [0-9.]+ [KMGTP]?i?B each\)$")
_COLOURS: dict[str, str] = dict(zip(CATEGORIES, ("34", "36", "35", "32", "33", "31", "37")))


def _columns_of(stream: TextIO) -> int | None:
    """How many columns a line may have, by COLUMNS or the terminal; None where there is no terminal."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    if not stream.isatty():
        return None
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def _lines_of(stream: TextIO) -> int | None:
    """How many lines the terminal has; None where there is no terminal."""
    if stream.isatty():
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(stream.fileno()).lines or None
    return None


def _has_colour(stream: TextIO) -> bool:
    """As Python itself decides it: NO_COLOR forbids colours, FORCE_COLOR asks for them, or else a terminal has them."""
    if os.environ.get("NO_COLOR") or os.environ.get("FORCE_COLOR"):
        return not os.environ.get("NO_COLOR")
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Screen:
    """What a text must fit: a number of columns, with or without colour and line drawing. ``wraps``: whether sentences
    are broken into lines. In a file or a pipe each is one line, and names are shortened as for 80 columns."""

    def __init__(
        self, width: int = 80, colour: bool = False, drawing: bool = True, wraps: bool = True, height: int | None = None
    ) -> None:
        self.height = height
        """How many lines a terminal has; None where there is none."""
        self.width = min(max(width, NARROWEST), WIDEST)
        self.colour = colour
        self.drawing = drawing
        self.wraps = wraps
        self.dots = "…" if drawing else "..."
        self.edge = "│" if drawing else "|"
        self.mark = "▶" if drawing else "*"

    @classmethod
    def of(cls, stream: TextIO | None) -> Screen:
        if stream is None:
            return cls()
        try:
            "█├─└│…".encode(stream.encoding or "ascii")
            drawing = True
        except (UnicodeError, LookupError):
            drawing = False
        columns = _columns_of(stream)
        return cls(columns or 80, _has_colour(stream), drawing, columns is not None, _lines_of(stream))

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def bold(self, text: str) -> str:
        return self.paint(text, _BOLD)

    def dim(self, text: str) -> str:
        return self.paint(text, _DIM)

    def of_category(self, text: str, category: str) -> str:
        return self.paint(text, _COLOURS.get(category, _DIM))

    def filled(self, text: str, category: str, bright: bool) -> str:
        """On the category's colour as the background, underlined to show where the next line begins; bright for what
        must be seen among others."""
        return self.paint(text, f"{'1;' if bright else ''}4;7;{_COLOURS.get(category, _DIM)}")

    def of_change(self, text: str, value: int) -> str:
        return self.paint(text, _RED if value > 0 else _GREEN) if value else text

    def fit(self, text: str, columns: int) -> str:
        """Clean text, shortened in the middle. Where the label of Global or of modules that are alike has no
        room, its explanation is left out."""
        if text == label("Global") and width_of(text) > columns:
            text = "Global"
        if width_of(text) > columns:
            text = _EACH.sub(")", text)
        if width_of(text) > columns and (line := shorten_line(text, columns, self.dots)) is not None:
            return line
        return shorten_middle(text, columns, self.dots)

    def fit_all(self, texts: Sequence[str], columns: Sequence[int]) -> list[str]:
        """Shorten the names in a column, each to so many columns of the screen, so that different names stay
        different."""
        fitted = [self.fit(text, room) for text, room in zip(texts, columns)]
        alike = [
            i
            for i, text in enumerate(texts)
            if width_of(fitted[i]) < width_of(text) and "." in text and "/" not in text and " " not in text
        ]
        for i, name in zip(alike, shorten_alike([texts[i] for i in alike], [columns[i] for i in alike], self.dots)):
            fitted[i] = name
        return fitted

    def cut(self, text: str, columns: int) -> str:
        """Clean the text, and shorten it at its end."""
        return shorten_end(text, columns, self.dots)

    def wrap(self, text: str, columns: int | None = None, hanging: str = "", shorten: bool = True) -> list[str]:
        """A sentence in as many lines as it needs, of so many columns; None: of the whole width. ``hanging`` begins
        every line but the first. A word that is wider is shortened, if asked for. A command at the end, after ":  ", is
        kept whole, so that it can be copied."""
        text = clean(text)
        columns = self.width if columns is None else columns
        if not self.wraps or width_of(text) <= columns:
            return [text] if text else []
        sentence, colon, command = text.partition(":  ")
        lines: list[str] = []
        for word in (sentence + colon).split():
            is_long = width_of(word) > columns - width_of(hanging)
            if lines and (width_of(lines[-1]) + 1 + width_of(word) <= columns or is_long and not shorten):
                lines[-1] += " " + word
            else:
                before = hanging if lines else ""
                lines.append(before + (self.fit(word, columns - width_of(before)) if shorten else word))
        if colon and width_of(lines[-1]) + 2 + width_of(command) <= columns:
            lines[-1] += "  " + command
        elif colon:
            lines.append(hanging + command)
        return lines

    def fill(self, text: str) -> list[str]:
        """Paragraphs as lines. Lines that begin with a space are kept: commands, and rows of two columns, of which the
        second is wrapped."""
        lines: list[str] = []
        for is_kept, part in itertools.groupby(text.split("\n"), lambda line: line[:1] in ("", " ")):
            for line in part if is_kept else [" ".join(part)]:
                lead = _FIRST_COLUMN.match(line)
                first = lead[0] if lead else ""
                wrapped = self.wrap(line[len(first) :], self.width - len(first)) if lead or not is_kept else [line]
                lines += [(" " * len(first) if i else first) + each for i, each in enumerate(wrapped)]
        return lines

    def bar(self, share: float, width: int, parts: Mapping[str, int] | None = None) -> str:
        """A bar that fills this share of ``width``, padded to it; with colours, each part in its category's colour."""
        share = min(max(share, 0.0), 1.0)
        if not self.drawing:
            return ("#" * max(round(share * width), int(share > 0))).ljust(width)
        eighths = max(round(share * width * 8), int(share > 0))
        full = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        return self._coloured(full, parts) + " " * (width - len(full))

    def _coloured(self, bar: str, parts: Mapping[str, int] | None) -> str:
        whole = sum(parts.values()) if parts else 0
        if not (self.colour and parts and whole):
            return bar
        out, at, sum_so_far = "", 0, 0
        for category, value in parts.items():
            sum_so_far += value
            to = round(sum_so_far / whole * len(bar))
            out += self.of_category(bar[at:to], category)
            at = to
        return out

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        left: Container[int] = (),
        broken: Sequence[int] = (),
        indent: str = "",
    ) -> list[str]:
        """Rows whose cells are aligned to the right, or to the left in the columns ``left`` and in the last one. The
        last column holds names, and takes the room that is left; in a narrow terminal it is on a line of its own. The
        columns ``broken`` hold words: where there is no room, they are broken into several lines."""
        table, last = [headers, *rows], len(headers) - 1
        widths = [max(width_of(row[i]) for row in table) for i in range(last + 1)]
        before = width_of(indent) + sum(widths[:last]) + 2 * last  # the last column
        own_line = not broken and self.width - before < 20
        if broken:
            self._share_room(widths, broken, before + widths[last] - self.width)
            texts = [row[last] for row in table]
        else:
            room = self.width - (4 if own_line else before)
            texts = self.fit_all([row[last] for row in table], [room] * len(table))
        out: list[str] = []
        for row, text in zip(table, texts):
            cells = [*row[:last], text]
            parts = [self.wrap(cell, widths[i], "  ") if i in broken else [cell] for i, cell in enumerate(cells)]
            for line in itertools.zip_longest(*parts, fillvalue=""):
                padded = [_pad(cell, widths[i], i in left) for i, cell in enumerate(line[:last])]
                ends = [] if own_line else [line[last]]
                out.append((indent + "  ".join([*padded, *ends])).rstrip())
            out += [f"    {text}".rstrip()] if own_line else []
            if row is headers:
                out = [*map(self.bold, out)]
        return out

    def _share_room(self, widths: list[int], broken: Sequence[int], excess: int) -> None:
        """Make the columns ``broken``, the last one among them, narrower by ``excess``. The last one gets two fifths of
        what they have together, or more if the other needs less."""
        if excess <= 0 or not self.wraps:
            return
        *others, last = broken
        room = max(sum(widths[i] for i in broken) - excess, 10 * len(broken))
        for other in others:
            widths[last] = min(widths[last], max(room * 2 // 5, room - widths[other]))
            widths[other] = min(widths[other], room - widths[last])
        if not others:
            widths[last] = room


def _pad(text: str, width: int, is_left: bool) -> str:
    padding = " " * (width - width_of(text))
    return text + padding if is_left else padding + text


# ---- writing ----

_PREFIX = "[modscope] "
_PAINTED = r"\x1b\[(?:[012]|3[1-7]|(?:1;)?4;7;(?:2|3[1-7]))m"  # what Screen.paint makes
_CONTROLS = re.compile(rf"({_PAINTED})|[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def as_lines(sentences: Sequence[str], screen: Screen) -> list[str]:
    """What is said beside a script's own output: the first line begins with our name, the others are as far to the
    right."""
    pad = " " * len(_PREFIX)
    wrapped = [
        line for each in sentences for line in screen.wrap(" ".join(each.split("\n")), screen.width - len(_PREFIX))
    ]
    return [(pad if number else _PREFIX) + line for number, line in enumerate(wrapped)]


def write(stream: TextIO | None, text: str) -> None:
    """Write lines, and flush them. Of what could control a terminal, only the colours of a Screen are written: names
    come from captures, plans and scripts, which may be anybody's. OSError says in a sentence why they cannot be
    written; but if their reader has closed the pipe, nobody wants to know."""
    _put(stream, _CONTROLS.sub(lambda found: found[1] or escape(found[0]), text))


def _put(stream: TextIO | None, text: str) -> None:
    if stream is None or not text:
        return
    try:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        stream.write(text)
        stream.flush()
    except OSError as error:
        leave_unwritten(stream)
        if not isinstance(error, BrokenPipeError):
            raise OSError(f"The output cannot be written: {error.strerror}") from None


def leave_unwritten(stream: TextIO) -> None:
    """Give up what could not be written: Python flushes the stream once more when it exits, which must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(*sentences: str) -> None:
    """Say something on stderr beside a script's own output."""
    with contextlib.suppress(OSError):
        write(sys.stderr, "".join(f"{line}\n" for line in as_lines(sentences, Screen.of(sys.stderr))))


def complain(sentence: str) -> None:
    """Say on stderr why a command failed."""
    lines = Screen.of(sys.stderr).wrap(f"modscope: {sentence}", shorten=False)
    with contextlib.suppress(OSError):
        write(sys.stderr, "".join(f"{line}\n" for line in lines))


CLEAR_LINE = "\r\x1b[K"


class StatusLine:
    """A line on stderr that says how far a long job is, is written again and again, and vanishes at the end. It is
    shown in a terminal only."""

    def __init__(self) -> None:
        self.is_on = sys.stderr is not None and sys.stderr.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        if self.is_on:
            self._shown = True
            screen = Screen.of(sys.stderr)
            self._write(f"{CLEAR_LINE}{screen.cut(text, screen.width - 1)}")

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            self._write(CLEAR_LINE)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            _put(sys.stderr, text)


class LinesOfScript:
    """The lines that a script prints in a terminal in which a status line is shown, by this process or by one that
    waits for it. Each begins with CLEAR_LINE, in the same write. A stream that is no terminal is left alone."""

    def __init__(self) -> None:
        self.is_in_line = False
        """Whether the script has printed a part of a line, which a status line would overwrite."""
        self._writes: list[tuple[io.TextIOWrapper, Callable[[str], int]]] = []
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.isatty() and "write" not in vars(stream):
                write = self._cleared(stream.write)
                self._writes.append((stream, write))
                vars(stream)["write"] = write

    def _cleared(self, write: Callable[[str], int]) -> Callable[[str], int]:
        def write_cleared(text: str) -> int:
            if not isinstance(text, str) or not text or text.startswith(CLEAR_LINE):  # the last is a status line
                return write(text)
            write(text if self.is_in_line else CLEAR_LINE + text)
            self.is_in_line = not text.endswith("\n")
            return len(text)

        return write_cleared

    def end(self) -> None:
        """Let the streams write as before, but for what the script itself has put in its place."""
        for stream, write in self._writes:
            if vars(stream).get("write") is write:
                del vars(stream)["write"]
        self._writes = []


class ReadingProgress(StatusLine):
    """A line that says which part of a capture was read."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()

    def __call__(self, part: float) -> None:
        if self.is_on and time.monotonic() - self._began > 0.3:
            self.show(f"reading: {100 * part:.0f}%")
