"""A job as ``modscope fit`` sees it: a capture's events in memory, and what they would need with edits. Needs no
torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from modscope import _capture
from modscope._fit.capacity import memory_fraction, nccl_bytes
from modscope._fit.edited_timeline import Point, Window
from modscope._read.categories import CATEGORIES, KINDS, PHASES, Category, Kind
from modscope._read.load import Capture, CaptureError, describe_unreadable, load
from modscope._read.step_time import (
    CHECKPOINT_SECONDS,
    StepTime,
    ends_within_step,
    median_of_steps,
    retries_of_a_step,
    step_time,
)
from modscope._read.types import Call, calls_of
from modscope._virtual.gpus import Gpu

if TYPE_CHECKING:
    from modscope._predict.epoch.answer import EpochAnswer

Edit = tuple[Any, ...]
"""The name of an edit and its arguments, as modscope._capture.Stream.replay takes them."""
_FORWARD = 1 / 3
"""The part of a GPU's step that its forward takes: a backward computes two products for each one of forward. Of a real
run the times of calls are those of the program, which waits for the GPU somewhere else."""
Selection = tuple[int, int, int | None, int, int, int]


class Moment(NamedTuple):
    step: int
    phase: str
    module: str


class Outcome(NamedTuple):
    """What a job needs, by a replay."""

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


class Job:
    """``file``: a capture, which may be open already. CaptureError where nothing can be said."""

    def __init__(self, file: str, device: str | None = None, capture: Capture | None = None) -> None:
        self.file = file
        self.capture = capture or load(file)
        self.modules = self.capture.module_names
        if not self.capture.peaks:
            raise CaptureError(
                f"{file} has no memory in it: there is nothing to fit{describe_unreadable(self.capture)}"
            )
        self.device = device or self.capture.main_device
        self.number = self.capture.device_number(self.device)
        if self.device not in self.capture.peaks:
            raise CaptureError(f"{self.device} never held anything in {file}")
        self.caching = self.device != "cpu"
        self.conf = self.capture.info.get("allocator", "")
        self.capture.check_allocator()
        self.fraction = memory_fraction(self.capture)
        self.died = ends_within_step(self.capture)

    @property
    def epoch(self) -> EpochAnswer | None:
        """Of a job of which a whole epoch counts (_fit/epoch_job.py)."""
        return None

    @property
    def stream(self) -> _capture.Stream:
        return self.capture.stream

    @property
    def is_lower_bound(self) -> bool:
        return self.capture.is_lower_bound or self.stream.is_lower_bound

    @property
    def has_damaged_notes(self) -> bool:
        return self.capture.has_damaged_notes

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """(event, number, time in microseconds) of each step's beginning."""
        return self.stream.steps()

    @property
    def whole_steps(self) -> int:
        return max(len(self.steps) - (1 if self.died else 0), 0)

    @property
    def end_of_whole_steps(self) -> int:
        """The event that begins the step in which the run died; of one that did not, the number of all events."""
        steps = self.steps
        return steps[-1][0] if self.died and steps else self.stream.events

    @cached_property
    def base(self) -> list[Edit]:
        """Edits that leave out the step in which the run died. If only one step is whole, the optimizer's state, which
        that step made at its end, is there from its beginning: as it is in every further step."""
        if not self.died or not self.whole_steps:
            return []
        edits: list[Edit] = [("stop", self.end_of_whole_steps)]
        state = self.select(Category.OPT)
        if self.whole_steps == 1 and (held := self.stream.sum(state)[0]):
            edits += [("remove", state), ("insert", self.steps[0][0], None, held, self.number)]
        return edits

    # ---- parts of the stream ----

    def select(self, *categories: Category, phases: Sequence[str] = (), kind: Kind | None = None) -> Selection:
        """Blocks of this device, by category, phase of allocation and kind."""
        of_category = sum(1 << CATEGORIES.index(category) for category in categories)
        of_phase = sum(1 << PHASES.index(phase) for phase in phases)
        return of_category, of_phase, self.number, 0, 0, 1 << 1 + KINDS.index(kind) if kind else 0

    @cached_property
    def calls(self) -> list[Call]:
        return calls_of(self.stream, self.number)

    @property
    def has_gpu_times(self) -> bool:
        """Whether the times of calls are those of the GPU, not of the program, which runs ahead of it."""
        return self.capture.info.get("clock") == "virtual" or self.stream.has_gpu_times

    @cached_property
    def step_time(self) -> StepTime:
        return step_time(self.capture)

    def share_of_step(self, calls: Sequence[Call], kept: Mapping[int, float] | None = None) -> float | None:
        """How much longer a step takes if these calls are checkpointed, as a part of it. Of a real run without the
        GPU's times, which are rough, the calls' whole forwards count. ``kept``: seconds of operators whose results are
        kept, by the number of the call."""
        kept = kept or {}
        step = self.step_time
        is_rough = not self.has_gpu_times
        again = median_of_steps(
            calls, lambda call: call.seconds if is_rough else call.recompute_seconds - kept.get(call.number, 0.0)
        )
        program = median_of_steps(calls, lambda call: call.host_seconds + CHECKPOINT_SECONDS)
        if not again or program is None or not step.total:
            return None
        share = step.added(again, program) / step.total
        if is_rough:
            forward = median_of_steps((call for call in self.calls if call.parent is None), lambda call: call.seconds)
            share = max(share, _FORWARD * again / forward if forward else 0.0)
        return share

    # ---- replay ----

    def may_reserve(self, gpu: Gpu) -> int:
        """What the program may reserve of the GPU."""
        return gpu.may_reserve(self.fraction, nccl_bytes(self.capture))

    def replay(self, edits: Sequence[Edit] = (), conf: str = "", capacity: int | None = None) -> Outcome:
        """With unlimited memory; and where that needs more than ``capacity``, with that much."""
        every, settings = [*self.base, *edits], ",".join(filter(None, (self.conf, conf)))
        free = self.capture.replay(self.device, every, conf=settings)
        reserved, within, failure, retries = free["reserved_peak"], None, None, 0
        if capacity is not None and reserved > capacity and self.caching:
            tight = self.capture.replay(self.device, every, conf=settings, capacity=capacity)
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

    def retries_of_a_step(self, capacity: int) -> int | None:
        """How often the allocator gives memory back in the last whole step; None: that is not known."""
        return retries_of_a_step(self.capture, self.device, capacity, self.base, self.conf)

    def curve(self, points: int, window: Window, edits: Sequence[Edit] = (), conf: str = "") -> list[Point]:
        """Over the moments of the window, with unlimited memory."""
        settings = ",".join(filter(None, (self.conf, conf)))
        every = [*self.base, *edits]
        return self.capture.replay(self.device, every, conf=settings, points=points, window=window)["curve"]

    def _moment(self, at: tuple[int, int, int, str, int]) -> Moment:
        _, _, step, phase, path = at
        return Moment(step, phase, self.modules[path] if path < len(self.modules) else "?")
