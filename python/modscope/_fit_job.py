"""A job as ``modscope fit`` sees it: a capture's events in memory, and what they would need with edits. Needs no torch."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from modscope import _capture
from modscope._categories import CATEGORIES, PHASES, Category
from modscope._edited import Point, Window
from modscope._load import Capture, CaptureError, describe_unreadable, load
from modscope._step_time import CHECKPOINT_SECONDS, ends_within_step, step_time

Edit = tuple[Any, ...]
"""The name of an edit and its arguments, as modscope._capture.Stream.replay takes them."""
_FORWARD = 1 / 3
"""The part of a GPU's step that its forward takes: a backward computes two products for each one of forward. Of a real run
the times of calls are those of the program, which waits for the GPU somewhere else."""
Selection = tuple[int, int, int | None, int, int]


def memory_fraction(capture: Capture) -> float:
    """The fraction of the GPU's memory that the program left to itself with torch.cuda.set_per_process_memory_fraction or
    per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF. 1: all."""
    in_settings = re.search(r"per_process_memory_fraction\s*:\s*([\d.]+)", capture.info.get("allocator", ""))
    text = (capture.end or {}).get("memory_fraction") or (in_settings[1] if in_settings else "1")
    try:
        fraction = float(text)
    except ValueError:
        return 1.0
    return fraction if 0 < fraction < 1 else 1.0


class Moment(NamedTuple):
    step: int
    phase: str
    module: str


class Outcome(NamedTuple):
    """What a replay says."""

    reserved: int
    """At most, with unlimited memory. Of a device without a caching allocator it is what is allocated."""
    allocated: int
    at: Moment
    """When most was reserved."""
    fits: bool
    """Whether the GPU has that much, after free segments were given back where need be."""
    retries: int
    """How often the allocator had to give free segments back. Known where the GPU has less than ``reserved``."""
    failed: Moment | None
    requested: int
    """By the request that failed."""
    reserved_within: int | None = None
    """At most, where the GPU has less than ``reserved`` and it fits all the same: free segments were given back."""

    @property
    def reserved_on_gpu(self) -> int:
        """What is reserved at most on the GPU, where it fits; otherwise ``reserved``."""
        return self.reserved if self.reserved_within is None else self.reserved_within

    @property
    def fits_at_once(self) -> bool:
        """Whether it fits without giving memory back, which takes time in every step."""
        return self.fits and not self.retries


class Call(NamedTuple):
    """A forward of a module."""

    number: int
    path: int
    parent: int | None
    begin: int
    end: int | None
    backward: int | None
    step: int
    seconds: float
    recompute_seconds: float
    """Of the part of its forward that a checkpoint runs again: up to the last tensor that autograd saves in it."""
    kept: int
    """Bytes for backward."""
    host_seconds: float = 0.0
    """Of the program, which runs ahead of a GPU."""


class Job:
    """``file``: a capture. CaptureError where nothing can be said."""

    def __init__(self, file: str, device: str | None = None) -> None:
        self.file = file
        self.capture: Capture = load(file)
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            reader = _capture.Reader(fd)
        finally:
            os.close(fd)
        self.modules = [name for name, _, _ in reader.paths]
        self.stream = _capture.Stream(reader)
        if not self.capture.peaks:
            raise CaptureError(
                f"{file} has no memory in it: there is nothing to fit{describe_unreadable(self.capture)}"
            )
        self.device = device or self.capture.main_device
        self.number = self.capture.device_number(self.device)
        if self.device not in self.capture.peaks:
            raise CaptureError(f"{self.device} never held anything in {file}")
        self.caching = self.device != "cpu"
        self.version = self.capture.info.get("rules") or self.capture.info.get("torch")
        self.conf = self.capture.info.get("allocator", "")
        self.capture.check_allocator()
        self.fraction = memory_fraction(self.capture)
        self.is_lower_bound = self.capture.is_lower_bound or self.stream.is_lower_bound
        self.has_damaged_notes = reader.damaged > self.capture.damaged
        """Whether chunks are damaged that are no events: a reader of events alone does not find that."""
        self.died = ends_within_step(self.capture)
        self.steps = self.stream.steps()
        """(event, number, time in microseconds) of each step's beginning."""
        self.whole_steps = max(len(self.steps) - (1 if self.died else 0), 0)
        self.base: list[Edit] = self._base()
        self._calls: list[Call] | None = None

    def _base(self) -> list[Edit]:
        """Edits that leave out the step in which the run died. If only one step is whole, the optimizer's state, which
        that step made at its end, is there from its beginning: as it is in every further step."""
        if not self.died or not self.whole_steps:
            return []
        edits: list[Edit] = [("stop", self.steps[-1][0])]
        state = self.select(Category.OPT)
        if self.whole_steps == 1 and (held := self.stream.sum(state)[0]):
            edits += [("remove", state), ("insert", self.steps[0][0], None, held, self.number)]
        return edits

    # ---- parts of the stream ----

    def select(self, *categories: Category, phases: Sequence[str] = (), root: int = 0, least: int = 0) -> Selection:
        """Blocks of this device, by category, phase of allocation and owner."""
        of_category = sum(1 << CATEGORIES.index(category) for category in categories)
        of_phase = sum(1 << PHASES.index(phase) for phase in phases)
        return of_category, of_phase, self.number, root, least

    @property
    def calls(self) -> list[Call]:
        if self._calls is None:
            rows = enumerate(
                zip(self.stream.calls(self.number), self.stream.recompute_times(), self.stream.gpu_times())
            )
            self._calls = [
                Call(
                    number,
                    path,
                    parent,
                    begin,
                    end,
                    backward,
                    step,
                    gpu / 1e9 if gpu else (until - since) / 1e6,
                    again / 1e6,
                    kept,
                    (until - since) / 1e6,
                )
                for number, ((path, parent, begin, end, backward, step, since, until, kept, _), again, gpu) in rows
            ]
        return self._calls

    @property
    def has_gpu_times(self) -> bool:
        """Whether the times of calls are those of the GPU, not of the program, which runs ahead of it."""
        return self.capture.info.get("clock") == "virtual" or self.stream.has_gpu_times

    def step_seconds(self) -> dict[int, float]:
        """The time of each whole step, by its number."""
        times = [time for _, _, time in self.steps] + [round(1e6 * self.capture.duration)]
        numbers = [number for _, number, _ in self.steps][: self.whole_steps]
        return {
            number: (after - before) / 1e6 for number, before, after in zip(numbers, times, times[1:]) if after > before
        }

    def share_of_step(self, calls: Sequence[Call]) -> float | None:
        """How much longer a step takes if these calls are checkpointed: the median of the steps, without the first. Of a
        real run, whose times are rough, the calls' whole forwards count."""
        if self.stream.has_gpu_times:
            return self._share_of_gpu_step(calls)
        steps = self.step_seconds()
        later = {number: time for number, time in steps.items() if number > min(steps)} or steps
        again = self._sum_by_step(
            (call.step, call.recompute_seconds if self.has_gpu_times else call.seconds) for call in calls
        )
        shares = [again.get(number, 0.0) / time for number, time in later.items()]
        if not self.has_gpu_times:
            forward = self._sum_by_step((call.step, call.seconds) for call in self.calls if call.parent is None)
            of_gpu = [_FORWARD * again.get(number, 0.0) / forward[number] for number in later if forward.get(number)]
            shares = [max(pair) for pair in zip(shares, of_gpu)]
        return statistics.median(shares) if any(shares) else None

    def _share_of_gpu_step(self, calls: Sequence[Call]) -> float | None:
        step = step_time(self.capture, self.device)
        again = self._sum_by_step((call.step, call.recompute_seconds) for call in calls)
        program = self._sum_by_step((call.step, call.host_seconds + CHECKPOINT_SECONDS) for call in calls)
        more = [step.added(again[number], program[number]) for number in sorted(again)]
        return statistics.median(more[1:] or more) / step.total if more and step.total else None

    @staticmethod
    def _sum_by_step(times: Iterable[tuple[int, float]]) -> dict[int, float]:
        """``times``: the step and the seconds of each call."""
        seconds: dict[int, float] = {}
        for step, time in times:
            seconds[step] = seconds.get(step, 0.0) + time
        return seconds

    def median_step(self) -> float | None:
        if self.stream.has_gpu_times:
            return step_time(self.capture, self.device).total
        times = list(self.step_seconds().values())
        return statistics.median(times[1:] or times) if times else None

    # ---- replay ----

    def replay(self, edits: Sequence[Edit] = (), conf: str = "", capacity: int | None = None) -> Outcome:
        """With unlimited memory; and where that needs more than ``capacity``, with that much."""
        every, options = [*self.base, *edits], self._options(conf)
        free = self.stream.replay(self.number, every or None, **options)
        reserved, within, failure, retries = free["reserved_peak"], None, None, 0
        if capacity is not None and reserved > capacity and self.caching:
            tight = self.stream.replay(self.number, every or None, **options, capacity=capacity)
            failure, retries = tight["failure"], tight["retries"]
            fits = failure is None
            within = tight["reserved_peak"] if fits else None
        else:
            fits = capacity is None or reserved <= capacity
        requested, failed = (failure[0], self._moment(failure[1])) if failure else (0, None)
        if not fits and failed is None:
            failed = self._moment(free["reserved_at"])
        return Outcome(
            reserved,
            free["allocated_peak"],
            self._moment(free["reserved_at"]),
            fits,
            retries,
            failed,
            requested,
            within,
        )

    def _options(self, conf: str) -> dict[str, Any]:
        settings = ",".join(filter(None, (self.conf, conf)))
        return {"caching": self.caching, "version": self.version, "conf": settings or None}

    def curve(self, points: int, window: Window, edits: Sequence[Edit] = (), conf: str = "") -> list[Point]:
        """Over the moments of the window, with unlimited memory."""
        first, last = window
        every = [*self.base, *edits] or None
        points = min(points, self.stream.events)
        found = self.stream.replay(self.number, every, **self._options(conf), points=points, first=first, last=last)
        return list(found["curve"])

    def _moment(self, at: tuple[Any, ...]) -> Moment:
        _, _, step, phase, path = at
        return Moment(step, phase, self.modules[path] if path < len(self.modules) else "?")
