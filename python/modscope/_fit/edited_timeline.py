"""The timeline of an edited run, as the page draws it over the real one. Needs no torch.

A replay gives its curve for equal parts of the capture's own events. What an edit inserts, such as a recomputation, has
no events in the capture: it belongs to the event before which it happens. So the edited and the real timeline have the
same horizontal axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from modscope._read.summary import Report
from modscope._read.text import size

POINTS = 4096
"""The most points that a curve has. Each stands for as many events, and has the highest figures of them."""

Point = tuple[int, int, int, int]
"""The number and the time of its first event, reserved and allocated bytes."""
Window = tuple[int, int | None]
"""The first moment that the page shows and the one after the last; None: all that follow."""
Changes = Callable[[Window], Report]
"""Makes what the page says about changes of a run."""


def moments_of(curve: Sequence[Point]) -> list[int]:
    """The first moment of each point: the one after its first event. It is the same for every edit of a capture."""
    return _differences(number + 1 for number, *_ in curve)


def lines_of(curve: Sequence[Point]) -> Report:
    return {
        "reserved_curve": _differences(point[2] for point in curve),
        "allocated_curve": _differences(point[3] for point in curve),
    }


def describe_difference(before: int, after: int) -> str:
    """A sentence on how much lower a peak is."""
    if after == before:
        return f"as much as the {size(before)} without it"
    return f"{size(abs(before - after))} {'less' if after < before else 'more'} than the {size(before)} without it"


def _differences(values: Iterable[int]) -> list[int]:
    return [after - before for before, after in pairwise((0, *values))]
