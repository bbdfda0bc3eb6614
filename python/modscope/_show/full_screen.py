"""A terminal that is taken over for a while: its alternate screen, single keys, and that it is always given back."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?25h\x1b[?1049l"


def is_possible() -> bool:
    """Whether stdout is a terminal that can be taken over."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class FullScreen:
    """As a context, in the main thread. SIGTERM and SIGHUP end it with SystemExit, Ctrl-C with KeyboardInterrupt; while
    Ctrl-Z stops the program the terminal is as before."""

    def __enter__(self) -> FullScreen:
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._before: list[Any] | None = None
        self._drawn: list[str] = []
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._fd_before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, _end),
                (signal.SIGHUP, _end),
                (signal.SIGWINCH, self._resized),
                (signal.SIGTSTP, self._stop),
            )
        }
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._give_back()
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake)
        os.close(self._woken)

    def _take(self) -> None:
        if self._keys >= 0:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._drawn = []
        self._write(_ENTER)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        if self._before is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)
            self._before = None

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self._drawn = []

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, of which those that changed are written."""
        out = "\x1b[2J" if not self._drawn else ""
        for row, line in enumerate(lines):
            if row >= len(self._drawn) or self._drawn[row] != line:
                out += f"\x1b[{row + 1};1H{line}\x1b[K"
        out += f"\x1b[{len(lines) + 1};1H\x1b[J" if len(lines) < len(self._drawn) else ""
        self._drawn = list(lines)
        if out:
            self._write(out)

    def wait(self, seconds: float) -> str:
        """Wait for keys, for a signal, or for the time to pass. Returns the keys; q where the terminal is gone."""
        until = time.monotonic() + seconds
        files = [self._wake, *[self._keys] * (self._keys >= 0)]
        ready, _, _ = select.select(files, [], [], max(until - time.monotonic(), 0))
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if self._keys not in ready:
            return ""
        try:
            return os.read(self._keys, 64).decode("ascii", "replace") or "q"
        except OSError:
            return "q"


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
