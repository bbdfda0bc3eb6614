"""Says on stderr how far predictions of several ranks are, to somebody who waits for them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from modscope._predict_script import STEPS
from modscope._predict_text import seconds
from modscope._text import counted

_INTERVAL = 0.5  # seconds between two lines in a terminal


class Progress:
    """In a terminal one line that is written again, otherwise a line for each prediction that has ended."""

    def __init__(self, parts: Sequence[str], what: str, steps: int, quiet: bool) -> None:
        """``parts``: the folders of the predictions (_predict_script.Asked.part). ``what`` is predicted, for the line; ``steps``: of each."""
        self._parts, self._what, self._steps = parts, what, steps
        self._on = not quiet and sys.stderr is not None
        self._in_terminal = self._on and sys.stderr.isatty()
        self._began = self._last = time.monotonic()
        self._shown = False
        self._ended = 0

    def tick(self) -> None:
        """Called often."""
        if self._in_terminal and time.monotonic() - self._last >= _INTERVAL:
            self._last, self._shown = time.monotonic(), True
            print(f"\r\x1b[K{self._line()} ", end="", file=sys.stderr, flush=True)

    def ended(self, name: str, part: str, status: int) -> None:
        """A prediction has ended."""
        self._ended += 1
        if self._on and not self._in_terminal:
            how = f"ended with status {status}" if status else "ended"
            after = f" after {counted(taken, 'step')}" if (taken := _steps_of(part)) else ""
            print(f"[modscope] {name} {how}{after}, {self._time()}", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self._shown:
            self._shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _time(self) -> str:
        return seconds(time.monotonic() - self._began)

    def _line(self) -> str:
        taken = sum(map(_steps_of, self._parts))
        steps = f"{taken} of {len(self._parts) * self._steps} steps, " if taken else ""
        return f"[modscope] predicting {self._what}: {steps}{self._ended} of {len(self._parts)} ended, {self._time()}"


def _steps_of(part: str) -> int:
    """How many optimizer steps it has taken."""
    try:
        return os.path.getsize(os.path.join(part, STEPS))
    except OSError:
        return 0
