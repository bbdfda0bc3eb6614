"""``modscope leaks``: blocks that survive step after step."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from typing import NamedTuple

from modscope._commands.common import Load, Report, at_least, find_device, head, label, next_command, notes
from modscope._commands.terminal import Screen, clean, counted, size
from modscope._load import Block, Capture, Snapshot

STEPS_NEEDED = 3  # different ones that survivors were made in, to be called a leak


class _Owner(NamedTuple):
    device: str
    module: str
    category: str


def report(arguments: Namespace, load: Load) -> Report:
    return report_of(arguments.file, load(arguments.file), arguments.device)


def report_of(file: str, capture: Capture, on: str | None) -> Report:
    device = find_device(capture, on)
    step, groups, is_lower_bound = None, list[Report](), capture.is_lower_bound
    begun = list(capture.events("step"))
    if len(begun) > STEPS_NEEDED + 1:
        # The last may have been cut short: take the end of the one before, and of its blocks those of earlier steps.
        step, snapshot = begun[-2].bytes, capture.snapshot(begun[-1].number)
        groups, is_lower_bound = _groups(snapshot, step, device), snapshot.is_lower_bound
    return {**head(file, capture), "is_lower_bound": is_lower_bound, "steps": len(begun), "step": step, "groups": groups}


def _groups(snapshot: Snapshot, step: int, device: str | None) -> list[Report]:
    survivors: dict[_Owner, list[Block]] = {}
    for block in snapshot.blocks(device=device):
        if 1 <= block.step < step:
            survivors.setdefault(_Owner(block.device, block.module, block.category), []).append(block)
    groups = [_group(owner, blocks) for owner, blocks in survivors.items()]
    leaks = [group for group in groups if group["steps"] >= STEPS_NEEDED]
    return sorted(leaks, key=lambda group: -int(group["bytes"]))


def _group(owner: _Owner, blocks: list[Block]) -> Report:
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


# ---- as text ----


def why_none(result: Report) -> str | None:
    """Why there is nothing to show, if there is not."""
    if result["step"] is None:
        few = counted(result["steps"], "step")
        return f"Too few steps to tell: the capture has {few}, and leaks show in {STEPS_NEEDED + 2} or more."
    if not result["groups"]:
        at_end = f"at the end of step {result['step']}"
        return f"No leaks: {at_end} no module held blocks from {STEPS_NEEDED} or more earlier steps."
    return None


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    if why := why_none(result):
        return screen.wrap(why) + notes(result, screen) + next_command("What is held", "summary", result["file"])
    total = sum(group["bytes"] for group in result["groups"])
    amount = at_least(result["is_lower_bound"], size(total))
    title = f"{amount} from earlier steps is still held at the end of step {result['step']}"
    out = [*map(screen.bold, screen.wrap(title)), ""]
    width = max(len(size(group["bytes"])) for group in result["groups"])
    several = len({group["device"] for group in result["groups"]}) > 1
    for group in result["groups"]:
        out += _lines(group, width, several, screen)
    out[-1:] = notes(result, screen)
    return out + next_command("The blocks", "blocks", result["file"], "--at", f"step:{result['step']}")


def _lines(group: Report, width: int, several: bool, screen: Screen) -> list[str]:
    room = screen.width - width - 2
    on = f" on {clean(group['device'])}" if several else ""
    whose = f"{group['category']} of {label(group['module'])}"
    steps = f"{group['steps']} steps ({group['first_step']} to {group['last_step']})"
    sizes = ", ".join(f"{each['count']} x {size(each['bytes'])}" for each in group["sizes"][:4])
    if len(group["sizes"]) > 4:
        sizes += f", {counted(len(group['sizes']) - 4, 'more size')}"
    pad = " " * (width + 2)
    first = f"{size(group['bytes']):>{width}}  {screen.bold(screen.fit(whose, room - len(on)))}{on}"
    made = f"{counted(group['count'], 'block')} made in {steps}"
    if group["phases"] != ["idle"]:
        made += f", in {', '.join(group['phases'])}"
    return [first, pad + screen.cut(made, room), pad + screen.cut(sizes, room), ""]
