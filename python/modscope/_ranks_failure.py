"""Which rank of a job failed, and how, as one sentence. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from modscope._ranks_incomplete import describe_last_steps
from modscope._ranks_job import describe_ranks
from modscope._ranks_read import Rank
from modscope._text import clean, counted, describe_moment, shorten_end, size

__all__ = ["describe_failure", "failure_order", "has_failed"]

_OWN, _KILLED, _BY_OTHERS, _ENDED = range(4)  # how likely it is that others failed because of it, most likely first
_MOST_CHARACTERS = 200  # of an error
_COMMUNICATION = re.compile(
    r"\b(gloo|nccl|DistBackendError|DistNetworkError|connection (closed|reset|refused)|socket|broken pipe|watchdog)",
    re.IGNORECASE,
)
"""In the text of an error: another rank may be the cause."""


def has_failed(rank: Rank) -> bool:
    return _class_of(rank) is not None


def failure_order(rank: Rank) -> int:
    """Lower for a rank that is more likely the cause why others failed, and highest for one that did not fail."""
    found = _class_of(rank)
    return _ENDED + 1 if found is None else found


def _ran_out_of_memory(rank: Rank) -> bool:
    """In its last step; a program may go on after an allocation that failed."""
    return rank.oom is not None and rank.oom["step"] == rank.steps


def _class_of(rank: Rank) -> int | None:
    """None: it did not fail."""
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
    if _ran_out_of_memory(rank):
        oom = rank.oom or {}
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


def _ended_at(rank: Rank) -> float:
    return (rank.began or 0.0) + rank.duration


def describe_failure(ranks: Sequence[Rank]) -> str:
    """ "Rank 1 failed in step 12: ValueError: no such batch."; "" if no rank failed. A rank with an error of its own comes before
    those that lost the connection to another one, or that the launcher ended."""
    classes = {rank.number: found for rank in ranks if (found := _class_of(rank)) is not None}
    if not classes:
        return ""
    first = min(classes.values())
    causes = sorted((rank for rank in ranks if classes.get(rank.number) == first), key=_ended_at)
    if first == _KILLED:
        alike = causes
    else:
        alike = [rank for rank in causes if _what_happened([rank]) == _what_happened(causes[:1])]
    alike = sorted(alike, key=lambda rank: rank.number)
    who, what = describe_ranks(alike), _what_happened(alike)
    others = len(causes) - len(alike)
    more = f" {counted(others, 'other rank')} failed too." if others and first != _ENDED else ""
    return f"{who[0].upper()}{who[1:]} {what}{'' if what.endswith(('.', '!', '?', '…', '...')) else '.'}{more}"
