"""What the trainers' callbacks share: a tracker over the training, the peak of its steps, captures of chosen ones.
Knows no trainer."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from modscope import _snapshots, _files, _mem_tracker, _native
from modscope._record import Recording, default_info
from modscope._categories import CATEGORIES, Raw

P = ParamSpec("P")
T = TypeVar("T")
Entry = dict[str, int | str]
"""What goes to a trainer's logger."""

PREFIX = "memory/"
STORY = PREFIX + "out_of_memory"
_EVERY = ("log", "step", "epoch")
_NAMES_TRIED = 1000

log = logging.getLogger("modscope")


def quietly(hook: Callable[P, T]) -> Callable[P, T | None]:
    """A hook of a callback, whose errors are told in the log and never reach the training."""

    @functools.wraps(hook)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return hook(*args, **kwargs)
        except Exception as error:
            watch: Watch = args[0]._watch  # type: ignore[attr-defined]
            watch.trouble(error)
            return None

    return call


class Settings(NamedTuple):
    """What a callback was asked for."""

    every: str | int
    capture_steps: Container[int]
    capture_path: str | None
    top: int


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    return value


def settings_of(
    every: str | int, capture_steps: Iterable[int] | int | None, capture_path: str | os.PathLike[str] | None, top: int
) -> Settings:
    """TypeError or ValueError says what is wrong with them."""
    if isinstance(every, str):
        if every not in _EVERY:
            raise ValueError(f"every must be 'log', 'step', 'epoch' or a number of steps, not {every!r}")
    elif _whole("every", every) < 1:
        raise ValueError(f"every must be 1 or more steps, not {every}")
    if _whole("top", top) < 0:
        raise ValueError(f"top must be 0 or more, not {top}")
    steps: Container[int]
    if capture_steps is None or isinstance(capture_steps, range):
        steps = capture_steps or ()
    else:
        given = [capture_steps] if isinstance(capture_steps, int) else capture_steps
        steps = frozenset(_whole("a step of capture_steps", step) for step in given)
    return Settings(every, steps, None if capture_path is None else os.fspath(capture_path), top)


class Place(NamedTuple):
    """Where a training runs, and where its files go."""

    device: torch.device
    folder: str
    rank: int = 0
    world: int = 1


class _Peak(NamedTuple):
    raw: Raw
    modules: list[tuple[str, int]]
    """Largest first."""


def _leave(tracker: _mem_tracker.MemTracker) -> None:
    if tracker._depth:
        tracker.__exit__()


class _Stretch(Recording):
    """Of some steps. What modules hold that are not called in a step was there before it, and counts no more than
    in the log."""

    @staticmethod
    def _has_unowned(ledger: _native.Ledger) -> bool:
        return False


class Watch:
    """From ``begin`` to ``end``: what each step held at its peak, and captures of the chosen ones. Between steps
    (data, evaluation, checkpoints) the peak does not count. Calls that come when nothing has begun do nothing."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._tracker: _mem_tracker.MemTracker | None = None
        self._viewer: _native.Viewer | None = None  # its peak begins anew with each batch, the tracker's does not
        self._left: weakref.finalize[[_mem_tracker.MemTracker], Watch] | None = None
        self._place = Place(torch.device("cpu"), ".")
        self._highest: _Peak | None = None  # of the steps since the last entry
        self._failures = 0
        self._recording: _Stretch | None = None
        self._path = ""
        self._told: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Watch, (self.settings,)  # what is under way stays in this process

    @property
    def active(self) -> bool:
        return self._tracker is not None

    def trouble(self, error: Exception) -> None:
        """Tell of an error of ours, each once."""
        text = f"modscope: memory could not be logged: {type(error).__name__}: {error}"
        if text not in self._told:
            self._told.add(text)
            log.warning(text)

    # ---- the training ----

    def begin(self, place: Place, *given: Any) -> None:
        """Count what these modules and optimizers hold, and all that is made from here on."""
        self.end()
        self._place, self._highest = place, None
        tracker = _mem_tracker.MemTracker()
        tracker._give_way = functools.partial(_give_way, weakref.ref(self))
        self._left = weakref.finalize(self, _leave, tracker)
        self._left.atexit = False
        self._failures = _native.out_of_memory()[0]
        self._tracker = tracker
        try:
            tracker.track_external(*given)
            tracker.__enter__()
            assert tracker._ledger is not None
            self._viewer = _native.Viewer(tracker._ledger)
        except BaseException:
            self.end()
            raise

    def give(self, *given: Any) -> None:
        """Objects that came later: optimizers."""
        if self._tracker is not None:
            self._tracker.track_external(*given)

    def end(self, error: BaseException | None = None) -> None:
        """If ``error`` is of an allocation that failed, it gets the story as a note. May be called again."""
        tracker = self._tracker
        try:
            if error is not None:
                self.batch_ends()  # the step that it broke off counts
            self._end_capture(error)
        finally:
            self._tracker = self._viewer = None
            if tracker is not None and tracker._depth:
                tracker.__exit__(type(error), error, None)
            if self._left is not None:
                self._left.detach()

    def story(self) -> str | None:
        """Of the latest allocation that failed, if one did since this was asked last."""
        failures, story, *_ = _native.out_of_memory()
        if failures == self._failures:
            return None
        self._failures = failures
        if log.hasHandlers():  # stderr has it already
            log.error(story.rstrip("\n"))
        return story.rstrip("\n")

    # ---- steps ----

    def step_begins(self, step: int) -> None:
        """Also for each further batch of a step."""
        if self._viewer is None:
            return
        if step in self.settings.capture_steps and self._recording is None:
            try:
                self._begin_capture(step)
            except OSError as error:
                self.trouble(error)
        self._viewer.reset()

    def batch_ends(self) -> None:
        """Before what comes between steps. It costs nothing worth mention unless the peak is a new one."""
        number, held = self._held()
        if number is not None and not (self._highest and held <= sum(self._highest.raw)):
            self._highest = self._read(number)

    def step_ends(self, step: int) -> None:
        self.batch_ends()
        if self._recording is not None and step + 1 not in self.settings.capture_steps:
            self._end_capture(None)
        if self._viewer is not None:
            self._viewer.reset()

    def since(self) -> int | None:
        """The most held since the last batch began or ended, for what comes between steps."""
        number, held = self._held()
        if self._viewer is not None:
            self._viewer.reset()
        return None if number is None else held

    def due(self, steps: int) -> bool:
        """Whether an entry is to be written after so many steps, by a number of steps that was asked for."""
        every = self.settings.every
        return every == "step" or isinstance(every, int) and steps % every == 0

    @property
    def pending(self) -> bool:
        """Whether there is something to take."""
        return self._highest is not None

    def take(self) -> Entry:
        """What was held at the highest peak of the steps since this was asked last; empty if there were none."""
        highest, self._highest = self._highest, None
        if highest is None:
            return {}
        entry: Entry = {PREFIX + "peak": sum(highest.raw)}
        entry |= {PREFIX + word.lower(): held for word, held in zip(CATEGORIES, highest.raw)}
        for place, (fqn, held) in enumerate(highest.modules, 1):
            entry[f"{PREFIX}module_{place}"] = fqn
            entry[f"{PREFIX}module_{place}_bytes"] = held
        if self._tracker is not None and self._tracker.lost:
            entry[PREFIX + "lost"] = self._tracker.lost
        return entry

    # ---- the peak ----

    def _held(self) -> tuple[int | None, int]:
        """The device's number, and the most it held since the peak began anew."""
        totals = [sum(raw) for raw, *_ in self._viewer.peaks()] if self._viewer else []
        if not totals:
            return None, 0
        known = _snapshots.devices()[: len(totals)]
        if self._place.device in known:
            number = known.index(self._place.device)
        else:  # one that is not watched: the one that holds most
            number = max(range(len(totals)), key=totals.__getitem__)
        return number, totals[number]

    def _read(self, number: int) -> _Peak:
        assert self._tracker is not None and self._viewer is not None
        self._tracker._up_to_date()  # what became a gradient, say, was one at the peak too
        raw = self._viewer.peaks()[number][0]
        modules = [(fqn, sum(held)) for on, fqn, held in self._viewer.modules() if on == number]
        modules.sort(key=lambda one: (-one[1], one[0]))
        return _Peak(raw, modules[: self.settings.top])

    # ---- captures ----

    def _begin_capture(self, step: int) -> None:
        path, fd = self._new_file(step)
        try:
            program = getattr(sys.modules.get("__main__"), "__file__", None) or "python"
            ranks = {"rank": str(self._place.rank), "world": str(self._place.world)}
            recording = _Stretch(fd, {**default_info(program, sys.argv[1:]), **ranks})
            recording.start()
        except BaseException:
            _files.remove_empty(path, fd)
            raise
        finally:
            os.close(fd)
        self._recording, self._path = recording, path

    def _new_file(self, step: int) -> tuple[str, int]:
        """One that is not there yet: a training that is run again loses nothing of the last one."""
        asked = self.settings.capture_path or os.path.join(self._place.folder, "memory-step{step}.msc")
        root, suffix = os.path.splitext(asked.replace("{step}", str(step)))
        if self._place.world > 1:
            root += f".rank{self._place.rank}"
        os.makedirs(os.path.dirname(root) or ".", exist_ok=True)
        for number in range(1, _NAMES_TRIED):
            path = f"{root}{suffix}" if number == 1 else f"{root}.{number}{suffix}"
            with contextlib.suppress(FileExistsError):
                return path, _files.create(path)
        raise FileExistsError(f"{root}{suffix} and {_NAMES_TRIED - 2} others like it exist already")

    def _end_capture(self, error: BaseException | None) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        if error is None:
            outcome = recording.stop()
        else:
            outcome = recording.stop("exception", error=f"{type(error).__name__}: {error}")
        if outcome.error:
            log.warning("modscope: the capture %s is not whole: %s", self._path, outcome.error)
        else:
            log.info("modscope: wrote %s; read it with: modscope summary %s", self._path, self._path)


def _give_way(watch: weakref.ref[Watch]) -> None:
    """The program enters a MemTracker of its own that needs another source: it must not fail because of us."""
    known = watch()
    if known is not None:
        known.end()
        log.warning("modscope: the program entered a MemTracker with another source: memory is logged no more")
