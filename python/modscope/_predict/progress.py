"""Says on stderr how far predictions are, to somebody who waits for them in a terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from modscope._predict.in_script import STEPS
from modscope._predict.text import seconds
from modscope._read.text import counted
from modscope._show.terminal import LinesOfScript, StatusLine

_INTERVAL = 0.5  # seconds between two lines


class Progress:
    """One line that is written again, and vanishes at the end. Nothing is written to a pipe or a file."""

    def __init__(self, what: str, steps: int, parts: Sequence[str] = (), *, quiet: bool = False) -> None:
        """``what`` is predicted, for the line; ``steps``: of each prediction, 0 if that is not known; ``parts``: the
        folders of the predictions (PredictOptions.part), which say how many steps they have taken."""
        self._what, self._steps, self._parts = what, steps, parts
        self._line = StatusLine()
        self.is_on = self._line.is_on and not quiet
        self._began = self._last = time.monotonic()
        self._ended = 0
        self._lines: LinesOfScript | None = None

    def share_terminal(self) -> None:
        """The script that is predicted prints from this process, too."""
        self._lines = LinesOfScript()

    def tick(self, count: Callable[[], int] | None = None) -> None:
        """Called often. ``count`` tells how many steps there were, if no parts do."""
        is_in_line = self._lines is not None and self._lines.is_in_line
        if self.is_on and not is_in_line and time.monotonic() - self._last >= _INTERVAL:
            self.show(count() if count else sum(map(_steps_of, self._parts)))

    def show(self, taken: int) -> None:
        """Write the line now. ``taken``: how many steps there were so far."""
        if self.is_on:
            self._last = time.monotonic()
            self._line.show(f"[modscope] predicting {self._what}: {self._describe(taken)}")

    def ended(self) -> None:
        self._ended += 1

    def done(self) -> None:
        self._line.clear()
        if self._lines is not None:
            self._lines.end()

    def _describe(self, taken: int) -> str:
        count = max(len(self._parts), 1)
        steps = f"{taken} of {count * self._steps} steps" if self._steps else counted(taken, "step")
        ended = [f"{self._ended} of {count} ended"] if count > 1 else []
        return ", ".join([*([steps] if taken else []), *ended, seconds(time.monotonic() - self._began)])


def _steps_of(part: str) -> int:
    """How many steps a prediction has taken."""
    try:
        return os.path.getsize(os.path.join(part, STEPS))
    except OSError:
        return 0
