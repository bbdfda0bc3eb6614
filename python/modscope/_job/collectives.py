"""The collectives of all ranks of a job: totals of each kind, groups whose ranks did not launch the same, and the words
for them in ``modscope summary`` and on the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from modscope._job.failure import find_incomplete, has_failed, whole_or_all, why_incomplete
from modscope._job.job import describe_ranks
from modscope._job.job import group as group_by
from modscope._job.read import GroupSums, KindSums, Rank
from modscope._read.load import load
from modscope._read.text import clean, counted, describe_moment, duration, size
from modscope._read.types import Collective, CollectiveGroup

MESSAGES = ("send", "recv")
_DIFFERENT_BYTES = ("gather", "scatter", "all_to_all")  # on the ranks of a group, as C's sums have it
_DIVERGENCES = 4  # A mismatch shows so many; each needs a capture read again.


class KindTotal(NamedTuple):
    """One kind of collective over all ranks."""

    kind: str
    launches: int
    bytes: int
    seconds: float | None
    """The time on all ranks together; None if no time is known."""
    each: list[KindSums]
    """The sums of each rank, in the order of the ranks."""


class Part(NamedTuple):
    """Ranks of a group that launched the same."""

    ranks: list[Rank]
    launched: int
    kinds: dict[str, KindSums]


class Divergence(NamedTuple):
    """Where ranks launched the first collective that others did not."""

    ranks: list[Rank]
    number: int
    """Which one of the group it is, from 1."""
    usual: Collective | None
    """What most ranks launched; None: nothing more."""
    these: Collective | None


class Mismatch(NamedTuple):
    """A group whose ranks launched different collectives."""

    group: CollectiveGroup
    parts: list[Part]
    """Ranks that launched the same, the largest part first."""
    divergences: list[Divergence]


# ---- totals ----


def sums_of_rank(rank: Rank) -> dict[str, KindSums]:
    found: dict[str, KindSums] = {}
    for sums in rank.collectives:
        for kind, more in sums.kinds.items():
            found[kind] = KindSums(*(a + b for a, b in zip(found.get(kind, (0, 0, 0, 0)), more)))
    return found


def kind_totals(ranks: Sequence[Rank]) -> list[KindTotal]:
    """The totals of each kind of collective, that with most bytes first."""
    each = [sums_of_rank(rank) for rank in ranks]
    nothing = KindSums(0, 0, 0, 0)
    rows = []
    for kind in dict.fromkeys(kind for one in each for kind in one):
        of_kind = [one.get(kind, nothing) for one in each]
        timed = any(one.timed for one in of_kind)
        seconds = sum(one.nanoseconds for one in of_kind) / 1e9 if timed else None
        rows.append(
            KindTotal(kind, sum(one.launches for one in of_kind), sum(one.bytes for one in of_kind), seconds, of_kind)
        )
    return sorted(rows, key=lambda row: (-row.bytes, -row.launches, row.kind))


# ---- mismatches ----


def _ranges_of(text: str) -> list[range] | None:
    """The ranks of a group, from their text ("0-7", "0-56:8", "1,5-7"); None if it cannot be read."""
    ranges = []
    for part in text.split(","):
        bounds, _, step = part.partition(":")
        first, _, last = bounds.partition("-")
        numbers = (first, last or first, step or "1")
        if (
            not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers)
            or int(numbers[2]) == 0
        ):
            return None
        ranges.append(range(int(first), int(numbers[1]) + 1, int(numbers[2])))
    return ranges


def _by_group(ranks: Sequence[Rank]) -> dict[CollectiveGroup, dict[int, GroupSums]]:
    """What the ranks launched in each group, by their numbers. A rank that is in a group and launched nothing there
    counts too, if the group says completely which ranks it has."""
    found: dict[CollectiveGroup, dict[int, GroupSums]] = {}
    for rank in ranks:
        for sums in rank.collectives:
            found.setdefault(sums.group, {})[rank.number] = sums
    for group, members in found.items():
        ranges = _ranges_of(group.ranks) or [] if len(members) < group.size else []
        if sum(map(len, ranges)) == group.size:
            for rank in ranks:
                if rank.number not in members and any(rank.number in one for one in ranges):
                    members[rank.number] = GroupSums(group, 0, (), {})
    return found


def _same(a: Collective, b: Collective) -> bool:
    return a.kind == b.kind and (a.bytes == b.bytes or a.kind in _DIFFERENT_BYTES)


def _launches(rank: Rank, group: CollectiveGroup) -> list[Collective]:
    return [one for one in load(rank.file).collectives() if one.group == group and one.kind not in MESSAGES]


def _divergences(group: CollectiveGroup, parts: Sequence[Part]) -> list[Divergence]:
    usual = _launches(parts[0].ranks[0], group)
    found = []
    for part in parts[1 : 1 + _DIVERGENCES]:
        these = _launches(part.ranks[0], group)
        both = min(len(usual), len(these))
        at = next((i for i in range(both) if not _same(usual[i], these[i])), both)
        if at < max(len(usual), len(these)):
            found.append(
                Divergence(
                    part.ranks, at + 1, usual[at] if at < len(usual) else None, these[at] if at < len(these) else None
                )
            )
    return found


def _agrees(these: Sequence[Collective], usual: Sequence[Collective], last_step: int) -> bool:
    """Whether a capture that was not closed has what others launched, up to its last step: what it has of that step may
    lack the end, and of the steps before it nothing is missing."""
    if not all(_same(one, other) for one, other in zip(these, usual)):
        return False
    return len(these) >= len(usual) or usual[len(these)].step >= last_step


def _parts(ranks: Sequence[Rank], members: dict[int, GroupSums]) -> list[Part]:
    """Divide ranks by the order of their collectives, the largest part first."""
    alike = group_by(ranks, lambda rank: members[rank.number].order).values()
    parts = [Part(some, members[some[0].number].launched, members[some[0].number].kinds) for some in alike]
    return sorted(parts, key=lambda part: (-len(part.ranks), part.ranks[0].number))


def _add_unclosed(parts: list[Part], unclosed: Sequence[Part], group: CollectiveGroup) -> list[Part]:
    """Add to ``parts`` those of captures that were not closed whose collectives differ before they end. Beside a
    capture that was closed, one that has more differs, too."""
    if not unclosed:
        return parts
    longest_first = sorted(unclosed, key=lambda part: -part.launched)
    found = parts or [longest_first.pop(0)]
    usual = _launches(found[0].ranks[0], group)
    most = len(usual) if parts else None
    for part in longest_first:
        these = _launches(part.ranks[0], group) if part.launched else []
        is_more = most is not None and len(these) > most
        different = [rank for rank in part.ranks if is_more or not _agrees(these, usual, rank.steps)]
        if different:
            found.append(part._replace(ranks=different))
    return found


def find_mismatches(ranks: Sequence[Rank]) -> list[Mismatch]:
    """Groups whose ranks launched different collectives, or the same ones in another order. Ranks of a group wait for
    each other in each collective, so this is how jobs hang. Messages, and groups that no capture describes, are not
    compared. Of a capture that was not closed only what it has is compared, and nothing of one that was cut short, is
    damaged or lost events."""
    found = []
    for group, members in _by_group(ranks).items():
        if group.size < 2:
            continue
        here = group_by((rank for rank in ranks if rank.number in members), why_incomplete)
        unclosed = _parts(here.get("not closed", []), members)
        parts = _add_unclosed(_parts(here.get(None, []), members), unclosed, group)
        if len(parts) > 1:
            found.append(Mismatch(group, parts, _divergences(group, parts)))
    return found


# ---- in words ----

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
    """Say what ranks launched: "ranks 0-2 launched all_reduce of 4.00 MiB in step 3, backward of Net.0". ``other``:
    what the other ranks launched."""
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
    """What each rank launched: "12, 3.00 MiB" or "11 to 12, 2.75 MiB to 3.00 MiB, 1.20 s to 3.40 s (rank 3)". The bytes
    are left out if that is longer than ``most``, and the times if it still is."""
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
