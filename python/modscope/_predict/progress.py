"""Says on stderr how far predictions of several ranks are, to somebody who waits for them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from modscope._predict.in_script import STEPS
from modscope._predict.text import seconds
from modscope._read.text import counted
from modscope._show.terminal import StatusLine, say

_INTERVAL = 0.5  # seconds between two lines in a terminal


class Progress:
    """In a terminal one line that is written again, otherwise a line for each prediction that has ended."""

    def __init__(self, parts: Sequence[str], what: str, steps: int, quiet: bool) -> None:
        """``parts``: the folders of the predictions (PredictOptions.part). ``what`` is predicted, for the line;
        ``steps``: of each."""
        self._parts, self._what, self._steps = parts, what, steps
        self._on, self._line = not quiet, StatusLine()
        self._began = self._last = time.monotonic()
        self._ended = 0

    def tick(self) -> None:
        """Called often."""
        if self._on and time.monotonic() - self._last >= _INTERVAL:
            self._last = time.monotonic()
            self._line.show(self._describe())

    def ended(self, name: str, part: str, status: int) -> None:
        """A prediction has ended."""
        self._ended += 1
        if self._on and not self._line.is_on:
            how = f"ended with status {status}" if status else "ended"
            after = f" after {counted(taken, 'step')}" if (taken := _steps_of(part)) else ""
            say(f"{name} {how}{after}, {self._time()}")

    def done(self) -> None:
        self._line.clear()

    def _time(self) -> str:
        return seconds(time.monotonic() - self._began)

    def _describe(self) -> str:
        taken = sum(map(_steps_of, self._parts))
        steps = f"{taken} of {len(self._parts) * self._steps} steps, " if taken else ""
        return f"[modscope] predicting {self._what}: {steps}{self._ended} of {len(self._parts)} ended, {self._time()}"


def _steps_of(part: str) -> int:
    """How many optimizer steps it has taken."""
    try:
        return os.path.getsize(os.path.join(part, STEPS))
    except OSError:
        return 0
