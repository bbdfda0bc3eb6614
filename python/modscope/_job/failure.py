"""Ranks that failed, and captures that lack a part of their run: which they are, what of them can be compared, and the
sentences that say so."""

from __future__ import annotations

import re
from collections.abc import Sequence

from modscope._job.job import describe_ranks, group
from modscope._job.read import Rank
from modscope._read.text import clean, counted, describe_moment, shorten_end, size

# ---- captures that lack a part of their run ----

Missing = str
"""Why a capture lacks something: "not closed", "cut short", "damaged" or "events lost"."""

_ENDS_EARLY = ("not closed", "cut short")


def why_incomplete(rank: Rank) -> Missing | None:
    """Why the capture of a rank lacks something; None if it has everything."""
    if rank.end is None:
        return "cut short" if rank.damaged else "not closed"
    return "damaged" if rank.damaged else "events lost" if rank.lost else None


def find_incomplete(ranks: Sequence[Rank]) -> list[Rank]:
    return [rank for rank in ranks if why_incomplete(rank)]


def whole_or_all(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks whose captures have everything; all ranks if there is no such capture."""
    return [rank for rank in ranks if not why_incomplete(rank)] or list(ranks)


def find_compared(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks whose peaks can be compared: not those whose captures end before the others reached their peaks, nor
    those that are known only as a lower bound. All ranks if none can."""
    whole = [rank for rank in ranks if not why_incomplete(rank)]
    last = max((rank.peak.step for rank in whole or ranks if rank.peak), default=0)
    reached = [
        rank for rank in ranks if not why_incomplete(rank) or (rank.steps > last if whole else rank.steps >= last)
    ]
    return [rank for rank in reached if not rank.is_lower_bound] or list(ranks)


# ---- in words ----


def describe_last_steps(ranks: Sequence[Rank]) -> str:
    """The last steps of the ranks in words: "in step 7", "in steps 5 to 6"."""
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
    return (
        f'{what}. {"Their" if several else "Its"} figures are "at least", and {"their" if several else "its"} '
        f"collectives are not compared."
    )


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


# ---- ranks that failed ----

_OWN, _KILLED, _BY_OTHERS, _ENDED = range(4)  # how likely it is that others failed because of it, most likely first
_MOST_CHARACTERS = 200  # A longer error is cut.
_COMMUNICATION = re.compile(
    r"\b(gloo|nccl|DistBackendError|DistNetworkError|connection (closed|reset|refused)|socket|broken pipe|watchdog)",
    re.IGNORECASE,
)
"""An error whose text has one of these words may be caused by another rank."""


def has_failed(rank: Rank) -> bool:
    return _class_of(rank) is not None


def failure_order(rank: Rank) -> int:
    """Lower for a rank that is more likely the cause why others failed, and highest for one that did not fail."""
    found = _class_of(rank)
    return _ENDED + 1 if found is None else found


def _ran_out_of_memory(rank: Rank) -> bool:
    """Whether an allocation failed in its last step. A program may go on after an earlier one."""
    return rank.oom is not None and rank.oom["step"] == rank.steps


def _class_of(rank: Rank) -> int | None:
    """How likely it is that other ranks failed because of this one; None if it did not fail."""
    if rank.end is None:
        return _OWN if _ran_out_of_memory(rank) else _KILLED
    how, status, error = (rank.end.get(word, "") for word in ("how", "status", "error"))
    if how in ("terminated", "interrupted"):
        return _ENDED
    if how == "exception" or error:
        is_own = _ran_out_of_memory(rank) or not _COMMUNICATION.search(error)
        return _OWN if is_own else _BY_OTHERS
    return _OWN if how == "finished" and status not in ("", "0") else None


def _what_happened(ranks: Sequence[Rank]) -> str:
    """What follows "rank 1 ", or "ranks 1-2 " to whom the same happened, without a full stop."""
    rank, several = ranks[0], len(ranks) > 1
    was = "were" if several else "was"
    in_step = describe_last_steps(ranks)
    oom = rank.oom
    if oom is not None and _ran_out_of_memory(rank):
        where = describe_moment(oom["step"], oom["phase"], oom["module"], None, 160)
        return clean(f"ran out of memory {where}: an allocation of {size(oom['requested'])} failed on {oom['device']}")
    if rank.end is None:
        no_end, or_else = (
            ("have no end: they", "still run, or their captures were")
            if several
            else ("has no end: it", "still runs, or its capture was")
        )
        later = " or later" if all(rank.steps for rank in ranks) else ""  # what it did last was not written
        return f"{no_end} {was} killed {in_step}{later}, {or_else} cut short"
    how, status, error = (rank.end.get(word, "") for word in ("how", "status", "error"))
    if how == "terminated":
        return f"{was} ended by SIGTERM {in_step}"
    if how == "interrupted":
        return f"{was} interrupted {in_step}"
    if how == "finished" and not error:
        return f"exited with status {clean(status)} {in_step}"
    first = shorten_end(clean(error.strip().splitlines()[0]), _MOST_CHARACTERS) if error.strip() else "an exception"
    return f"failed {in_step}: {first}"


def describe_failure(ranks: Sequence[Rank]) -> str:
    """Say which rank failed: "Rank 1 failed in step 12: ValueError: no such batch."; "" if none did. A rank with an
    error of its own comes before those that lost the connection to another one, or that the launcher ended."""
    classes = {rank.number: found for rank in ranks if (found := _class_of(rank)) is not None}
    if not classes:
        return ""
    first = min(classes.values())
    causes = [rank for rank in ranks if classes.get(rank.number) == first]
    causes.sort(key=lambda rank: (rank.began or 0.0) + rank.duration)  # when it ended
    if first == _KILLED:
        alike = causes
    else:
        alike = [rank for rank in causes if _what_happened([rank]) == _what_happened(causes[:1])]
    alike = sorted(alike, key=lambda rank: rank.number)
    who, what = describe_ranks(alike), _what_happened(alike)
    others = len(causes) - len(alike)
    more = f" {counted(others, 'other rank')} failed too." if others and first != _ENDED else ""
    return f"{who[0].upper()}{who[1:]} {what}{'' if what.endswith(('.', '!', '?', '…', '...')) else '.'}{more}"
