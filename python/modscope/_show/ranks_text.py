"""A job on one screen: ``modscope summary`` of the captures of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from modscope._job.failure import (
    describe_failure,
    describe_incomplete,
    failure_order,
    find_compared,
    find_incomplete,
    whole_or_all,
    why_incomplete,
)
from modscope._job.job import (
    Comparison,
    Difference,
    DistributedJob,
    compare_ranks,
    describe_job,
    describe_missing,
    describe_ranks,
    describe_step_times,
    find_extremes,
    find_nodes,
    group,
    group_rows,
    sums_by_category,
    sums_by_kind,
)
from modscope._job.read import Rank
from modscope._read.categories import CATEGORIES, KINDS, category_of, category_word
from modscope._read.summary import OutOfMemory
from modscope._read.text import (
    at_least,
    change,
    clean,
    counted,
    describe_moment,
    duration,
    percent,
    shorten_middle,
    size,
)
from modscope._show.collectives import (
    JobCollectives,
    MismatchReport,
    RankLaunches,
    job_collectives_text,
    kind_reports,
    mismatch_reports,
    rank_collectives_report,
)
from modscope._show.terminal import Screen

_PEAKS = 8  # rows
_GROUPS = 4  # So many groups of ranks that differ are shown.
_ROWS = 3  # Each group shows so many modules.
_ENDS = 8
_NODES = 8
_NAME = 30  # columns of "ranks 0-3, 5"


# ---- as figures ----


class RankPeak(TypedDict):
    """When a rank held most."""

    bytes: int
    step: int
    phase: str
    module: str
    time: float
    reserved: int


class RankSums(TypedDict):
    """The capture of a rank."""

    file: str
    rank: int
    local_rank: int | None
    node: str
    host: str
    attempt: int
    device: str
    peak: RankPeak | None
    peak_reserved: int
    categories: dict[str, int]
    kinds: dict[str, int]
    began: float | None
    duration: float
    steps: int
    optimizer_steps: int
    step_ms: float | None
    end: dict[str, str] | None
    last_oom: OutOfMemory | None
    is_lower_bound: bool
    incomplete: str | None
    lost: int
    damaged: int
    collectives: dict[str, RankLaunches]


class IncompleteRank(TypedDict):
    """A capture that lacks a part of its run."""

    rank: int
    why: str
    last_step: int


class RankDifferenceRow(TypedDict):
    """A module of which these ranks hold something else."""

    module: str
    category: str
    kind: str | None
    usual: int
    these: int
    change: int


class RankDifference(TypedDict):
    """Ranks that hold something else than most."""

    ranks: list[int]
    change: int
    modules: list[RankDifferenceRow]


class SummaryOfJob(TypedDict):
    """A job."""

    program: str
    world: int
    attempt: int
    is_lower_bound: bool
    missing: list[list[int]]
    left_out: list[str]
    failure: str | None
    incomplete: list[IncompleteRank]
    ranks: list[RankSums]
    earlier: list[RankSums]
    compared: list[int]
    usual: list[int]
    differences: list[RankDifference]
    collectives: list[JobCollectives]
    collectives_of: list[int]
    mismatches: list[MismatchReport]


def rank_report(rank: Rank) -> RankSums:
    identity, peak = rank.identity, rank.peak
    return {
        "file": rank.file,
        "rank": rank.number,
        "local_rank": identity.local_rank if identity else None,
        "node": identity.node if identity else "",
        "host": identity.host if identity else "",
        "attempt": identity.attempt if identity else 0,
        "device": rank.device,
        "peak": None
        if peak is None
        else {
            "bytes": peak.bytes,
            "step": peak.step,
            "phase": peak.phase,
            "module": peak.module,
            "time": peak.time,
            "reserved": peak.reserved,
        },
        "peak_reserved": rank.reserved,
        "categories": dict(zip(map(str, CATEGORIES), sums_by_category(rank))),
        "kinds": {str(kind): value for kind, value in zip(KINDS, sums_by_kind(rank)) if value},
        "began": rank.began,
        "duration": rank.duration,
        "steps": rank.steps,
        "optimizer_steps": rank.optimizer_steps,
        "step_ms": rank.step_ms,
        "end": None if rank.end is None else dict(rank.end),
        "last_oom": rank.oom,
        "is_lower_bound": rank.is_lower_bound,
        "incomplete": why_incomplete(rank),
        "lost": rank.lost,
        "damaged": rank.damaged,
        "collectives": rank_collectives_report(rank),
    }


def job_report(job: DistributedJob) -> SummaryOfJob:
    peers = find_compared(job.ranks)
    compared = compare_ranks(peers)
    return {
        "program": job.program,
        "world": job.world,
        "attempt": job.attempt,
        "is_lower_bound": any(rank.is_lower_bound for rank in job.ranks),
        "missing": [list(run) for run in job.missing],
        "left_out": job.left_out,
        "failure": describe_failure(job.ranks) or None,
        "incomplete": [
            {"rank": rank.number, "why": why, "last_step": rank.steps}
            for rank in job.ranks
            if (why := why_incomplete(rank))
        ],
        "ranks": [rank_report(rank) for rank in job.ranks],
        "earlier": [rank_report(rank) for ranks in job.earlier for rank in ranks],
        "compared": [rank.number for rank in peers],
        "usual": [rank.number for rank in compared.usual],
        "differences": [_difference_report(one) for one in compared.differences],
        "collectives": kind_reports(job.ranks),
        "collectives_of": [rank.number for rank in whole_or_all(job.ranks)],
        "mismatches": mismatch_reports(job.ranks),
    }


def _difference_report(one: Difference) -> RankDifference:
    rows: list[RankDifferenceRow] = [
        {
            "module": module,
            "category": str(category_word(word)),
            "kind": str(word) if word in KINDS else None,
            "usual": a,
            "these": b,
            "change": b - a,
        }
        for module, word, a, b in one.rows
    ]
    return {"ranks": [rank.number for rank in one.ranks], "change": one.change, "modules": rows}


# ---- as text ----


def job_text(job: DistributedJob, screen: Screen) -> list[str]:
    out = [screen.bold(screen.cut(describe_job(job), screen.width))]
    for sentence in filter(None, (describe_failure(job.ranks), describe_missing(job), *job.left_out)):
        out += screen.wrap(sentence)
    compared = find_compared(job.ranks)
    for part in (
        _ends(job.ranks, screen),
        _incomplete(job.ranks, screen),
        _peaks(job.ranks, compared, screen),
        _categories(compared, screen),
        _differences(compare_ranks(compared), screen),
        _nodes(job, screen),
        job_collectives_text(job.ranks, screen),
        *(_earlier(ranks, screen) for ranks in job.earlier),
    ):
        out += ["", *part] if part else []
    return out


def _lines(words: Sequence[tuple[Sequence[Rank], str]], screen: Screen, most: int) -> list[str]:
    out = []
    for members, text in words[:most]:
        out.append("  " + screen.cut(f"{_short(members)}: {text}", screen.width - 2))
    left = len({rank.number for members, _ in words[most:] for rank in members})
    return out + ([f"  ({counted(left, 'more rank')}: --json shows all)"] if left else [])


def _short(ranks: Sequence[Rank]) -> str:
    return shorten_middle(describe_ranks(ranks), _NAME + 10)


def _ends(ranks: Sequence[Rank], screen: Screen) -> list[str]:
    """How long the ranks ran, and how they ended, each once for all ranks of which it is true. How many steps a rank
    took whose capture ends early is not known."""
    longest = max(rank.duration for rank in ranks)
    whole = [rank for rank in ranks if rank.end is not None]
    lengths = group(whole, lambda rank: (rank.steps, rank.optimizer_steps))
    said = [
        (members, f"{counted(done, 'optimizer step')}, {counted(steps, 'step')}")
        for (steps, done), members in lengths.items()
    ]
    ends = [(members, clean(text)) for text, members in group(ranks, lambda rank: rank.how_it_ended).items()]
    out = []
    if not said:
        out.append(f"{duration(longest)}, as far as it was recorded")
    elif len(said) == 1:
        of_whole = f" ({describe_ranks(whole)})" if len(whole) < len(ranks) else ""
        a_step = describe_step_times(whole)
        out.append(f"{duration(longest)}, {said[0][1]}{f', {a_step}' if a_step else ''}{of_whole}")
    else:
        out += [
            f"{duration(longest)} at most; the ranks took different numbers of steps:",
            *_lines(said, screen, _ENDS),
            *(["Ends:"] if len(ends) > 1 else []),
        ]
    if len(ends) == 1:
        return [*out, screen.cut(ends[0][1] if len(ranks) == 1 else f"All ranks: {ends[0][1]}", screen.width)]
    unusual = sorted(ends, key=lambda one: (failure_order(one[0][0]), one[0][0].number))
    return [*out, *_lines(unusual, screen, _ENDS)]


def _incomplete(ranks: Sequence[Rank], screen: Screen) -> list[str]:
    sentences = describe_incomplete(ranks)
    if not sentences:
        return []
    title = "Incomplete capture" if len(find_incomplete(ranks)) == 1 else "Incomplete captures"
    return [screen.bold(title), *(f"  {line}" for sentence in sentences for line in screen.wrap(sentence))]


def _buckets(ranks: Sequence[Rank]) -> list[list[Rank]]:
    """Ranks with equal peaks, the highest first; where these are too many for a screen, ranks with similar peaks."""
    equal = group(ranks, lambda rank: rank.bytes)
    if len(equal) <= _PEAKS:
        return [equal[peak] for peak in sorted(equal, reverse=True)]
    low, high = min(equal), max(equal)
    parts = group(ranks, lambda rank: min((high - rank.bytes) * _PEAKS // max(high - low, 1), _PEAKS - 1))
    return [parts[part] for part in sorted(parts)]


def _peaks(ranks: Sequence[Rank], compared: Sequence[Rank], screen: Screen) -> list[str]:
    devices = {rank.device for rank in ranks if rank.device}
    where = f"on {clean(devices.pop())}" if len(devices) == 1 else "each on its main device"
    rows = []
    for members in _buckets(ranks):
        least, most = find_extremes(members)
        amount = (
            size(most.bytes) if size(least.bytes) == size(most.bytes) else f"{size(least.bytes)} to {size(most.bytes)}"
        )
        rows.append((members, at_least(any(rank.is_lower_bound for rank in members), amount), most))
    names = [shorten_middle(describe_ranks(members), _NAME, screen.dots) for members, _, _ in rows]
    name_width, width = max(map(len, names)), max(len(amount) for _, amount, _ in rows)
    out = [screen.bold(f"Peak of each rank, {where}")]
    for name, (_, amount, most) in zip(names, rows):
        room = screen.width - name_width - width - 6
        when = (
            describe_moment(most.peak.step, most.peak.phase, most.peak.module, None, room, screen.dots)
            if most.peak and room > 16
            else ""
        )
        out.append(f"  {name:{name_width}}  {screen.bold(amount.rjust(width))}  {when}".rstrip())
    low, high = find_extremes(compared)
    if len(compared) == 1:
        return (
            [*out, f"  Nothing is compared: only the peak of {describe_ranks(compared)} can be."]
            if len(ranks) > 1
            else out
        )
    if low.bytes == high.bytes:
        who = describe_ranks(compared)
        every = "Every rank has" if len(compared) == len(ranks) else f"{who[0].upper()}{who[1:]} have"
        return [*out, f"  {every} the same peak."]
    spread = f"Spread: {size(high.bytes - low.bytes)} ({percent(high.bytes - low.bytes, high.bytes)} of the highest)"
    return [
        *out,
        *(f"  {line}" for line in screen.wrap(f"{spread}, from {describe_ranks([low])} to {describe_ranks([high])}.")),
    ]


def _categories(ranks: Sequence[Rank], screen: Screen) -> list[str]:
    sums = [sums_by_category(rank) for rank in ranks]
    kinds = [sums_by_kind(rank) for rank in ranks]
    found = []
    for index, word in enumerate(CATEGORIES):
        values = [one[index] for one in sums]
        inside = [
            _spread(f"    {kind}", [one[at] for one in kinds], ranks)
            for at, kind in enumerate(KINDS)
            if category_of(kind) == word and any(one[at] for one in kinds)
        ]
        if max(values):
            found.append((max(values), [_spread(f"  {word}", values, ranks), *inside]))
    found.sort(key=lambda one: -one[0])
    rows = [row for _, members in found for row in members]
    if len(ranks) == 1:
        return screen.table(
            ("By category", "bytes", "held by"),
            [(row[0], row[2], f"rank {ranks[0].number}") for row in rows],
            left=(0,),
        )
    return screen.table(("By category", "least", "most", "spread", "most on"), rows, left=(0,))


def _spread(name: str, values: Sequence[int], ranks: Sequence[Rank]) -> tuple[str, ...]:
    """A row: the least and the most that a rank holds, the spread, and which rank holds the most."""
    least, most = min(values), max(values)
    holder = f"rank {ranks[values.index(most)].number}" if least != most else "all alike"
    return name, size(least), size(most), change(most - least) if least != most else "0 B", holder


def _differences(compared: Comparison, screen: Screen) -> list[str]:
    if not compared.differences:
        return []
    out = [screen.bold(screen.cut(f"What ranks hold more or less than {describe_ranks(compared.usual)}", screen.width))]
    for one in compared.differences[:_GROUPS]:
        out.append(f"  {_short(one.ranks)}: {screen.of_change(change(one.change), one.change)}")
        rows = group_rows(one)
        words = max(10, *(len(row.word) for row in rows[:_ROWS]), 0)
        for row in rows[:_ROWS]:
            name = screen.fit(row.name, screen.width - 20 - words)
            out.append(f"    {screen.of_change(change(row.change).rjust(11), row.change)}  {row.word:{words}}  {name}")
        if len(rows) > _ROWS:
            are_smaller = all(abs(row.change) <= abs(shown.change) for row in rows[_ROWS:] for shown in rows[:_ROWS])
            out.append(
                f"    ({counted(len(rows) - _ROWS, 'more row')}{' with smaller changes' if are_smaller else ''}: "
                f"--json shows all)"
            )
    left = sum(len(one.ranks) for one in compared.differences[_GROUPS:])
    return out + ([f"  ({counted(left, 'more rank')} that differ: --json shows all)"] if left else [])


def _nodes(job: DistributedJob, screen: Screen) -> list[str]:
    nodes = find_nodes(job.ranks)
    if len(nodes) < 2:
        return []
    out = [screen.bold("By node")]
    every = len(nodes) <= _NODES
    if not every:
        nodes.sort(key=lambda node: -find_extremes(node.ranks)[1].bytes)
    shown = nodes if every else nodes[: _NODES // 2]
    for node in shown:
        low, high = find_extremes(node.ranks)
        amount = size(low.bytes) if low.bytes == high.bytes else f"{size(low.bytes)} to {size(high.bytes)}"
        ranks = describe_ranks(node.ranks) if len(node.ranks) > 1 else f"rank {node.ranks[0].number}"
        out.append("  " + screen.cut(f"{node.name}: {ranks}, peak {amount}", screen.width - 2))
    return out + (
        [] if every else [f"  ({counted(len(nodes) - len(shown), 'more node')} with peaks that are not higher)"]
    )


def _earlier(ranks: Sequence[Rank], screen: Screen) -> list[str]:
    identity = ranks[0].identity
    assert identity is not None
    out = [
        screen.bold(
            f"Attempt {identity.attempt} of the launcher: {counted(len(ranks), 'capture')}, peak "
            f"{size(find_extremes(ranks)[1].bytes)}"
        )
    ]
    ends = [(members, clean(text)) for text, members in group(ranks, lambda rank: rank.how_it_ended).items()]
    return out + _lines(ends, screen, _ENDS)
