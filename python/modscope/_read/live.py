"""A capture that is still being written: what it says now, and whether its program still runs. ``modscope top`` shows
it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from modscope import _capture
from modscope._read.categories import CATEGORIES
from modscope._read.groups import merge_numbers
from modscope._read.lines import Frame, describe_model_frame, shown_file
from modscope._read.load import CaptureError
from modscope._read.text import clean, label

VIEWS = ("module", "category", "line")
_PART = 200_000  # events that are read before keys are looked at again
_SLACK = 2.0  # seconds by which a process may seem younger than its capture
_ENDS = {"finished": "it has ended", "interrupted": "it was interrupted", "terminated": "it was ended by SIGTERM"}


class LiveRow(NamedTuple):
    name: str
    now: int
    peak: int
    """What it held when the device held most."""
    growth: int
    """Bytes per step."""


class LiveStatus(NamedTuple):
    time: int
    step: int
    events: int
    oom_count: int
    step_time: int
    """The mean of the latest steps, in microseconds; 0: it is not known yet."""
    phase: str
    running: str


class LiveDevice(NamedTuple):
    number: int
    name: str
    now: int
    peak: int
    reserved: int
    peak_reserved: int
    peak_step: int
    growth_steps: int
    """Of how many steps growth is the mean; 0: it is not known yet."""


class LiveCapture:
    """Each ``refresh`` reads only what was appended since. CaptureError if the file is no capture."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise CaptureError(f"{path} cannot be read: {error.strerror}") from None
        self._reader: _capture.Reader | None = None
        self._live: _capture.Live | None = None
        self._was_alive = False
        self.is_cut = False
        self._latest = (0, time.monotonic())  # how many events there were, and since when
        self.refresh()

    def close(self) -> None:
        self._live = self._reader = None
        os.close(self._fd)

    def refresh(self) -> bool:
        """Read what is new. Returns whether there is more to read."""
        if self._live is None and not self._begin():
            return False
        assert self._live is not None
        try:
            more = self._live.update(_PART)
        except _capture.FormatError:
            self.is_cut = True
            return False
        if self.status.events != self._latest[0]:
            self._latest = (self.status.events, time.monotonic())
        return more

    def _begin(self) -> bool:
        """Open it, once its first bytes have been written."""
        if os.fstat(self._fd).st_size < 16:
            return False
        try:
            self._reader = _capture.Reader(self._fd)
        except _capture.FormatError as error:
            raise CaptureError(f"{self.path}: {error}") from None
        self._live = _capture.Live(self._reader)
        return True

    # ---- what it says ----

    @property
    def info(self) -> dict[str, str]:
        return self._reader.info if self._reader is not None else {}

    @property
    def rank(self) -> int:
        text = self.info.get("rank", "")
        return int(text) if text.isdecimal() and len(text) < 8 else 0

    @property
    def status(self) -> LiveStatus:
        return LiveStatus(*self._live.status() if self._live else (0, 0, 0, 0, 0, "idle", ""))

    @property
    def quiet_seconds(self) -> float:
        """For how long there was no new event."""
        return time.monotonic() - self._latest[1]

    def devices(self) -> list[LiveDevice]:
        """Those that held something, the main one first: an accelerator with the highest peak, else the CPU."""
        if self._reader is None or self._live is None:
            return []
        found = [LiveDevice(i, name, *self._live.device(i)) for i, name in enumerate(self._reader.devices)]
        return sorted(
            filter(lambda device: device.peak, found), key=lambda device: (device.name == "cpu", -device.peak)
        )

    def rows(self, device: LiveDevice, view: str) -> list[LiveRow]:
        """Modules whose names differ only in numbers are one row, and so are stacks with the same line."""
        if self._live is None:
            return []
        made: Iterable[tuple[str, int, int, int]]
        if view == "line":
            lines = self._live.lines(device.number)
            made = ((_line(*line[:4]), *line[4:]) for line in lines)
        else:
            at = CATEGORIES.index
            rows = self._live.modules(device.number)
            made = ((row[0] if view == "module" else str(CATEGORIES[at(row[1])]), *row[2:]) for row in rows)
        return _grouped(made, max(device.growth_steps, 1), view)

    # ---- whether it goes on ----

    def ended(self) -> str | None:
        """In words how the run ended; None: it goes on, as far as is known."""
        if self.is_cut:
            return "the file became shorter: it was cut, or written anew"
        end = self._reader.end if self._reader is not None else None
        if end is not None:
            how = end.get("how", "")
            if how == "exception":
                return f"it failed: {clean(end.get('error') or 'an exception')}"
            return (
                f"it was stopped by {clean(end.get('by', '?'))}" if how == "stopped" else _ENDS.get(how, "it has ended")
            )
        pid = self.info.get("pid", "")
        if not pid.isdecimal():
            return None
        if _is_running(int(pid), self.info.get("began")):
            self._was_alive = True
            return None
        if self._was_alive:
            return f"it died: its process {pid} is gone, and the capture has no end"
        return f"the capture has no end, and no process {pid} of it runs here: it died, or runs elsewhere"


_merged: dict[str, str] = {}


def _grouped(made: Iterable[tuple[str, int, int, int]], steps: int, view: str) -> list[LiveRow]:
    sums: dict[str, list[int]] = {}
    alike: dict[str, set[str]] = {}
    for name, *figures in made:
        if view == "module":
            merged = _merged.get(name) or _merged.setdefault(name, merge_numbers(name))
            alike.setdefault(merged, set()).add(name)
            name = merged
        held = sums.setdefault(name, [0, 0, 0])
        for i, value in enumerate(figures):
            held[i] += value
    rows = []
    for name, (now, peak, growth) in sums.items():
        members = alike.get(name, {name})
        shown = label(min(members)) if len(members) == 1 else f"{name} ({len(members)} alike)"
        rows.append(LiveRow(shown, now, peak, round(growth / steps)))
    return [row for row in rows if row.now or row.peak or row.growth]


def _line(file: str | None, function: str, line: int, is_model: bool) -> str:
    if file is None:
        return "(no Python line)"
    if is_model:
        return clean(describe_model_frame(Frame(file, function, line)))
    return clean(f"{shown_file(file)}:{line or '?'} in {function}")


# ---- processes ----


def _is_running(pid: int, began: str | None) -> bool:
    """Whether this process exists and is not a later one with the same number."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/stat", encoding="ascii") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    except (OSError, StopIteration, ValueError, IndexError):
        return False
    started = booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    try:
        return fields[0] not in "ZX" and started < float(began or "inf") + _SLACK
    except ValueError:
        return True


def captures_of_process(pid: int) -> list[str]:
    """The captures that this process and its descendants are writing."""
    found: dict[str, None] = {}
    for each in _with_descendants(pid):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{each}/fd"):
                with contextlib.suppress(OSError):
                    path = os.readlink(f"/proc/{each}/fd/{fd}")
                    if path not in found and _is_written(each, fd) and _is_capture(path):
                        found[path] = None
    return sorted(found)


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{task}/children", encoding="ascii") as file:
                    found += [int(child) for child in file.read().split() if int(child) not in found]
    return found


def _is_written(pid: int, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
        flags = next(line.split()[1] for line in file if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _is_capture(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(8) == b"MODSCOPE"
