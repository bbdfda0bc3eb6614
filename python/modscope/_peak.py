"""``Peak``: when a device held the most bytes. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple


class Peak(NamedTuple):
    """When a device held the most bytes. Only a ``MemTracker`` knows the owner; only a capture knows the moment, the
    time and what was reserved."""

    bytes: int
    step: int
    """The training step; 0 is before the first."""
    phase: str
    """"idle", "forward", "recompute", "backward", "optimizer" or "evaluation"."""
    module: str
    """The innermost module that was running then, or "Global"."""
    owner: str | None = None
    """The module that owns the block whose allocation reached the peak; None in a capture."""
    moment: int = 0
    """How many events of the capture came before it; 0 in a MemTracker."""
    time: float = 0.0
    """Seconds since the capture began; 0.0 in a MemTracker."""
    reserved: int = 0
    """What the device's allocator had reserved then; 0 where that is not known."""
