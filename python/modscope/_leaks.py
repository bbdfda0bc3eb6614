"""Blocks that survive step after step. ``modscope leaks`` and the page show them. Needs no torch."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from modscope._load import Block, Capture, Snapshot
from modscope._summary import Report, file_report
from modscope._text import at_least, counted, size

STEPS_NEEDED = 3  # blocks that survived from so many different steps are called a leak


class _Owner(NamedTuple):
    device: str
    module: str
    category: str


def find_leaks(file: str, capture: Capture, device: str | None = None) -> Report:
    step, groups, is_lower_bound = None, list[Report](), capture.is_lower_bound
    begun = list(capture.events("step"))
    if len(begun) > STEPS_NEEDED + 1:
        # The last step may have been cut short, so look at the end of the one before it, for blocks of earlier steps.
        step, snapshot = begun[-2].bytes, capture.snapshot(begun[-1].number)
        groups, is_lower_bound = _find_groups(snapshot, step, device), snapshot.is_lower_bound
    head = {**file_report(file, capture), "is_lower_bound": is_lower_bound}
    return {**head, "steps": len(begun), "step": step, "groups": groups}


def _find_groups(snapshot: Snapshot, step: int, device: str | None) -> list[Report]:
    survivors: dict[_Owner, list[Block]] = {}
    for block in snapshot.blocks(device=device):
        if 1 <= block.step < step:
            survivors.setdefault(_Owner(block.device, block.module, block.category), []).append(block)
    groups = [_group_of(owner, blocks) for owner, blocks in survivors.items()]
    leaks = [group for group in groups if group["steps"] >= STEPS_NEEDED]
    return sorted(leaks, key=lambda group: -int(group["bytes"]))


def _group_of(owner: _Owner, blocks: list[Block]) -> Report:
    steps = {block.step for block in blocks}
    sizes = Counter(block.bytes for block in blocks)
    return {
        "device": owner.device,
        "module": owner.module,
        "category": str(owner.category),
        "bytes": sum(block.bytes for block in blocks),
        "count": len(blocks),
        "steps": len(steps),
        "first_step": min(steps),
        "last_step": max(steps),
        "phases": sorted({block.phase for block in blocks}),
        "sizes": [{"bytes": each, "count": count} for each, count in sizes.most_common()],
    }


# ---- in words ----


def describe_leaks(report: Report) -> str:
    """How much is left of earlier steps, or why there is nothing to show."""
    if report["step"] is None:
        steps = counted(report["steps"], "step")
        return f"Too few steps to tell: the capture has {steps}, and leaks can be seen from {STEPS_NEEDED + 2} steps on."
    end = f"the end of step {report['step']}"
    if not report["groups"]:
        return f"No leaks: at {end} no module held blocks from {STEPS_NEEDED} or more earlier steps."
    held = sum(group["bytes"] for group in report["groups"])
    return f"{at_least(report['is_lower_bound'], size(held))} from earlier steps is still held at {end}."
