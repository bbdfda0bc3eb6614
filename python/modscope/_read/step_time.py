"""How long a step takes, and how much longer with checkpoints. Whatever tells a step's time takes it from here.

A step lasts from the end of one optimizer step to the end of the next one, by the median of all: the first step, which
is slower, ends with the first of them. The program runs ahead of a GPU, so a step takes as long as the slower of the
two. What the GPU needs for calls is known from CUDA events (Call.gpu_nanoseconds). If the program never waits for the
GPU, its own steps are shorter than the GPU's, which then follow from the forwards: a step takes about three times as
long as its forwards."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from modscope._read.load import Capture
from modscope._read.types import Call, StepTimes, calls_of

_STEP_OF_FORWARD = 3
CHECKPOINT_SECONDS = 4e-4
"""Seconds that a checkpointed call costs the program beside the call itself: torch's checkpoint is Python."""
KEPT_SECONDS = 1.1e-5
"""Seconds that a result which a checkpointed call keeps costs the program in forward and recomputation together:
bench/selective.py on a CPU (torch 2.13). Operators that are not kept cost nothing."""


class StepTime(NamedTuple):
    """How many seconds a step takes."""

    device: float
    """Measured by the clock of the device that computes; if its times are not known, by the program's."""
    host: float
    """What the program needs without waiting for the GPU; 0: it is not known, or the program itself computes."""

    @property
    def total(self) -> float:
        return max(self.device, self.host)

    def added(self, device: float, host: float) -> float:
        """How much longer a step is with so much more work of both."""
        return max(self.device + device, self.host + host if self.host else 0.0) - self.total


def ends_within_step(capture: Capture) -> bool:
    """Whether the run died, so that its last step is not a whole one."""
    end = capture.end
    if end is None or end.get("how") in ("exception", "interrupted", "terminated"):
        return True
    if _ends_early(end) and not _has_updated_in_last_step(capture):
        return True
    failed = capture.last_oom
    return failed is not None and next(capture.events("step", first=failed.number), None) is None


def _ends_early(end: Mapping[str, str]) -> bool:
    """Whether the end may be anywhere in a step: the program exited with a status that says it failed, or its time was
    up."""
    has_failed = end.get("how") == "finished" and end.get("status", "") not in ("", "0")
    return has_failed or end.get("how") == "stopped" and end.get("by", "").startswith("--seconds")


def _has_updated_in_last_step(capture: Capture) -> bool:
    """Whether an optimizer step ended in it."""
    last = max((event.number for event in capture.events("step")), default=None)
    return last is not None and next(capture.events("optimizer_step", first=last), None) is not None


def retries_of_a_step(
    capture: Capture, device: str, capacity: int, edits: Sequence[tuple[Any, ...]] = (), conf: str | None = None
) -> int | None:
    """How often the allocator gives memory back in the last whole step, where it has so much memory; None: there is no
    step, or no whole one."""
    begins = [event for event, *_ in capture.stream.steps()]
    ends = begins[1:] if ends_within_step(capture) else [*begins[1:], None]
    if not ends or not begins:
        return None

    def until(event: int | None) -> int:
        stop = [] if event is None else [("stop", event)]
        return capture.replay(device, [*edits, *stop], conf=conf, capacity=capacity)["retries"]

    return max(until(ends[-1]) - until(begins[len(ends) - 1]), 0)


def median_between(ends: Sequence[float]) -> float | None:
    """The time of a step, from the ends of steps; None: there is only one."""
    return statistics.median(after - before for before, after in pairwise(ends)) if len(ends) > 1 else None


def step_ms(capture: Capture) -> float | None:
    """The milliseconds of a step; None: they are not known, as where a run has one step and nothing ended it."""
    steps = capture.step_times()
    if len(steps) < 2 and not any(step.end is not None for step in steps):
        return None
    return 1e3 * step_time(capture).total or None


def steps_done(capture: Capture) -> int:
    """How many training steps were completed; without an optimizer, how many began."""
    if not capture.optimizer_steps:
        return capture.last_step if has_backward(capture) else 0
    return sum(step.end is not None for step in capture.step_times())


def has_backward(capture: Capture) -> bool:
    """Whether anything is known of backward."""
    return next((event for event in capture.events("position") if event.phase == "backward"), None) is not None


def step_ms_by(capture: Capture, ends: Sequence[float]) -> float | None:
    """The milliseconds of a step by another clock. ``ends``: its times when the capture's optimizer steps ended, or, if
    it has none, its backwards."""
    ended = [step.optimizer_steps for step in capture.step_times() if step.end is not None]
    if not capture.optimizer_steps:
        ended = list(range(1, len(ends) + 1))
    between = median_between([ends[number - 1] for number in ended if number <= len(ends)])
    return None if between is None else 1e3 * between


def step_time(capture: Capture) -> StepTime:
    program = _program_seconds(capture)
    if not (capture.has_gpu_times and capture.stream.has_gpu_times):
        return StepTime(program, 0.0)
    roots = [call for call in calls_of(capture.stream, 0) if call.parent is None]
    gpu = _STEP_OF_FORWARD * (median_of_steps(roots, lambda call: call.gpu_nanoseconds / 1e9) or 0.0)
    host = _STEP_OF_FORWARD * (median_of_steps(roots, lambda call: call.host_seconds) or 0.0)
    return StepTime(max(program, gpu), min(program, host))


def _program_seconds(capture: Capture) -> float:
    """By the clock of the program, which a prediction's GPU shares; 0.0: it is not known."""
    steps = capture.step_times()
    whole = [step for step in steps if step.end is not None]
    between = median_between([step.end for step in whole if step.end is not None])
    if between is not None:
        return between
    if whole and whole[0].end is not None:
        return whole[0].end - whole[0].begin
    return _seconds_without_optimizer(steps, capture.duration)


def _seconds_without_optimizer(steps: Sequence[StepTimes], duration: float) -> float:
    """From beginning to beginning, without the first step if there are more."""
    begins = [step.begin for step in steps]
    between = median_between(begins[1:] if len(begins) > 2 else begins)
    return between if between is not None else duration - begins[0] if begins else 0.0


def median_of_steps(calls: Iterable[Call], seconds: Callable[[Call], float]) -> float | None:
    """The median of the sums by step; without the first step, which is slower, if there are more. A step that stands
    for others counts as often. None: there are no calls."""
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for call in calls:
        sums[call.step] = sums.get(call.step, 0.0) + seconds(call)
        counts[call.step] = call.stands_for
    times = [sums[step] for step in sorted(sums) for _ in range(counts[step])]
    return statistics.median(times[1:] or times) if times else None
