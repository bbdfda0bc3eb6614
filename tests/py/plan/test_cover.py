"""The greedy choice in C, against the same choice in slow Python."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from modscope._capture import Cover

Problem = tuple[list[float], list[tuple[int, tuple[int, ...]]], list[frozenset[int]]]


def slow_choice(problem: Problem, target: int) -> list[int] | None:
    costs, rows, around = problem
    missing = [needed - target for needed, _ in rows]
    chosen: set[int] = set()
    while any(value > 0 for value in missing):
        best, best_rate = None, 0.0
        for i, cost in enumerate(costs):
            if i in chosen or around[i] & chosen:
                continue
            inside = [other for other in chosen if i in around[other]]
            added = [saved[i] - sum(saved[other] for other in inside) for _, saved in rows]
            gain = sum(min(value, more) for value, more in zip(missing, added) if value > 0)
            rate = gain / max(cost - sum(costs[other] for other in sorted(inside)), 1e-9)
            if gain > 0 and rate > best_rate * (1 + 1e-9):
                best, best_rate = i, rate
        if best is None:
            return None
        inside = [other for other in chosen if best in around[other]]
        for row, (_, saved) in enumerate(rows):
            missing[row] -= saved[best] - sum(saved[other] for other in inside)
        chosen -= set(inside)
        chosen.add(best)
    return sorted(chosen)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Candidates are nested like modules: each lies in those before it that its parent lies in, and in its parent."""
    count = draw(st.integers(0, 8))
    around: list[frozenset[int]] = []
    for i in range(count):
        parent = draw(st.integers(-1, i - 1))
        around.append(around[parent] | {parent} if parent >= 0 else frozenset())
    costs = [float(draw(st.integers(1, 64))) for _ in range(count)]
    bytes = st.integers(-50, 200)
    rows = [
        (draw(st.integers(0, 600)), tuple(draw(bytes) for _ in range(count))) for _ in range(draw(st.integers(0, 6)))
    ]
    return costs, rows, around


@settings(max_examples=300, deadline=None)
@given(problems(), st.integers(0, 600))
def test_the_choice_is_that_of_the_slow_model(problem: Problem, target: int) -> None:
    assert Cover(*problem).choose(target) == slow_choice(problem, target)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="every candidate"):
        Cover([1.0, 2.0], [(5, (1,))], [frozenset(), frozenset()])
    with pytest.raises(ValueError, match="no such candidate"):
        Cover([1.0], [(5, (1,))], [frozenset({1})])
    with pytest.raises(ValueError, match="item for each candidate"):
        Cover([1.0], [(5, (1,))], [])
    with pytest.raises(TypeError):
        Cover([1.0], [(5, ("a",))], [frozenset()])  # type: ignore[arg-type]
