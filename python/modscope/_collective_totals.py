"""The collectives of a run in figures: of each kind and group, how many, how many bytes, for which modules. Needs no
torch."""

from __future__ import annotations

from typing import Any

from modscope._capture_types import CollectiveGroup
from modscope._load import Capture

__all__ = ["summarize_collectives"]


def summarize_collectives(capture: Capture) -> list[dict[str, Any]]:
    """A row for each kind and group, that with most bytes first. ``before_steps`` is what was launched before the first
    step; ``modules`` are those for which most bytes went through, all phases together."""
    rows: dict[tuple[str, CollectiveGroup], dict[str, Any]] = {}
    for kind, group, module, phase, in_step, count, size, seconds in capture.collective_totals():
        row = rows.setdefault((kind, group), _new_row(kind, group))
        sums = row if in_step else row["before_steps"]
        sums["count"] += count
        sums["bytes"] += size
        sums["seconds"] += seconds
        if not in_step:
            continue
        row["phases"][phase] = row["phases"].get(phase, 0) + count
        of_module = row["modules"].setdefault(module, {"module": module, "count": 0, "bytes": 0})
        of_module["count"] += count
        of_module["bytes"] += size
    for row in rows.values():
        row["modules"] = sorted(row["modules"].values(), key=lambda one: -int(one["bytes"]))
    return sorted(rows.values(), key=lambda row: -int(row["bytes"]))


def _new_row(kind: str, group: CollectiveGroup) -> dict[str, Any]:
    sums = {"count": 0, "bytes": 0, "seconds": 0.0}
    return {"kind": kind, "group": group._asdict(), **sums, "before_steps": sums, "phases": {}, "modules": {}}
