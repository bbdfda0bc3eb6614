"""Collectives as ``modscope summary`` shows them: of one capture, and of all ranks of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from modscope._job.collectives import (
    WHY_IT_HANGS,
    Mismatch,
    collectives_title,
    describe_divergence,
    describe_each,
    describe_group,
    describe_part,
    find_mismatches,
    kind_totals,
    sums_of_rank,
)
from modscope._job.failure import whole_or_all
from modscope._job.job import describe_ranks
from modscope._job.read import Rank
from modscope._read.groups import group_modules
from modscope._read.summary import CollectiveGroupReport, Report, group_report, predicted_on
from modscope._read.text import clean, counted, duration, size
from modscope._read.types import Collective
from modscope._show.terminal import Screen

# ---- one capture ----

_ROWS = 10
_WHAT_TIME_IS = (
    "Times include waiting for other ranks. Those of send and recv last until the program's wait for them returned."
)


def _group(group: Report) -> str:
    if not group["size"]:
        return "not recorded"
    return f"{counted(group['size'], 'rank')} ({clean(group['ranks'])})"


def _modules(modules: list[Report]) -> str:
    """The modules for which most bytes went through."""
    groups = group_modules(modules, lambda one: str(one["module"]), lambda one: (one["count"], one["bytes"]))
    if not groups:
        return ""
    groups.sort(key=lambda group: -sum(int(one["bytes"]) for one in group.members))
    others = sum(len(group.members) for group in groups[1:])
    return clean(groups[0].name) + (f" and {others} more" if others else "")


def collectives_text(result: Report, screen: Screen) -> list[str]:
    """A row for each kind and group: how many in a step, their bytes, their ranks, their modules."""
    rows = []
    steps = result["steps"]
    timed = any((row if steps else row["before_steps"])["seconds"] for row in result["collectives"])
    for row in result["collectives"]:
        sums = row if steps else row["before_steps"]
        if sums["count"]:
            per_step = sums["count"] / (steps or 1)
            count = f"{per_step:.0f}" if per_step.is_integer() else f"{per_step:.1f}"
            cells = ["  " + row["kind"], count, size(sums["bytes"] // (steps or 1))]
            cells += [duration(sums["seconds"] / (steps or 1)) if sums["seconds"] else ""] if timed else []
            rows.append((*cells, _group(row["group"]), _modules(row["modules"])))
    before = [row["before_steps"] for row in result["collectives"] if row["before_steps"]["count"]]
    is_even = all(row["count"] % steps == 0 for row in result["collectives"]) if steps else True
    head = ("Collectives, each step" if is_even else "Collectives, average step") if steps else "Collectives"
    headers = (head, "count", "bytes", *(["time"] if timed else []), "group", "modules")
    out = screen.table(headers, rows[:_ROWS], left=(0, len(headers) - 2)) if rows else [screen.bold("Collectives")]
    if len(rows) > _ROWS:
        out.append(f"  ({counted(len(rows) - _ROWS, 'more row')})")
    if timed and predicted_on(result["info"]) is None:
        out += [f"  {line}" for line in screen.wrap(_WHAT_TIME_IS)]
    if steps and before:
        launched = counted(sum(sums["count"] for sums in before), "collective")
        out.append(f"  Before the first step: {launched}, {size(sum(sums['bytes'] for sums in before))}")
    return out


# ---- the ranks of a job ----

_LEAST_ROOM = 20  # columns: with less, the last column is on a line of its own
_MISMATCHES = 3
_PARTS = 4


# ---- as figures ----


def rank_collectives_report(rank: Rank) -> dict[str, RankLaunches]:
    return {
        kind: {"count": sums.launches, "bytes": sums.bytes, "seconds": sums.nanoseconds / 1e9 if sums.timed else None}
        for kind, sums in sums_of_rank(rank).items()
    }


class RankLaunches(TypedDict):
    """The collectives of one kind that a rank launched."""

    count: int
    bytes: int
    seconds: float | None


class JobCollectives(RankLaunches):
    """The collectives of one kind on all ranks together."""

    kind: str


class MismatchPart(TypedDict):
    """Ranks that launched the same."""

    ranks: list[int]
    count: int
    kinds: dict[str, int]


class Launch(TypedDict):
    """A collective that was launched."""

    kind: str
    bytes: int
    step: int
    phase: str
    module: str
    time: float


class DivergenceReport(TypedDict):
    """The first collective that is not the same."""

    ranks: list[int]
    number: int
    usual: Launch | None
    these: Launch | None


class MismatchReport(TypedDict):
    """A group whose ranks launched different collectives."""

    group: CollectiveGroupReport
    parts: list[MismatchPart]
    divergences: list[DivergenceReport]


def _launch_report(one: Collective | None) -> Launch | None:
    return (
        None
        if one is None
        else {
            "kind": one.kind,
            "bytes": one.bytes,
            "step": one.step,
            "phase": one.phase,
            "module": one.module,
            "time": one.time,
        }
    )


def _mismatch_report(one: Mismatch) -> MismatchReport:
    return {
        "group": group_report(one.group),
        "parts": [
            {
                "ranks": [rank.number for rank in part.ranks],
                "count": part.launched,
                "kinds": {kind: sums.launches for kind, sums in part.kinds.items()},
            }
            for part in one.parts
        ],
        "divergences": [
            {
                "ranks": [rank.number for rank in split.ranks],
                "number": split.number,
                "usual": _launch_report(split.usual),
                "these": _launch_report(split.these),
            }
            for split in one.divergences
        ],
    }


def kind_reports(ranks: Sequence[Rank]) -> list[JobCollectives]:
    return [
        {"kind": one.kind, "count": one.launches, "bytes": one.bytes, "seconds": one.seconds}
        for one in kind_totals(whole_or_all(ranks))
    ]


def mismatch_reports(ranks: Sequence[Rank]) -> list[MismatchReport]:
    return [_mismatch_report(one) for one in find_mismatches(ranks)]


# ---- as text ----


def _mismatch(one: Mismatch, screen: Screen) -> list[str]:
    out = ["  " + screen.cut(describe_group(one.group), screen.width - 2)]
    out += [
        "    " + screen.cut(f"{describe_ranks(part.ranks)}: {describe_part(part)}", screen.width - 4)
        for part in one.parts[:_PARTS]
    ]
    left = sum(len(part.ranks) for part in one.parts[_PARTS:])
    out += [f"    ({counted(left, 'more rank')}: --json shows all)"] if left else []
    for split in one.divergences[:1]:
        out += [f"    {line}" for line in screen.wrap(describe_divergence(split, one.parts[0].ranks))]
    return out


def job_collectives_text(ranks: Sequence[Rank], screen: Screen) -> list[str]:
    """Totals of each kind, and groups whose ranks launched different collectives. Empty if no rank launched any."""
    whole = whole_or_all(ranks)
    totals = kind_totals(whole)
    if not totals:
        return []
    timed = any(one.seconds is not None for one in totals)
    rows = []
    for one in totals:
        time = ["" if one.seconds is None else duration(one.seconds)] if timed else []
        rows.append(["  " + one.kind, str(one.launches), size(one.bytes), *time])
    headers = [collectives_title(ranks), "count", "bytes", *(["time"] if timed else []), "on each rank"]
    room = screen.width - sum(max(len(row[i]) for row in (headers, *rows)) + 2 for i in range(len(headers) - 1))
    each = [describe_each(one, whole, max(room, _LEAST_ROOM)) for one in totals]
    out = screen.table(headers, [[*row, last] for row, last in zip(rows, each, strict=True)], left=(0,))
    mismatches = find_mismatches(ranks)
    if not mismatches:
        return out
    out += [
        "",
        screen.bold("Ranks that launched different collectives"),
        *(f"  {line}" for line in screen.wrap(WHY_IT_HANGS)),
    ]
    for mismatch in mismatches[:_MISMATCHES]:
        out += _mismatch(mismatch, screen)
    left = len(mismatches) - _MISMATCHES
    return out + ([f"  ({counted(left, 'more group')}: --json shows all)"] if left > 0 else [])
