"""A continuous function of straight pieces through points, by least squares. Equal points always give equal pieces."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Pieces", "fit"]

_GOLDEN = 0.6180339887498949
_REFINEMENTS = 30  # of one break: each makes its interval shorter by the golden ratio
_ROUNDS = 3  # in which each break moves while the others stay


class Pieces(NamedTuple):
    slopes: list[float]
    intercepts: list[float]
    breaks: list[float]
    """Where the pieces begin, and where the last one ends."""

    def at(self, x: float) -> float:
        piece = min(max(bisect.bisect_right(self.breaks, x) - 1, 0), len(self.slopes) - 1)
        return self.slopes[piece] * x + self.intercepts[piece]


class _Points:
    """Points in the order of x, with the sums that an error needs, from each point on."""

    def __init__(self, points: list[tuple[float, float]]) -> None:
        self.x = [x for x, _ in points]

        def from_each_on(values: list[float]) -> list[float]:
            return [*reversed(list(accumulate(reversed(values)))), 0.0]

        self._x = from_each_on(self.x)
        self._xx = from_each_on([x * x for x in self.x])
        self._y = from_each_on([y for _, y in points])
        self._xy = from_each_on([x * y for x, y in points])
        self._yy = sum(y * y for _, y in points)

    def _product(self, a: float, b: float) -> float:
        """The sum of max(x - a, 0) * max(x - b, 0)."""
        first = bisect.bisect_left(self.x, max(a, b))
        return self._xx[first] - (a + b) * self._x[first] + a * b * (len(self.x) - first)

    def _sum(self, a: float) -> float:
        first = bisect.bisect_left(self.x, a)
        return self._x[first] - a * (len(self.x) - first)

    def solve(self, knots: Sequence[float]) -> tuple[float, list[float]]:
        """The squared error, and the value at the first knot followed by the change of slope at each knot."""
        size = len(knots) + 1
        rows = [[float(len(self.x)), *map(self._sum, knots), self._y[0]]]
        for a in knots:
            first = bisect.bisect_left(self.x, a)
            rows.append([self._sum(a), *(self._product(a, b) for b in knots), self._xy[first] - a * self._y[first]])
        values = _eliminate([list(row) for row in rows])
        explained = sum(value * row[size] for value, row in zip(values, rows))
        return self._yy - explained, values


def _eliminate(rows: list[list[float]]) -> list[float]:
    """The solution of the equations of a symmetric matrix. What they do not determine is 0."""
    size = len(rows)
    for i in range(size):
        scale = max(abs(rows[i][i]), 1e-300)
        for other in rows[i + 1 :]:
            factor = other[i] / rows[i][i] if scale > 1e-14 else 0.0
            for k in range(i, size + 1):
                other[k] -= factor * rows[i][k]
    values = [0.0] * size
    for i in reversed(range(size)):
        left = rows[i][size] - sum(rows[i][k] * values[k] for k in range(i + 1, size))
        values[i] = left / rows[i][i] if abs(rows[i][i]) > 1e-14 else 0.0
    return values


def _with_break(points: _Points, knots: list[float], at: float) -> float:
    return points.solve([*knots, at])[0]


def _best_break(points: _Points, knots: list[float]) -> float:
    """Where one more break leaves the least error: at a point first, then between its neighbours."""
    inner = sorted(set(points.x))[1:-1]
    errors = [_with_break(points, knots, x) for x in inner]
    at = min(range(len(inner)), key=errors.__getitem__)
    around = [points.x[0], *inner, points.x[-1]]
    candidates = [(errors[at], inner[at])]
    for low, high in ((around[at], around[at + 1]), (around[at + 1], around[at + 2])):
        for _ in range(_REFINEMENTS):
            left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
            if _with_break(points, knots, left) <= _with_break(points, knots, right):
                high = right
            else:
                low = left
        middle = (low + high) / 2
        candidates.append((_with_break(points, knots, middle), middle))
    return min(candidates)[1]


def fit(points: Sequence[tuple[float, float]], count: int) -> Pieces:
    """So many pieces at most: fewer where there are too few points. A single piece if there are less than three."""
    ordered = sorted(points)
    if len({x for x, _ in ordered}) < 2:
        mean = sum(y for _, y in ordered) / len(ordered) if ordered else 0.0
        at = ordered[0][0] if ordered else 0.0
        return Pieces([0.0], [mean], [at, at])
    sums = _Points(ordered)
    first, last = ordered[0][0], ordered[-1][0]
    count = max(1, min(count, len(set(sums.x)) - 1))
    breaks: list[float] = []
    while len(breaks) < count - 1:
        breaks.append(_best_break(sums, [first, *breaks]))
    for _ in range(_ROUNDS if len(breaks) > 1 else 0):
        for i in range(len(breaks)):
            others = [first, *breaks[:i], *breaks[i + 1 :]]
            moved = _best_break(sums, others)
            if _with_break(sums, others, moved) < _with_break(sums, others, breaks[i]):
                breaks[i] = moved
    breaks.sort()
    _, (value, *changes) = sums.solve([first, *breaks])
    slopes = list(accumulate(changes))
    intercepts = [value - slopes[0] * first]
    for i, at in enumerate(breaks):
        intercepts.append(intercepts[i] + (slopes[i] - slopes[i + 1]) * at)
    return Pieces(slopes, intercepts, [first, *breaks, last])
