"""Captures of ranks that lack a part of their run: which they are, and what of them can be compared. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from modscope._ranks_job import describe_ranks, group
from modscope._ranks_read import Rank

__all__ = [
    "Missing",
    "describe_incomplete",
    "describe_last_steps",
    "find_compared",
    "find_incomplete",
    "whole_or_all",
    "why_incomplete",
]

Missing = str
"""Why a capture lacks something: "not closed", "cut short", "damaged" or "events lost"."""

_ENDS_EARLY = ("not closed", "cut short")


def why_incomplete(rank: Rank) -> Missing | None:
    """None: the capture has everything."""
    if rank.end is None:
        return "cut short" if rank.damaged else "not closed"
    return "damaged" if rank.damaged else "events lost" if rank.lost else None


def find_incomplete(ranks: Sequence[Rank]) -> list[Rank]:
    return [rank for rank in ranks if why_incomplete(rank)]


def whole_or_all(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks whose captures have everything; all ranks if there is no such capture."""
    return [rank for rank in ranks if not why_incomplete(rank)] or list(ranks)


def find_compared(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks whose peaks can be compared: not those whose captures end before the others reached their peaks, nor those
    that are known only as a lower bound. All ranks if none can."""
    whole = [rank for rank in ranks if not why_incomplete(rank)]
    last = max((rank.peak.step for rank in whole or ranks if rank.peak), default=0)
    reached = [
        rank for rank in ranks if not why_incomplete(rank) or (rank.steps > last if whole else rank.steps >= last)
    ]
    return [rank for rank in reached if not rank.is_lower_bound] or list(ranks)


# ---- in words ----


def describe_last_steps(ranks: Sequence[Rank]) -> str:
    """ "in step 7", "in steps 5 to 6" """
    first, last = min(rank.steps for rank in ranks), max(rank.steps for rank in ranks)
    if first < last:
        return f"in steps {first} to {last}" if first else f"in step {last} or before"
    return f"in step {last}" if last else "before the first step"


def _describe_short(why: Missing, ranks: Sequence[Rank]) -> str:
    several = len(ranks) > 1
    captures = f"captures of {describe_ranks(ranks)} end" if several else f"capture of {describe_ranks(ranks)} ends"
    return f"The {captures} {describe_last_steps(ranks)} ({why}). Later steps are not compared."


def _describe_holes(why: Missing, ranks: Sequence[Rank]) -> str:
    several = len(ranks) > 1
    captures = f"{'captures' if several else 'capture'} of {describe_ranks(ranks)}"
    what = f"A part of the {captures} cannot be read: the {'files are' if several else 'file is'} damaged"
    if why == "events lost":
        what = f"Events of the {captures} could not be written"
    return f'{what}. {"Their" if several else "Its"} figures are "at least", and {"their" if several else "its"} collectives are not compared.'


def describe_incomplete(ranks: Sequence[Rank]) -> list[str]:
    """A sentence for each reason why captures lack something, and one on those whose memory is not compared."""
    sentences = []
    for why, members in group(find_incomplete(ranks), lambda rank: why_incomplete(rank) or "").items():
        sentences.append(_describe_short(why, members) if why in _ENDS_EARLY else _describe_holes(why, members))
    compared = {rank.number for rank in find_compared(ranks)}
    late = [rank for rank in ranks if rank.number not in compared and why_incomplete(rank) in _ENDS_EARLY]
    if late:
        its = "Its peak is" if len(late) == 1 else "Their peaks are"
        whose = "" if len(sentences) == 1 and len(late) == len(find_incomplete(ranks)) else f" ({describe_ranks(late)})"
        sentences.append(f"{its} not compared either{whose}: other ranks reached theirs in the same step or later.")
    return sentences
