"""What the trainers' callbacks share: the tracker of a training, the peak of its steps, captures of chosen steps.

Nothing here depends on a trainer's package.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from modscope import _native
from modscope._read.categories import CATEGORIES, Raw
from modscope._record import capture_file
from modscope._record.record import Recording, default_info
from modscope._torch.devices import devices
from modscope._trackers import mem_tracker

P = ParamSpec("P")
T = TypeVar("T")
LogEntry = dict[str, int | str]
"""What is logged at once: names and values."""

PREFIX = "memory/"
OUT_OF_MEMORY = PREFIX + "out_of_memory"
_EVERY = ("log", "step", "epoch")
_NAMES_TRIED = 1000

log = logging.getLogger("modscope")


class _HasMemory(Protocol):
    _memory: TrainingMemory


def quietly(hook: Callable[P, T]) -> Callable[P, T | None]:
    """Make a callback's hook log its errors instead of raising them in the training."""

    @functools.wraps(hook)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return hook(*args, **kwargs)
        except Exception as error:
            callback: _HasMemory = args[0]  # type: ignore[assignment]
            callback._memory.warn_once(error)
            return None

    return call


class CallbackOptions(NamedTuple):
    """The options that a callback is given."""

    every: str | int
    capture_steps: Container[int]
    capture_path: str | None
    top: int


Settings = CallbackOptions  # the former name, by which pickled callbacks refer to it


def _check_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    return value


def options_of(
    every: str | int, capture_steps: Iterable[int] | int | None, capture_path: str | os.PathLike[str] | None, top: int
) -> CallbackOptions:
    """Check the options of a callback. TypeError or ValueError for a wrong one."""
    if isinstance(every, str):
        if every not in _EVERY:
            raise ValueError(f"every must be 'log', 'step', 'epoch' or a number of steps, not {every!r}")
    elif _check_int("every", every) < 1:
        raise ValueError(f"every must be 1 or more steps, not {every}")
    if _check_int("top", top) < 0:
        raise ValueError(f"top must be 0 or more, not {top}")
    steps: Container[int]
    if capture_steps is None or isinstance(capture_steps, range):
        steps = capture_steps or ()
    else:
        given = [capture_steps] if isinstance(capture_steps, int) else capture_steps
        steps = frozenset(_check_int("a step of capture_steps", step) for step in given)
    return CallbackOptions(every, steps, None if capture_path is None else os.fspath(capture_path), top)


class Environment(NamedTuple):
    """Where a training runs, and where its files are written."""

    device: torch.device
    folder: str
    rank: int = 0
    world: int = 1


class _StepPeak(NamedTuple):
    raw: Raw
    """The bytes at the peak, by category."""
    modules: list[tuple[str, int]]
    """The fqn and own bytes of the largest modules, largest first."""


def _leave(tracker: mem_tracker.MemTracker) -> None:
    if mem_tracker.is_active(tracker):
        tracker.__exit__()


class TrainingMemory:
    """Counts memory from ``begin`` to ``end``: the peak of each step, and captures of the chosen steps.

    What happens between steps (loading data, evaluation, checkpoints) is in no step's peak. Before ``begin`` and
    after ``end`` the other methods do nothing.
    """

    def __init__(self, settings: CallbackOptions) -> None:
        self.settings = settings
        self._tracker: mem_tracker.MemTracker | None = None
        self._peak_tracker: _native.PeakTracker | None = (
            None  # reset for each batch, which the tracker's own peak is not
        )
        self._finalizer: weakref.finalize[[mem_tracker.MemTracker], TrainingMemory] | None = None
        self._environment = Environment(torch.device("cpu"), ".")
        self._highest: _StepPeak | None = None  # the peaks of the steps since the last entry
        self._failures = 0
        self._recording: Recording | None = None
        self._path = ""
        self._warned: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainingMemory, (self.settings,)  # a copy has the same settings, and has not begun

    @property
    def active(self) -> bool:
        return self._tracker is not None

    def warn_once(self, error: Exception) -> None:
        """Log an error of the callback. The same error is logged only once."""
        text = f"modscope: memory could not be logged: {type(error).__name__}: {error}"
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text)

    # ---- the training ----

    def begin(self, environment: Environment, *given: Any) -> None:
        """Count what these modules and optimizers hold, and everything that is allocated from now on."""
        self.end()
        self._environment, self._highest = environment, None
        tracker = mem_tracker.MemTracker()
        mem_tracker.on_other_source(tracker, functools.partial(_end_for_other_source, weakref.ref(self)))
        self._finalizer = weakref.finalize(self, _leave, tracker)
        self._finalizer.atexit = False
        self._failures = _native.out_of_memory()[0]
        self._tracker = tracker
        try:
            tracker.track_external(*given)
            tracker.__enter__()
            ledger = mem_tracker.ledger_of(tracker)
            assert ledger is not None
            self._peak_tracker = _native.PeakTracker(ledger)
        except BaseException:
            self.end()
            raise

    def give(self, *given: Any) -> None:
        """Also count what these objects hold, such as optimizers that were created after ``begin``."""
        if self._tracker is not None:
            self._tracker.track_external(*given)

    def end(self, error: BaseException | None = None) -> None:
        """Stop counting. The exception of a failed allocation gets the out-of-memory report as a note. May be called
        again."""
        tracker = self._tracker
        try:
            if error is not None:
                self.batch_ends()  # the step that the error ended counts
            self._end_capture(error)
        finally:
            self._tracker = self._peak_tracker = None
            if tracker is not None and mem_tracker.is_active(tracker):
                tracker.__exit__(type(error), error, None)
            if self._finalizer is not None:
                self._finalizer.detach()

    def take_oom_report(self) -> str | None:
        """The latest out-of-memory report, if an allocation failed since the previous call of this method."""
        failures, report, *_ = _native.out_of_memory()
        if failures == self._failures:
            return None
        self._failures = failures
        if log.hasHandlers():  # without handlers the log goes to stderr, where the report is already
            log.error(report.rstrip("\n"))
        return report.rstrip("\n")

    # ---- steps ----

    def step_begins(self, step: int) -> None:
        """Begin a batch; it is called for each batch of a step."""
        if self._peak_tracker is None:
            return
        if step in self.settings.capture_steps and self._recording is None:
            try:
                self._begin_capture(step)
            except OSError as error:
                self.warn_once(error)
        self._peak_tracker.reset()

    def batch_ends(self) -> None:
        """End a batch, before what happens between steps. It is cheap unless the peak is the highest so far."""
        number, held = self._held()
        if number is not None and not (self._highest and held <= sum(self._highest.raw)):
            self._highest = self._read(number)

    def step_ends(self, step: int) -> None:
        self.batch_ends()
        if self._recording is not None and step + 1 not in self.settings.capture_steps:
            self._end_capture(None)
        if self._peak_tracker is not None:
            self._peak_tracker.reset()

    def take_peak_between_steps(self) -> int | None:
        """The peak since a batch last began or ended, or since the previous call of this method."""
        number, held = self._held()
        if self._peak_tracker is not None:
            self._peak_tracker.reset()
        return None if number is None else held

    def due(self, steps: int) -> bool:
        """Whether ``every`` asks for an entry after so many steps."""
        every = self.settings.every
        return every == "step" or isinstance(every, int) and steps % every == 0

    @property
    def has_entry(self) -> bool:
        """Whether ``take_entry`` returns something."""
        return self._highest is not None

    def take_entry(self) -> LogEntry:
        """What was held at the highest peak of the steps since the previous call; empty if there was no step."""
        figures, modules = self.take_figures()
        entry: LogEntry = {**figures}
        for rank, (fqn, held) in enumerate(modules, 1):
            entry[f"{PREFIX}module_{rank}"] = fqn
            entry[f"{PREFIX}module_{rank}_bytes"] = held
        return entry

    def take_figures(self) -> tuple[dict[str, int], list[tuple[str, int]]]:
        """The figures of such an entry, and the largest modules with what they held; both empty if there was no
        step."""
        highest, self._highest = self._highest, None
        if highest is None:
            return {}, []
        figures = {PREFIX + "peak": sum(highest.raw)}
        figures |= {PREFIX + word.lower(): held for word, held in zip(CATEGORIES, highest.raw)}
        if self._environment.device.type == "cuda" and torch.cuda.is_initialized():
            figures[PREFIX + "reserved"] = torch.cuda.memory_reserved(self._environment.device)
        if self._tracker is not None and self._tracker.lost:
            figures[PREFIX + "lost"] = self._tracker.lost
        return figures, highest.modules

    # ---- the peak ----

    def _held(self) -> tuple[int | None, int]:
        """The number of the training's device, and its peak since the peak tracker was reset."""
        totals = [sum(raw) for raw, *_ in self._peak_tracker.peaks()] if self._peak_tracker else []
        if not totals:
            return None, 0
        known = devices()[: len(totals)]
        if self._environment.device in known:
            number = known.index(self._environment.device)
        else:  # its memory is not counted: take the device that holds most
            number = max(range(len(totals)), key=totals.__getitem__)
        return number, totals[number]

    def _read(self, number: int) -> _StepPeak:
        assert self._tracker is not None and self._peak_tracker is not None
        mem_tracker.refresh(self._tracker)  # claims are retroactive: a gradient found now was one at the peak too
        raw = self._peak_tracker.peaks()[number][0]
        modules = [(fqn, sum(held)) for on, fqn, held in self._peak_tracker.modules() if on == number]
        modules.sort(key=lambda one: (-one[1], one[0]))
        return _StepPeak(raw, modules[: self.settings.top])

    # ---- captures ----

    def _begin_capture(self, step: int) -> None:
        path, fd = self._new_file(step)
        try:
            program = getattr(sys.modules.get("__main__"), "__file__", None) or "python"
            ranks = {"rank": str(self._environment.rank), "world": str(self._environment.world)}
            # What an uncalled module holds was allocated before the step: searching for it in each capture is not worth
            # it.
            recording = Recording(fd, {**default_info(program, sys.argv[1:]), **ranks}, owners_of_uncalled=False)
            recording.start(path)
        except BaseException:
            capture_file.remove_empty(path, fd)
            raise
        finally:
            os.close(fd)
        self._recording, self._path = recording, path

    def _new_file(self, step: int) -> tuple[str, int]:
        """Create a file with a new name, so that a second training keeps the captures of the first."""
        asked = self.settings.capture_path or os.path.join(self._environment.folder, "memory-step{step}.msc")
        root, suffix = os.path.splitext(asked.replace("{step}", str(step)))
        if self._environment.world > 1:
            root += f".rank{self._environment.rank}"
        os.makedirs(os.path.dirname(root) or ".", exist_ok=True)
        for number in range(1, _NAMES_TRIED):
            path = f"{root}{suffix}" if number == 1 else f"{root}.{number}{suffix}"
            with contextlib.suppress(FileExistsError):
                return path, capture_file.create(path)
        raise FileExistsError(
            f"{root}{suffix} and {_NAMES_TRIED - 2} files with a number in that name exist already. "
            "Remove them, or set capture_path."
        )

    def _end_capture(self, error: BaseException | None) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        if error is None:
            outcome = recording.stop()
        else:
            outcome = recording.stop("exception", error=f"{type(error).__name__}: {error}")
        if outcome.error:
            log.warning("modscope: the capture %s is incomplete: %s", self._path, outcome.error)
        else:
            log.info("modscope: wrote %s; read it with: modscope summary %s", self._path, self._path)


def _end_for_other_source(memory: weakref.ref[TrainingMemory]) -> None:
    """The program's own MemTracker needs another source: it must not fail because of this callback."""
    living = memory()
    if living is not None:
        living.end()
        log.warning(
            "modscope: the program entered a MemTracker with another source, so memory is no longer logged. "
            "To have both, create that MemTracker without a source."
        )
