"""Memory against time: plans of the whole job for several budgets, and what a module may keep for backward. Needs no
torch.

The knee of a curve is the point up to which memory is cheap: of all points between its ends, the one whose share of the
memory that can be saved exceeds its share of the time by most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from modscope._plan.problem import Candidate, Choice, Problem
from modscope._plan.search import EMPTY, Found, Search
from modscope._read.groups import group_modules, merge_numbers

Report = dict[str, Any]

_BUDGETS = 6
_GROUPS = 30  # of modules, those that keep most
_EQUAL = 0.05  # of what a module keeps: by so much equal modules may differ
_ONLY_INPUT = "only its input"
_EVERYTHING = "everything"


def knee_of(points: Sequence[tuple[float, float]]) -> int | None:
    """The index of the knee of points (bytes, seconds), from the most bytes to the fewest. None: there is none, as no
    point saves a larger share of the memory than it takes of the time."""
    if len(points) < 3:
        return None
    (most, least_time), (least, most_time) = points[0], points[-1]
    if most <= least or most_time <= least_time:
        return None

    def gain(i: int) -> float:
        return (most - points[i][0]) / (most - least) - (points[i][1] - least_time) / (most_time - least_time)

    best = max(range(1, len(points) - 1), key=gain)
    return best if gain(best) > 0 else None


# ---- the whole job ----


def choices_of_curve(problem: Problem, search: Search, found: Found) -> list[Choice]:
    """Plans for several budgets, from none at all to the one that reserves least."""
    highest, lowest = problem.reserved(EMPTY), problem.reserved(search.least())
    choices = {EMPTY, found.choice}
    greedy = Search(problem, use_highs=False)
    for i in range(1, _BUDGETS):
        other = greedy.find(lowest + (highest - lowest) * (_BUDGETS - 1 - i) // (_BUDGETS - 1))
        if other:
            choices.add(other.choice)
    points = sorted(choices, key=lambda choice: (-problem.reserved(choice), problem.seconds(choice), sorted(choice)))
    kept: list[Choice] = []
    for choice in points:
        while kept and problem.seconds(kept[-1]) >= problem.seconds(choice) and kept[-1] != found.choice:
            kept.pop()  # it needs more memory, and no less time
        kept.append(choice)
    return kept


# ---- a module ----


class _Point(NamedTuple):
    kept: int
    seconds: float
    what: str


def curves_of_modules(problem: Problem) -> list[Report]:
    """What modules may keep for backward, and how long it takes to compute the rest again in a step: by group of equal
    modules, those that keep most first."""
    by_name: dict[str, list[Candidate]] = {}
    for candidate in problem.candidates:
        by_name.setdefault(candidate.name, []).append(candidate)
    modules = [of_name for of_name in by_name.values() if not of_name[0].results.at]
    alike: dict[str, list[int]] = {}

    def key_of(of_module: list[Candidate]) -> int:
        """Modules that keep about as much have equal keys."""
        kept, known = of_module[0].kept, alike.setdefault(merge_numbers(of_module[0].name), [])
        near = next((other for other in known if abs(kept - other) <= _EQUAL * other), None)
        if near is None:
            known.append(near := kept)
        return near

    groups = group_modules(modules, lambda of_module: of_module[0].name, key_of)
    found = [_curve(problem, group.name, group.members) for group in groups]
    return sorted(found, key=lambda curve: -curve["kept"] * curve["count"])[:_GROUPS]


def _curve(problem: Problem, name: str, members: list[list[Candidate]]) -> Report:
    """That of the member which keeps most."""
    first = max(members, key=lambda of_module: of_module[0].kept)
    calls = problem.calls_in_step(first[0])
    points = [
        _Point(each.results.bytes * calls, problem.cost_of(each), each.results.label or _ONLY_INPUT) for each in first
    ]
    points = [_Point(first[0].kept, 0.0, _EVERYTHING), *sorted(points, key=lambda point: (-point.kept, point.seconds))]
    knee = knee_of([(point.kept, point.seconds) for point in points])
    return {
        "name": name,
        "count": len(members),
        "kept": first[0].kept,
        "points": [
            {"keep": point.what, "kept": point.kept, "ms": 1e3 * point.seconds, "is_knee": i == knee}
            for i, point in enumerate(points)
        ],
    }
