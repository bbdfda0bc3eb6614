"""Text that fits a terminal: lines of a width, colours, bars, tables, and how far a long job has come."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from modscope._categories import CATEGORIES
from modscope._text import clean, label, shorten_alike, shorten_end, shorten_line, shorten_middle, width_of

NARROWEST, WIDEST = 60, 400
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"
_EACH = re.compile(r", [0-9.]+ [KMGTP]?i?B each\)$")
_COLOURS: dict[str, str] = dict(zip(CATEGORIES, ("34", "36", "35", "32", "33", "31", "37")))


class Screen:
    """What a text must fit: a number of columns, with or without colour and line drawing."""

    def __init__(self, width: int = 80, colour: bool = False, drawing: bool = True) -> None:
        self.width = min(max(width, NARROWEST), WIDEST)
        self.colour = colour
        self.drawing = drawing
        self.dots = "…" if drawing else "..."
        self.edge = "│" if drawing else "|"
        self.mark = "▶" if drawing else "*"

    @classmethod
    def of(cls, stream: TextIO) -> Screen:
        colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        try:
            "█├─└│…".encode(stream.encoding or "ascii")
            drawing = True
        except (UnicodeError, LookupError):
            drawing = False
        return cls(shutil.get_terminal_size().columns, colour, drawing)

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def bold(self, text: str) -> str:
        return self.paint(text, _BOLD)

    def dim(self, text: str) -> str:
        return self.paint(text, _DIM)

    def of_category(self, text: str, category: str) -> str:
        return self.paint(text, _COLOURS.get(category, _DIM))

    def filled(self, text: str, category: str, bright: bool) -> str:
        """On the category's colour as the background, underlined to show where the next line begins; bright for what must be
        seen among others."""
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
        """The same for the names in a column, each in so many columns of the screen, so that different names stay different."""
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
        """Clean text, shortened at its end."""
        return shorten_end(text, columns, self.dots)

    def wrap(self, text: str) -> list[str]:
        """A sentence in as many lines as it needs."""
        lines: list[str] = []
        for word in clean(text).split():
            if lines and width_of(lines[-1]) + width_of(word) < self.width:
                lines[-1] += " " + word
            else:
                lines.append(self.fit(word, self.width))
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

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
        """Rows whose cells are aligned to the right, or to the left in the columns ``left``. The last column takes the
        room that is left; in a narrow terminal it is on a line of its own."""
        last = len(headers) - 1
        widths = [max(len(line[i]) for line in (headers, *rows)) for i in range(last)]
        used = sum(widths) + 2 * last
        own_line = self.width - used < 20
        names = self.fit_all(
            [line[last] for line in (headers, *rows)], [self.width - (4 if own_line else used)] * (len(rows) + 1)
        )
        lines = []
        for line, name in zip((headers, *rows), names):
            columns = [line[i].ljust(width) if i in left else line[i].rjust(width) for i, width in enumerate(widths)]
            text = "  ".join(columns)
            if own_line:
                lines += [text.rstrip(), f"    {name}".rstrip()]
            else:
                lines.append(f"{text}  {name}".rstrip())
        heads = 2 if own_line else 1
        return [*map(self.bold, lines[:heads]), *lines[heads:]]


class Progress:
    """Shows on stderr, if that is a terminal, which part of a long job is done."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = False
        self._on = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, part: float) -> None:
        if self._on and time.monotonic() - self._began > 0.3:
            self._shown = True
            print(f"\rreading: {100 * part:.0f}%", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self._shown:
            self._shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
