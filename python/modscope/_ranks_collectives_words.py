"""The collectives of all ranks in words, for ``modscope summary`` and the page of a job. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modscope._capture_types import Collective, CollectiveGroup
from modscope._ranks_collectives import MESSAGES, Divergence, KindTotal, Part
from modscope._ranks_failure import has_failed
from modscope._ranks_incomplete import find_incomplete, whole_or_all
from modscope._ranks_job import describe_ranks
from modscope._ranks_read import Rank
from modscope._text import clean, counted, describe_moment, duration, size

__all__ = [
    "WHY_IT_HANGS",
    "collectives_title",
    "describe_divergence",
    "describe_each",
    "describe_group",
    "describe_part",
]

WHY_IT_HANGS = (
    "Ranks of a group wait for each other in each collective, so a job hangs where they launch different ones."
)


def collectives_title(ranks: Sequence[Rank]) -> str:
    """What the totals are of: ranks whose captures lack something are not counted, unless there are no others."""
    counted_ranks = whole_or_all(ranks)
    if len(counted_ranks) < len(ranks):
        return f"Collectives of {describe_ranks(counted_ranks)}"
    return "Collectives of all ranks" + (" (recorded)" if find_incomplete(ranks) else "")


def describe_group(group: CollectiveGroup) -> str:
    return clean(f"{group.name}, {counted(group.size, 'rank')} ({group.ranks}) over {group.backend}")


def _describe_launch(one: Collective | None, ranks: Sequence[Rank], other: Collective | None) -> str:
    """ "ranks 0-2 launched all_reduce of 4.00 MiB in step 3, backward of Net.0". ``other``: what the other ranks launched."""
    who = describe_ranks(ranks)
    if one is None:
        last = min(rank.steps for rank in ranks)
        if other and last > other.step:
            return f"{who} launched nothing more and went on to step {last}"
        failed = ", because it failed" if len(ranks) == 1 and has_failed(ranks[0]) else ""
        return f"{who} launched nothing more{failed}"
    amount = f" of {size(one.bytes)}" if one.bytes else ""
    return f"{who} launched " + clean(f"{one.kind}{amount} {describe_moment(one.step, one.phase, one.module)}")


def _range(values: Sequence[int], text: Callable[[int], str]) -> str:
    least, most = text(min(values)), text(max(values))
    return least if least == most else f"{least} to {most}"


def describe_each(one: KindTotal, ranks: Sequence[Rank], most: int = 200) -> str:
    """ "12, 3.00 MiB" or "11 to 12, 2.75 MiB to 3.00 MiB, 1.20 s to 3.40 s (rank 3)". Without the bytes if that is longer than
    ``most``, and without the times if it still is."""
    whole = ", ".join(_parts_of_each(one, ranks))
    if len(whole) <= most:
        return whole
    short = ", ".join(_parts_of_each(one, ranks, with_bytes=False))
    return short if len(short) <= most else _parts_of_each(one, ranks)[0]


def _parts_of_each(one: KindTotal, ranks: Sequence[Rank], with_bytes: bool = True) -> list[str]:
    parts = [_range([sums.launches for sums in one.each], str)]
    if one.bytes and with_bytes:
        parts.append(_range([sums.bytes for sums in one.each], size))
    if one.seconds is not None:
        times = [sums.nanoseconds for sums in one.each]
        spread = _range(times, lambda value: duration(value / 1e9))
        parts.append(spread + (f" (rank {ranks[times.index(max(times))].number})" if " to " in spread else ""))
    return parts


def describe_part(part: Part) -> str:
    counts = [f"{sums.launches} {kind}" for kind, sums in sorted(part.kinds.items()) if kind not in MESSAGES]
    return f"{counted(part.launched, 'collective')}" + (f" ({', '.join(counts)})" if counts else "")


def describe_divergence(one: Divergence, usual: Sequence[Rank]) -> str:
    these, those = _describe_launch(one.these, one.ranks, one.usual), _describe_launch(one.usual, usual, one.these)
    return f"Number {one.number} of this group: {those}; {these}."
