"""The collectives of all ranks of a job, as ``modscope summary`` shows them."""

from __future__ import annotations

from collections.abc import Sequence

from modscope._capture_types import Collective
from modscope._commands.terminal import Screen
from modscope._ranks_collectives import Mismatch, find_mismatches, kind_totals, sums_of_rank
from modscope._ranks_collectives_words import (
    WHY_IT_HANGS,
    collectives_title,
    describe_divergence,
    describe_each,
    describe_group,
    describe_part,
)
from modscope._ranks_incomplete import whole_or_all
from modscope._ranks_job import describe_ranks
from modscope._ranks_read import Rank
from modscope._summary import Report
from modscope._text import counted, duration, size

__all__ = ["collectives_of_rank", "collectives_report", "collectives_text"]

_LEAST_ROOM = 20  # columns: with less, the last column is on a line of its own
_MISMATCHES = 3
_PARTS = 4


# ---- as figures ----


def collectives_of_rank(rank: Rank) -> Report:
    return {
        kind: {"count": sums.launches, "bytes": sums.bytes, "seconds": sums.nanoseconds / 1e9 if sums.timed else None}
        for kind, sums in sums_of_rank(rank).items()
    }


def _launch_report(one: Collective | None) -> Report | None:
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


def _mismatch_report(one: Mismatch) -> Report:
    return {
        "group": one.group._asdict(),
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


def collectives_report(ranks: Sequence[Rank]) -> Report:
    totals = [
        {"kind": one.kind, "count": one.launches, "bytes": one.bytes, "seconds": one.seconds}
        for one in kind_totals(whole_or_all(ranks))
    ]
    return {
        "collectives": totals,
        "collectives_of": [rank.number for rank in whole_or_all(ranks)],
        "mismatches": [_mismatch_report(one) for one in find_mismatches(ranks)],
    }


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


def collectives_text(ranks: Sequence[Rank], screen: Screen) -> list[str]:
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
