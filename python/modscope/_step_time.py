"""How long a step takes, and how much longer with checkpoints. Needs no torch.

The program runs ahead of a GPU, so a step takes as long as the slower of the two. What the GPU needs for calls is known from
CUDA events (Stream.gpu_times). If the program never waits for the GPU, its own steps are shorter than the GPU's, which then
follow from the forwards: a step takes about three times as long as its forwards.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from modscope._load import Capture

_STEP_OF_FORWARD = 3
CHECKPOINT_SECONDS = 4e-4
"""Of the program, for each checkpointed call beside the call itself: torch's checkpoint is Python."""


class StepTime(NamedTuple):
    """Seconds of a step."""

    device: float
    """By the clock of the device that computes; if its times are not known, by the program's."""
    host: float
    """Of the program without waiting for the GPU; 0: it is not known, or the program itself computes."""

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
    """Whether the end may be anywhere in a step: the program exited with a status that says it failed, or its time was up."""
    has_failed = end.get("how") == "finished" and end.get("status", "") not in ("", "0")
    return has_failed or end.get("how") == "stopped" and end.get("by", "").startswith("--seconds")


def _has_updated_in_last_step(capture: Capture) -> bool:
    """Whether an optimizer step ended in it."""
    last = max((event.number for event in capture.events("step")), default=None)
    return last is not None and next(capture.events("optimizer_step", first=last), None) is not None


def step_time(capture: Capture, device: str) -> StepTime:
    durations = [step.end - step.begin for step in capture.steps() if step.number > 0]
    if ends_within_step(capture):
        durations = durations[:-1] or durations
    program = statistics.median(durations[1:-1] or durations[1:] or durations or [0.0])
    if not capture.stream.has_gpu_times:
        return StepTime(program, 0.0)
    calls = capture.stream.calls(capture.device_number(device))
    roots = [
        (step, gpu / 1e9, (until - since) / 1e6)
        for (_, parent, _, _, _, step, since, until, *_), gpu in zip(calls, capture.stream.gpu_times())
        if parent is None
    ]
    gpu = _STEP_OF_FORWARD * _median_of_steps((step, seconds) for step, seconds, _ in roots)
    host = _STEP_OF_FORWARD * _median_of_steps((step, seconds) for step, _, seconds in roots)
    return StepTime(max(program, gpu), min(program, host))


def _median_of_steps(seconds: Iterable[tuple[int, float]]) -> float:
    """Of the sums by step; without the first step, which is slower, if there are more."""
    sums: dict[int, float] = {}
    for step, each in seconds:
        sums[step] = sums.get(step, 0.0) + each
    return statistics.median([sums[step] for step in sorted(sums)][1:] or list(sums.values()) or [0.0])
