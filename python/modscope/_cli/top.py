"""``modscope top``: follow captures while they are being written."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import next_command
from modscope._cli.options import number
from modscope._read.live import VIEWS, LiveCapture, captures_of_process
from modscope._read.load import CaptureError
from modscope._show import full_screen
from modscope._show.live import SORTS, View, frame, plain_line
from modscope._show.terminal import Screen, write


class Followed(NamedTuple):
    """What is said afterwards."""

    lines: list[str]
    capture: str


def add_options(parser: Parser) -> None:
    file = "a capture that is being written, those of several ranks, or the number of a process that writes some"
    parser.add_argument("file", nargs="+", metavar="FILE|PID", help=file)
    parser.add_argument(
        "--by", choices=VIEWS, default=VIEWS[0], metavar="WHAT", help="what the rows are: module, category or line"
    )
    parser.add_argument(
        "--sort", choices=SORTS, default=SORTS[0], metavar="WHAT", help="the largest first by now, peak or growth"
    )
    every = "seconds between two readings (default: 1)"
    parser.add_argument("--every", type=number(1, 3600), default=1, metavar="S", help=every)


def report(arguments: Namespace, load: Load) -> Followed:
    names, view = arguments.file, View(arguments.by, arguments.sort)
    if len(names) > 1 or not names[0].isdecimal():
        return follow(lambda: names, view, arguments.every)
    pid = int(names[0])
    if not captures_of_process(pid):
        raise CaptureError(f"Process {pid} writes no capture. Start the script with:  modscope run --top script.py")
    return follow(lambda: captures_of_process(pid), view, arguments.every)


def text(followed: Followed, screen: Screen, arguments: Namespace) -> list[str]:
    return [
        *(line for each in followed.lines for line in screen.wrap(each)),
        *next_command("See it", "summary", followed.capture),
    ]


# ---- following ----


def follow(
    find: Callable[[], list[str]], view: View, every: float, is_over: Callable[[], bool] = lambda: False
) -> Followed:
    """Show the captures that ``find`` names until all runs have ended, or ``q``. A process of the job may begin one
    later. ``is_over``: whether there will be no more events."""
    job = _Job(find, is_over)
    if full_screen.is_possible():
        with full_screen.FullScreen() as screen:
            _show(screen, job, view, every)
    else:
        _print_lines(job, every)
    captures = job.shown
    return Followed([plain_line(capture) for capture in captures], captures[0].path)


class _Job:
    """The captures that are followed."""

    def __init__(self, find: Callable[[], list[str]], is_over: Callable[[], bool]) -> None:
        self._find, self._is_over = find, is_over
        self._opened: dict[str, LiveCapture] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Read what is new. Returns whether there is more to read."""
        for name in self._find():
            if name not in self._opened:
                self._opened[name] = LiveCapture(name)
        more = [capture.refresh() for capture in self._opened.values()]
        return any(more)

    @property
    def has_ended(self) -> bool:
        return self._is_over() or all(capture.ended() is not None for capture in self._opened.values())

    @property
    def shown(self) -> list[LiveCapture]:
        """In the order of their ranks, without those that held nothing if others do: a launcher's."""
        captures = sorted(self._opened.values(), key=lambda capture: (capture.rank, capture.path))
        return [capture for capture in captures if capture.devices()] or captures


def _show(screen: full_screen.FullScreen, job: _Job, view: View, every: float) -> None:
    due = 0.0
    while True:
        ended, more = job.has_ended, job.refresh()  # in this order: all of an ended one is read
        size = Screen.of(sys.stdout)
        screen.draw(frame(job.shown, view, size, size.height or 24))
        if ended and not more:
            return
        due = time.monotonic() + (0 if more else every)
        while True:
            keys = screen.wait(due - time.monotonic())
            if "q" in keys or "Q" in keys:
                return
            changed = _press(view, keys)
            if changed != view or time.monotonic() >= due:
                view = changed
                break


def _press(view: View, keys: str) -> View:
    for key in keys:
        if key in "mcl":
            view = view._replace(by={each[0]: each for each in VIEWS}[key])
        elif key in "npg":
            view = view._replace(sort={each[0]: each for each in SORTS}[key])
        elif key == "d":
            view = view._replace(device=view.device + 1)
        elif key in "rR":
            view = view._replace(rank=view.rank + (1 if key == "r" else -1))
    return view


def _print_lines(job: _Job, every: float) -> None:
    """A line for each capture that has something new."""
    said: dict[str, int] = {}
    while True:
        ended, more = job.has_ended, job.refresh()
        if ended and not more:
            return
        for capture in job.shown:
            if not more and capture.status.events != said.get(capture.path):
                said[capture.path] = capture.status.events
                write(sys.stdout, plain_line(capture) + "\n")
        time.sleep(0 if more else every)


COMMAND = Command(
    ("top run.msc", "top 12345", "top run.rank*.msc --by line --sort growth"),
    add_options,
    report,
    text,
    figures="",
    about="Press q to leave it; it ends when the run has ended. Where there is no terminal it prints lines.",
)
