"""Which rank of a job a capture is of, as the launcher or torch.distributed said. Needs no torch."""

from __future__ import annotations

from modscope._read.load import Capture


def number_said(capture: Capture, key: str) -> int | None:
    """A number that the capture says at its end or, if not there, at its beginning."""
    text = (capture.end or {}).get(key) or capture.info.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else None


def world_of(capture: Capture) -> int:
    """How many ranks there were; 1 where nothing says so."""
    return max(number_said(capture, "world") or 1, 1)


def ranks_per_node(capture: Capture) -> int | None:
    """How many ranks shared a node; None where nothing says so."""
    return number_said(capture, "local_world") or None if world_of(capture) > 1 else None


def which_rank(capture: Capture) -> str:
    """ "rank 0 of 8", or "" where there is one only."""
    world = world_of(capture)
    return f"rank {number_said(capture, 'rank') or 0} of {world}" if world > 1 else ""
