"""Sums over the collectives that one rank launched, as C makes them. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple

from modscope._capture_types import CollectiveGroup
from modscope._load import Capture

__all__ = ["GroupSums", "KindSums", "read_sums"]


class KindSums(NamedTuple):
    launches: int
    bytes: int
    nanoseconds: int
    """Of those whose time is known."""
    timed: int
    """How many these are."""


class GroupSums(NamedTuple):
    """What a rank launched in one group."""

    group: CollectiveGroup
    launched: int
    """How many collectives. Messages, which only two ranks take part in, are not counted."""
    order: tuple[int, ...]
    """Equal on two ranks that launched the same collectives in the same order."""
    kinds: dict[str, KindSums]
    """Messages too."""


def _add(a: KindSums, b: KindSums) -> KindSums:
    return KindSums(*(x + y for x, y in zip(a, b)))


def read_sums(capture: Capture) -> tuple[GroupSums, ...]:
    """A group that was destroyed and created again counts as one."""
    found: dict[CollectiveGroup, GroupSums] = {}
    for group, launched, order, rows in capture.collective_sums():
        before = found.get(group, GroupSums(group, 0, (), {}))
        kinds = dict(before.kinds)
        for kind, *sums in rows:
            kinds[kind] = _add(kinds.get(kind, KindSums(0, 0, 0, 0)), KindSums(*sums))
        orders = (*before.order, order) if launched else before.order
        found[group] = GroupSums(group, before.launched + launched, orders, kinds)
    return tuple(found.values())
