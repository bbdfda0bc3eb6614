"""What a plan chooses from: the modules of a capture, what checkpointing each would save and cost, and the replay that
verifies a choice. Needs no torch."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from modscope import _capture
from modscope._plan.file import Keep, Plan, plan_of
from modscope._plan.keeping import NOTHING, Operator, Results, find_sets
from modscope._read.groups import describe_groups
from modscope._read.load import Capture, describe_unreadable
from modscope._read.step_time import CHECKPOINT_SECONDS, KEPT_SECONDS, ends_within_step, has_backward, step_time
from modscope._read.text import natural_key
from modscope._read.types import Call, CaptureError, calls_of

Choice = frozenset[int]
"""Indices of candidates."""

_POINTS = 4096  # of the curve of allocated bytes
_MOST_ROWS = 800
_FEWER_ROWS = 240
LARGE = 150  # candidates: with more of them fewer rows are kept, and fewer choices are searched for
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
    """The most that it keeps for backward in one step, without a checkpoint."""
    results: Results = NOTHING
    """What it keeps although it is checkpointed."""
    operators: tuple[tuple[int, ...], ...] = ()
    """By call: those whose results it keeps."""


class PlanLimits(NamedTuple):
    """What a plan may choose from."""

    keeps_results: bool = True
    """Whether modules may keep results of operators."""
    only: tuple[str, ...] = ()
    """Patterns of names of modules, of which one must match; none: any module."""
    without: tuple[str, ...] = ()
    """Patterns of names of modules that stay as they are."""
    edits: tuple[tuple[object, ...], ...] = ()
    """What else is different from the capture, without and with the plan, as replays have it."""

    def allows(self, name: str) -> bool:
        is_asked = not self.only or any(_matches(name, pattern) for pattern in self.only)
        return is_asked and not any(_matches(name, pattern) for pattern in self.without)


def _matches(name: str, pattern: str) -> bool:
    """The full name, or that below the root module."""
    return any(fnmatch.fnmatchcase(each, pattern) for each in (name, name.partition(".")[2]))


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

    def __init__(self, capture: Capture, device: str, limits: PlanLimits = PlanLimits()) -> None:  # noqa: B008
        self.capture = capture
        self.device = device
        self.limits = limits
        self._calls = calls_of(capture.stream, capture.device_number(device))
        capture.check_allocator()
        self._verified: dict[Choice, Verified] = {}
        self._ranges: dict[Choice, tuple[int, int]] = {}
        self._above: dict[tuple[Choice, bool], int] = {}
        """Budgets that choices do not fit, if one is careful or not."""
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
        whole = [_candidate(name, of_name, steps) for name, of_name in calls.items() if self.limits.allows(name)]
        whole = [candidate for candidate in whole if candidate.kept >= least]
        whole.sort(key=lambda candidate: (-candidate.kept, natural_key(candidate.name)))
        whole = sorted(whole[:_MOST_CANDIDATES], key=lambda candidate: (candidate.calls[0], candidate.name))
        self.module_names = [candidate.name for candidate in whole]
        if not self.limits.keeps_results or not self.capture.stream.has_operators:
            return whole
        sets = _Sets(self.capture, self.device, self._calls)
        found = [each for candidate in whole for each in (candidate, *sets.of(candidate, steps, least))]
        return found if len(found) <= _MOST_CANDIDATES else self._fewer(found)

    def _fewer(self, found: list[Candidate]) -> list[Candidate]:
        """All whole modules, and of the sets of results those of the modules that keep most."""
        room = _MOST_CANDIDATES - len(self.module_names)
        sets = sorted((each for each in found if each.results.at), key=lambda each: -each.kept)[:room]
        chosen = {(each.name, each.results.at) for each in sets}
        return [each for each in found if not each.results.at or (each.name, each.results.at) in chosen]

    def _find_around(self) -> list[frozenset[int]]:
        """By candidate, those in which it lies: by its name, or as one of its calls lies in one of theirs. With more
        results, a module lies in the same one with fewer, which saves more."""
        of_module: dict[str, list[int]] = {}
        for i, candidate in enumerate(self.candidates):
            of_module.setdefault(candidate.name, []).append(i)
        owner = {call: candidate.name for candidate in self.candidates for call in candidate.calls}
        found = []
        outer: dict[str, set[int]] = {}
        for i, candidate in enumerate(self.candidates):
            if candidate.name not in outer:
                names = {name for name in of_module if candidate.name.startswith(f"{name}.")}
                for call in candidate.calls:
                    parent = self._calls[call].parent
                    while parent is not None:
                        names |= {owner[parent]} if parent in owner else set()
                        parent = self._calls[parent].parent
                outer[candidate.name] = {j for name in names - {candidate.name} for j in of_module[name]}
            same = {j for j in of_module[candidate.name] if j < i}
            found.append(frozenset(outer[candidate.name] | same))
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
        return self.cost_of(self.candidates[candidate])

    def cost_of(self, found: Candidate) -> float:
        return max(found.seconds, found.host_seconds) if self.step.host >= _NEARLY * self.step.device else found.seconds

    def calls_in_step(self, candidate: Candidate) -> int:
        """The most calls that the candidate has in one step."""
        return max(Counter(self._calls[call].step for call in candidate.calls).values())

    def seconds(self, choice: Iterable[int]) -> float:
        """How much longer a step is with the recomputations of a choice."""
        chosen = [self.candidates[i] for i in sorted(choice)]
        return self.step.added(sum(each.seconds for each in chosen), sum(each.host_seconds for each in chosen))

    def names(self, choice: Iterable[int]) -> list[str]:
        return [self.candidates[i].name for i in sorted(choice)]

    def plan(self, choice: Iterable[int], facts: Mapping[str, object] | None = None) -> Plan:
        keep: Keep = {self.candidates[i].name: self.candidates[i].results.places for i in choice}
        return plan_of(self.names(choice), facts, keep)

    def groups(self, choice: Iterable[int]) -> list[str]:
        """ "GPT.blocks.{0-5} (6 of 8), keep scaled_dot_product_attention": a line for modules that keep the same."""
        by_label: dict[str, list[str]] = {}
        for i in sorted(choice):
            by_label.setdefault(self.candidates[i].results.label, []).append(self.candidates[i].name)
        return [
            line + (f", keep {label}" if label else "")
            for label, names in by_label.items()
            for line in describe_groups(names, self.module_names)
        ]

    def edits(self, choice: Iterable[int]) -> list[tuple[object, ...]]:
        """What a replay of the choice changes."""
        found = [
            ("checkpoint", call, *((operators,) if operators else ()))
            for each in (self.candidates[i] for i in sorted(choice))
            for call, operators in zip(each.calls, each.operators or [()] * len(each.calls))
        ]
        return [*self.limits.edits, *found]

    # ---- replays ----

    def verify(self, choice: Choice) -> Verified:
        known = self._verified.get(choice)
        if known is None:
            known = self._verified[choice] = _verified(self._replay(choice))
        return known

    def reserved(self, choice: Choice) -> int:
        """The peak. Of a device without a caching allocator, what is allocated."""
        return self.verify(choice).reserved

    def fits(self, choice: Choice, budget: int, is_careful: bool = False) -> bool:
        """Whether no more is reserved with a choice, or, ``is_careful``, whatever is not known of lifetimes. A replay
        ends where it is known that it does not."""
        known, variants = self._verified.get(choice), _VARIANTS if is_careful and not self.is_cpu else 0
        above = max(self._above.get((choice, False), -1), self._above.get((choice, is_careful), -1))
        if above >= budget or (known is not None and known.reserved > budget):
            return False
        if known is not None and (not variants or choice in self._ranges):
            return not variants or self._ranges[choice][1] <= budget
        replay = self._replay(choice, variants=variants, limit=budget)
        if replay["reserved_peak"] <= budget:
            self._verified[choice] = _verified(replay)
        if replay["reserved_range"][1] > budget:
            self._above[choice, replay["reserved_peak"] <= budget] = budget
            return False
        if variants:
            self._ranges[choice] = replay["reserved_range"]
        return True

    def range_of(self, choice: Choice) -> tuple[int, int]:
        """The least and the most that may be reserved. How long Python holds the tensors of a checkpointed module is
        not in the capture, and other lifetimes leave other gaps."""
        if choice not in self._ranges:
            replay = self._replay(choice, variants=0 if self.is_cpu else _VARIANTS)
            self._ranges[choice] = replay["reserved_range"]
        return self._ranges[choice]

    def _replay(
        self, choice: Iterable[int], points: int = 0, variants: int = 0, limit: int | None = None
    ) -> _capture.Replay:
        edits = [*self.edits(choice), *([] if limit is None else [("stop_above", limit)])]
        return self.capture.replay(self.device, edits, points=points, folded=True, variants=variants)

    def _measure(self) -> list[Row]:
        without = [point[3] for point in self._replay((), _POINTS)["curve"]]
        with ThreadPoolExecutor() as threads:
            replays = threads.map(lambda i: self._replay((i,), _POINTS)["curve"], range(len(self.candidates)))
            saved = [[before - point[3] for before, point in zip(without, curve)] for curve in replays]
        return _reduce(without, saved)


def _reduce(without: Sequence[int], saved: Sequence[Sequence[int]]) -> list[Row]:
    """Of moments with the same savings only the one that needs most. If there are too many, those that need most."""
    highest: dict[tuple[int, ...], int] = {}
    for needed, column in zip(without, zip(*saved) if saved else ((),) * len(without)):
        if needed > highest.get(column, -1):
            highest[column] = needed
    rows = [Row(needed, column) for column, needed in highest.items()]
    rows.sort(key=lambda row: (-row.needed, row.saved))
    return rows[: _MOST_ROWS if len(saved) <= LARGE else _FEWER_ROWS]


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


class _Sets:
    """The sets of results of modules. Those of equal modules are found once."""

    def __init__(self, capture: Capture, device: str, calls: Sequence[Call]) -> None:
        self._stream, self._number, self._calls = capture.stream, capture.device_number(device), calls
        self._known: dict[tuple[object, ...], list[Results]] = {}

    def of(self, candidate: Candidate, steps: dict[int, int], least: float) -> list[Candidate]:
        """The candidate with each set, from the fewest results on. Empty if its calls do not run the same operators."""
        operators = [[Operator(*each) for each in self._stream.operators(i, self._number)] for i in candidate.calls]
        names = [[each.name for each in of_call] for of_call in operators]
        if any(other != names[0] for other in names):
            return []
        key = (candidate.kept, *((each.name, each.bytes, each.nanoseconds, each.flags) for each in operators[-1]))
        if key not in self._known:
            self._known[key] = find_sets(operators[-1], candidate.kept)
        return [
            self._with(candidate, results, operators, steps)
            for results in self._known[key]
            if candidate.kept - results.bytes >= least
        ]

    def _with(
        self, candidate: Candidate, results: Results, operators: list[list[Operator]], steps: dict[int, int]
    ) -> Candidate:
        counted = [i for i, call in enumerate(candidate.calls) if self._calls[call].step in steps]
        counted = counted or list(range(len(candidate.calls)))
        calls = [self._calls[candidate.calls[i]] for i in counted]
        saved = sum(
            operators[i][at].nanoseconds * call.stands_for for i, call in zip(counted, calls) for at in results.at
        )
        count = sum({call.step: call.stands_for for call in calls}.values())
        return candidate._replace(
            seconds=max(candidate.seconds - saved / 1e9 / count, 0.0),
            host_seconds=candidate.host_seconds
            + KEPT_SECONDS * len(results.at) * sum(call.stands_for for call in calls) / count,
            results=results,
            operators=tuple(tuple(of_call[at].number for at in results.at) for of_call in operators),
        )


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
