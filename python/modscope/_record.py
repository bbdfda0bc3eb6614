"""Recording: a tracker's events go to a capture file while the program runs."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import sys
import threading
import time
from typing import Any, NamedTuple

import torch

from modscope import _files, _mem_tracker, _native, _oom_report
from modscope._peak import Peak

__all__ = ["record"]


class Outcome(NamedTuple):
    """What became of a recording."""

    bytes: int
    events: int
    lost: int
    """Events for which there was no room: if not 0, what the file tells is "at least"."""
    error: str | None
    """Why the file could not be written, if it could not."""
    peaks: dict[str, Peak]
    """By device."""
    out_of_memory: int
    """How many allocations failed."""


def default_info(program: str, arguments: list[str]) -> dict[str, str]:
    """What a capture says of its run."""
    return {
        "program": program,
        "arguments": "\n".join(arguments),
        "pid": str(os.getpid()),
        "rank": os.environ.get("RANK", "0"),
        "world": os.environ.get("WORLD_SIZE", "1"),
        "began": f"{time.time():.3f}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "modscope": _native.version,
    }


def _uncalled_modules() -> list[torch.nn.Module]:
    """The modules alive that no other holds."""
    modules = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
    held = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return [module for module in modules if id(module) not in held]


def _words(pairs: dict[str, str]) -> dict[str, str]:
    """As UTF-8 takes them."""
    return {key: value.encode("utf-8", "replace").decode() for key, value in pairs.items()}


class Recording:
    """Watches from ``start`` to ``stop``, and writes what it sees to a file, if there is one."""

    def __init__(self, fd: int | None, info: dict[str, str] | None = None, source: str = "auto") -> None:
        self._fd = fd
        self._info = info or {}
        self._tracker = _mem_tracker.MemTracker(source)
        self._tracker._give_way = self._give_way
        self._capture: _native.Capture | None = None
        self._outcome: Outcome | None = None
        self._failures = 0

    def start(self) -> None:
        self._failures = _native.out_of_memory()[0]
        self._tracker.__enter__()
        ledger = self._tracker._ledger
        assert ledger is not None
        try:
            ledger.seek_optimizer()
            if self._fd is not None:
                info = _words({"source": self._tracker.source, **self._info})
                self._capture = _native.Capture(ledger, self._fd, info)
        except BaseException:
            self._tracker.__exit__()
            raise

    def _give_way(self) -> None:
        """The program enters a MemTracker of its own that needs another source: it must not fail because of us."""
        self.stop("stopped", error="the program entered a MemTracker with another source")

    @property
    def peak(self) -> dict[torch.device, Peak]:
        """For each device, how much it held at most, and when that was."""
        return self._tracker.peak

    def stop(self, how: str = "finished", **end: str) -> Outcome:
        """End it: the file is whole then. The same outcome, if it has ended before."""
        if self._outcome is not None:
            return self._outcome
        figures: tuple[int, int, int, str | None] = (0, 0, 0, None)
        try:
            end |= self._settle()
        finally:  # an interrupt may come at any point
            try:
                figures = self._end_capture({"how": how, **end})
            finally:
                self._tracker.__exit__()
        peaks = {str(device): peak for device, peak in self._tracker.peak.items()}
        self._outcome = Outcome(*figures, peaks, _native.out_of_memory()[0] - self._failures)
        return self._outcome

    def _settle(self) -> dict[str, str]:
        """What is held gets its owners, also those that were never called."""
        try:
            ledger = self._tracker._ledger
            if ledger is not None and self._has_unowned(ledger):
                for module in _uncalled_modules():
                    if ledger.held([*module.parameters(), *module.buffers()]):  # made while we watched
                        self._tracker._tracker._get_mod_name(module)
            self._tracker._up_to_date()
        except Exception as error:
            return {"error": f"modscope: {type(error).__name__}: {_oom_report.text_of(error)}"}
        return {}

    @staticmethod
    def _has_unowned(ledger: _native.Ledger) -> bool:
        """Whether a good part of what is held is nobody's: looking for owners takes long in a large program."""
        rows = ledger.modules()
        unowned = sum(sum(sums) for _, fqn, sums in rows if fqn == "Global")
        return unowned * 20 > sum(sum(sums) for _, _, sums in rows)

    def _end_capture(self, end: dict[str, str]) -> tuple[int, int, int, str | None]:
        if self._capture is None:
            return (0, 0, 0, None)
        events, lost, size, error = self._capture.end(_words(end))
        return (size, events, lost, error)


def add_note(error: BaseException) -> None:
    """If an allocation failed and this exception tells of it: add the story of who held the memory, once."""
    _oom_report.add_note(error)


class record(contextlib.ContextDecorator):
    """Write who holds each byte of memory, from here to the end, to a capture file::

        with modscope.record("step.msc"):
            train_step(x)

        @modscope.record("step.msc")    # each call: step.msc, then step.2.msc, ...
        def train_step(x): ...

    Read it with ``modscope.load`` or ``modscope summary step.msc``. FileExistsError if the file is there
    already, unless ``overwrite``. Recordings may be nested, in one another and in ``modscope run``.
    """

    def __init__(self, path: str | os.PathLike[str], overwrite: bool = False, source: str = "auto") -> None:
        self.path = os.fspath(path)
        if not isinstance(self.path, str) or not self.path:
            raise TypeError("record needs the name of a file, such as record('run.msc')")
        self._overwrite = overwrite
        self._source = source
        self._calls = 0
        self._lock = threading.Lock()
        self._recording: Recording | None = None
        self.outcome: Outcome | None = None
        """After the end: what became of it."""

    def _recreate_cm(self) -> record:
        """For each call of a decorated function, a capture of its own."""
        with self._lock:
            self._calls += 1
            root, suffix = os.path.splitext(self.path)
            path = self.path if self._calls == 1 else f"{root}.{self._calls}{suffix}"
        return record(path, self._overwrite, self._source)

    def __enter__(self) -> record:
        if self._recording is not None:
            raise RuntimeError(f"this recording to {self.path} has begun already: use another record(...)")
        fd = _files.create(self.path, self._overwrite)
        try:
            program = getattr(sys.modules.get("__main__"), "__file__", None) or "python"
            recording = Recording(fd, default_info(program, sys.argv[1:]), self._source)
            recording._tracker._give_way = None  # here it is the program itself that wants both
            recording.start()
        except BaseException:
            _files.remove_empty(self.path, fd)
            raise
        finally:
            os.close(fd)
        self._recording = recording
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        recording = self._recording
        if recording is None:
            raise RuntimeError("this recording has not begun: enter it first, with a with statement")
        self._recording = None
        if error is None:
            self.outcome = recording.stop()
        else:
            add_note(error)
            self.outcome = recording.stop("exception", error=f"{type(error).__name__}: {_oom_report.text_of(error)}")
