"""Text that fits a terminal: sizes, times, names made harmless, bars, tables, progress."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

NARROWEST, WIDEST = 60, 400
_LONGEST = 4096  # characters of a name that are looked at
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"
_COLOURS = {
    "Parameter": "34",
    "Buffer": "36",
    "Gradient": "35",
    "Activation": "32",
    "Temp": "33",
    "Optstate": "31",
    "Other": "37",
}


# ---- figures ----


def size(value: int) -> str:
    for unit, power in (("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(value) >= 1 << power:
            return f"{value / (1 << power):.2f} {unit}"
    return f"{value} B"


def change(value: int) -> str:
    return ("+" if value > 0 else "") + size(value)


def percent(part: int | float, whole: int | float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms"
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes = int(seconds / 60)
    return f"{minutes} min {seconds % 60:.0f} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# ---- names ----


def clean(text: str) -> str:
    """The same text, with an escape for every character that could move the cursor or turn the line around."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _harmless(char) else _escape(char) for char in text)


def _harmless(char: str) -> bool:
    import unicodedata

    return (
        char.isprintable()
        and not unicodedata.category(char).startswith("M")
        and unicodedata.bidirectional(char) not in ("R", "AL", "AN")
    )


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cells(text: str) -> int:
    """How many columns clean text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _ends(text: str, most: int) -> str:
    """As much of the beginning as fits."""
    taken = used = 0
    for char in text:
        used += cells(char)
        if used > most:
            break
        taken += 1
    return text[:taken]


# ---- the screen ----


class Screen:
    """What a text is made for: so many columns, with or without colour and line drawing."""

    def __init__(self, width: int = 80, colour: bool = False, drawing: bool = True) -> None:
        self.width = min(max(width, NARROWEST), WIDEST)
        self.colour = colour
        self.drawing = drawing
        self.dots = "…" if drawing else "..."

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

    def of_change(self, text: str, value: int) -> str:
        return self.paint(text, _RED if value > 0 else _GREEN) if value else text

    def fit(self, text: str, most: int) -> str:
        """Clean text, shortened in the middle so that it takes no more columns. The end tells more of a module."""
        text = clean(text)
        if cells(text) <= most:
            return text
        room = max(most - cells(self.dots), 2)
        begin = _ends(text, room // 3)
        end = _ends(text[::-1], room - cells(begin))[::-1]
        return begin + self.dots + end

    def cut(self, text: str, most: int) -> str:
        """Clean text, shortened at its end."""
        text = clean(text)
        return text if cells(text) <= most else _ends(text, most - cells(self.dots)) + self.dots

    def wrap(self, text: str) -> list[str]:
        """A sentence in as many lines as it needs."""
        lines: list[str] = []
        for word in clean(text).split():
            if lines and cells(lines[-1]) + cells(word) < self.width:
                lines[-1] += " " + word
            else:
                lines.append(self.fit(word, self.width))
        return lines

    def bar(self, share: float, width: int, parts: Mapping[str, int] | None = None) -> str:
        """A bar padded to ``width``, of this share of it; on a colour screen each part in its category's colour."""
        share = min(max(share, 0.0), 1.0)
        if not self.drawing:
            return ("#" * max(round(share * width), int(share > 0))).ljust(width)
        eighths = max(round(share * width * 8), int(share > 0))
        full = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        return self._parted(full, parts) + " " * (width - len(full))

    def _parted(self, bar: str, parts: Mapping[str, int] | None) -> str:
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
        """Columns to the right, those in ``left`` to the left. The last one has what room is left, or in a
        narrow terminal a line of its own."""
        last = len(headers) - 1
        widths = [max(len(line[i]) for line in (headers, *rows)) for i in range(last)]
        used = sum(widths) + 2 * last
        own_line = self.width - used < 20
        lines = []
        for line in (headers, *rows):
            columns = [
                line[i].ljust(width) if i in left else line[i].rjust(width) for i, width in enumerate(widths)
            ]
            text = "  ".join(columns)
            if own_line:
                lines += [text.rstrip(), "    " + self.fit(line[last], self.width - 4)]
            else:
                lines.append(f"{text}  {self.fit(line[last], self.width - used)}")
        heads = 2 if own_line else 1
        return [*map(self.bold, lines[:heads]), *lines[heads:]]


class Progress:
    """The part done of long work, on stderr where that is a terminal."""

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
