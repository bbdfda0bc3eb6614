"""What a plan chooses from: the modules of a capture, what checkpointing each would save and cost, and the replay that
verifies a choice. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from modscope import _capture
from modscope._read.load import Capture, describe_unreadable
from modscope._read.step_time import CHECKPOINT_SECONDS, ends_within_step, has_backward, step_time
from modscope._read.text import natural_key
from modscope._read.types import Call, CaptureError, calls_of

Choice = frozenset[int]
"""Indices of candidates."""

_POINTS = 4096  # of the curve of allocated bytes
_MOST_ROWS = 800
_NEARLY = 0.8
_MOST_CANDIDATES = 600
_VARIANTS = 12  # replays in which tensors of checkpointed modules live shorter or longer
_LEAST_PART = 5e-4  # of the allocated peak: a module that keeps less for backward is no candidate


class Candidate(NamedTuple):
    name: str
    calls: tuple[int, ...]
    """Its calls that leave something for backward."""
    all_calls: int
    """How many calls it has, with those of steps that are left out."""
    seconds: float
    """Of its recomputation in a step: of its forward up to the last tensor that autograd saves in it."""
    host_seconds: float
    """Of the program in a step, which runs the forward again."""
    kept: int
    """The most that it keeps for backward in one step."""


class Row(NamedTuple):
    """A moment at which memory is needed."""

    needed: int
    """Allocated bytes without a plan."""
    saved: tuple[int, ...]
    """By candidate: how many fewer if it alone is checkpointed. Negative where a recomputation needs more."""


class Verified(NamedTuple):
    """What the replay of a choice gave."""

    reserved: int
    allocated: int
    number: int
    """The event at which most was reserved."""
    step: int
    phase: str
    path: int


class Problem:
    """A capture, a device of it, and the modules that may be checkpointed."""

    def __init__(self, capture: Capture, device: str) -> None:
        self.capture = capture
        self.device = device
        self._calls = calls_of(capture.stream, capture.device_number(device))
        capture.check_allocator()
        self._verified: dict[Choice, Verified] = {}
        self._ranges: dict[Choice, tuple[int, int]] = {}
        self.is_cpu = device == "cpu"
        self.step = step_time(capture)
        self.candidates = self._find_candidates()
        self._around = self._find_around()
        self.rows = self._measure()

    # ---- candidates ----

    def _find_candidates(self) -> list[Candidate]:
        names = self.capture.module_names
        calls: dict[str, list[Call]] = {}
        for call in self._calls:
            is_whole = call.end is not None and call.backward is not None
            if is_whole and call.kept and "." in names[call.path] and not self._is_recursive(call):
                calls.setdefault(names[call.path], []).append(call)
        steps = _whole_steps(self._calls)
        self.steps = sum(steps.values())
        least = _LEAST_PART * self.verify(frozenset()).allocated
        found = [_candidate(name, of_name, steps) for name, of_name in calls.items()]
        found = [candidate for candidate in found if candidate.kept >= least]
        found.sort(key=lambda candidate: (-candidate.kept, natural_key(candidate.name)))
        return sorted(found[:_MOST_CANDIDATES], key=lambda candidate: (candidate.calls[0], candidate.name))

    def _find_around(self) -> list[frozenset[int]]:
        """By candidate, those in which it lies: by its name, or because one of its calls lies in one of theirs."""
        owner = {call: i for i, candidate in enumerate(self.candidates) for call in candidate.calls}
        found = []
        for i, candidate in enumerate(self.candidates):
            around = {j for j, other in enumerate(self.candidates) if candidate.name.startswith(f"{other.name}.")}
            for call in candidate.calls:
                parent = self._calls[call].parent
                while parent is not None:
                    around |= {owner[parent]} if parent in owner else set()
                    parent = self._calls[parent].parent
            found.append(frozenset(around - {i}))
        return found

    def _is_recursive(self, call: Call) -> bool:
        """Whether the call lies in another call of the same module."""
        parent = call.parent
        while parent is not None and self._calls[parent].path != call.path:
            parent = self._calls[parent].parent
        return parent is not None

    def around(self, candidate: int) -> frozenset[int]:
        """The candidates in which this one lies."""
        return self._around[candidate]

    def inside(self, candidate: int, choice: Iterable[int]) -> list[int]:
        """Those of the choice that lie in this candidate."""
        return [other for other in choice if candidate in self._around[other]]

    def chains(self) -> list[list[int]]:
        """Candidates of which one at most can be chosen: each innermost one, and those around it."""
        outer = frozenset().union(*self._around) if self._around else frozenset()
        return [
            [i, *sorted(self._around[i])] for i in range(len(self.candidates)) if i not in outer and self._around[i]
        ]

    def cost(self, candidate: int) -> float:
        """Seconds of the side that decides how long a step takes: the device, or a program that is about as slow."""
        found = self.candidates[candidate]
        return max(found.seconds, found.host_seconds) if self.step.host >= _NEARLY * self.step.device else found.seconds

    def seconds(self, choice: Iterable[int]) -> float:
        """How much longer a step is with the recomputations of a choice."""
        chosen = [self.candidates[i] for i in sorted(choice)]
        return self.step.added(sum(each.seconds for each in chosen), sum(each.host_seconds for each in chosen))

    def names(self, choice: Iterable[int]) -> list[str]:
        return [self.candidates[i].name for i in sorted(choice)]

    # ---- replays ----

    def verify(self, choice: Choice) -> Verified:
        known = self._verified.get(choice)
        if known is None:
            known = self._verified[choice] = _verified(self._replay(choice))
        return known

    def reserved(self, choice: Choice) -> int:
        """The peak. Of a device without a caching allocator, what is allocated."""
        return self.verify(choice).reserved

    def range_of(self, choice: Choice) -> tuple[int, int]:
        """The least and the most that may be reserved. How long Python holds the tensors of a checkpointed module is
        not in the capture, and other lifetimes leave other gaps."""
        if choice not in self._ranges:
            replay = self._replay(choice, variants=0 if self.is_cpu else _VARIANTS)
            self._ranges[choice] = replay["reserved_range"]
        return self._ranges[choice]

    def _replay(self, choice: Iterable[int], points: int = 0, variants: int = 0) -> _capture.Replay:
        edits = [("checkpoint", call) for i in sorted(choice) for call in self.candidates[i].calls] if choice else []
        return self.capture.replay(self.device, edits, points=points, folded=True, variants=variants)

    def _measure(self) -> list[Row]:
        without = [point[3] for point in self._replay((), _POINTS)["curve"]]
        saved = []
        for i in range(len(self.candidates)):
            curve = self._replay((i,), _POINTS)["curve"]
            saved.append([before - point[3] for before, point in zip(without, curve)])
        return _reduce(without, saved)


def _reduce(without: Sequence[int], saved: Sequence[Sequence[int]]) -> list[Row]:
    """Of moments with the same savings only the one that needs most. If there are too many, those that need most."""
    highest: dict[tuple[int, ...], int] = {}
    for needed, column in zip(without, zip(*saved) if saved else ((),) * len(without)):
        if needed > highest.get(column, -1):
            highest[column] = needed
    rows = [Row(needed, column) for column, needed in highest.items()]
    rows.sort(key=lambda row: (-row.needed, row.saved))
    return rows[:_MOST_ROWS]


def _candidate(name: str, calls: list[Call], steps: dict[int, int]) -> Candidate:
    """``steps``: those whose times count, and how many steps each stands for."""
    counted = [call for call in calls if call.step in steps] or calls
    count = sum({call.step: call.stands_for for call in counted}.values())
    microseconds = sum(call.recompute_nanoseconds // 1000 * call.stands_for for call in counted)
    host = sum((call.host_seconds + CHECKPOINT_SECONDS) * call.stands_for for call in counted)
    kept: dict[int, int] = {}
    for call in calls:
        kept[call.step] = kept.get(call.step, 0) + call.kept
    numbers, all_calls = tuple(call.number for call in calls), sum(call.stands_for for call in calls)
    return Candidate(name, numbers, all_calls, microseconds / 1e6 / count, host / count, max(kept.values()))


def _whole_steps(calls: Sequence[Call]) -> dict[int, int]:
    """The steps whose times count: all but the first, which is slower, unless it is the only one; each with how many
    steps it stands for."""
    steps = {call.step: call.stands_for for call in calls if call.backward is not None}
    return {step: steps[step] for step in sorted(steps)[1:]} or steps


def _verified(result: _capture.Replay) -> Verified:
    number, _, step, phase, path = result["reserved_at"]
    return Verified(result["reserved_peak"], result["allocated_peak"], number, step, phase, path)


def check_capture(capture: Capture) -> None:
    """CaptureError where no plan can be made."""
    if not capture.peaks:
        raise CaptureError(
            f"The capture holds no memory of PyTorch's, so there is nothing to plan{describe_unreadable(capture)}"
        )
    is_whole = capture.optimizer_steps or capture.last_step > 1 or not ends_within_step(capture)
    if capture.oom_count and not capture.optimizer_steps:
        raise CaptureError(
            "The run ended without memory before its first step was complete, so what it keeps for backward is "
            "not known. "
            "Capture it on a larger GPU, or predict it on one and give both:  modscope predict --gpu h200 -o "
            "predicted.msc script.py"
        )
    if not is_whole and has_backward(capture):
        raise CaptureError(
            "The run ended before its first step was complete, so what a step needs is not known. Capture a run of 2 "
            "steps or more"
        )
    if not capture.optimizer_steps and not has_backward(capture):
        raise CaptureError(
            "The capture has no optimizer step and no backward, so nothing is known of backward. Capture a run of 2 "
            "steps or more of training"
        )
