"""Blocks that survive step after step, and owners that hold more after each step. ``modscope leaks`` and the page show
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

from modscope._read.categories import parts_of, sums_of
from modscope._read.lines import Frame, Place
from modscope._read.load import Block, Capture, Event, Snapshot
from modscope._read.summary import FileReport, file_report
from modscope._read.text import at_least, counted, size

STEPS_NEEDED = 3  # blocks that survived from so many different steps are called a leak
_STEP_ENDS = 32  # at most so many are looked at, spread over the run
_STEP_ENDS_NEEDED = 5  # to speak of growth
_GROWING_SHARE = 0.8  # An owner's bytes must grow in this share of the steps.


_Line = tuple[str, int, str]  # file, number, function


class _Owner(NamedTuple):
    device: str
    module: str
    category: str


class LineBytes(TypedDict):
    """A line that made blocks which are still held."""

    file: str
    line: int
    function: str
    source: str | None
    bytes: int
    count: int


class SizeCount(TypedDict):
    """Blocks of one size, and how many there are."""

    bytes: int
    count: int


class LeakedBlocks(TypedDict):
    """The blocks of earlier steps that a module still holds in a category."""

    device: str
    module: str
    category: str
    bytes: int
    outside: int
    count: int
    steps: int
    first_step: int
    last_step: int
    phases: list[str]
    lines: list[LineBytes]
    sizes: list[SizeCount]


class Growth(TypedDict):
    """An owner that holds more after nearly every step."""

    device: str
    module: str
    category: str
    bytes_per_step: int
    first_step: int
    first_bytes: int
    last_step: int
    last_bytes: int
    lines: list[LineBytes]


class Leaks(FileReport):
    """The blocks that survive step after step."""

    is_lower_bound: bool
    steps: int
    evaluates: bool
    step: int | None
    groups: list[LeakedBlocks]
    growth: list[Growth]


def find_leaks(file: str, capture: Capture, device: str | None = None) -> Leaks:
    step, groups, growth, is_lower_bound = None, list[LeakedBlocks](), list[Growth](), capture.is_lower_bound
    begun = list(capture.events("step"))
    if len(begun) > STEPS_NEEDED + 1:
        # The last step may have been cut short, so look at the end of the one before it, for blocks of earlier steps.
        step, snapshot = begun[-2].bytes, capture.snapshot(begun[-1].number)
        groups, is_lower_bound = _find_groups(snapshot, step, device), snapshot.is_lower_bound
        growth = _find_growth(capture, begun, device, groups)
    return {
        **file_report(file, capture),
        "is_lower_bound": is_lower_bound,
        "steps": len(begun),
        "evaluates": capture.phases["evaluation"].time > 0,
        "step": step,
        "groups": groups,
        "growth": growth,
    }


def _find_groups(snapshot: Snapshot, step: int, device: str | None) -> list[LeakedBlocks]:
    survivors: dict[_Owner, list[Block]] = {}
    for block in snapshot.blocks(device=device):
        if 1 <= block.step < step:
            survivors.setdefault(_Owner(block.device, block.module, block.category), []).append(block)
    groups = [_group_of(owner, blocks) for owner, blocks in survivors.items()]
    leaks = [group for group in groups if group["steps"] >= STEPS_NEEDED]
    return sorted(leaks, key=lambda group: -group["bytes"])


def _group_of(owner: _Owner, blocks: list[Block]) -> LeakedBlocks:
    steps = {block.step for block in blocks}
    sizes = Counter(block.bytes for block in blocks)
    return {
        "device": owner.device,
        "module": owner.module,
        "category": str(owner.category),
        "bytes": sum(block.bytes for block in blocks),
        "outside": sum(block.bytes for block in blocks if block.outside),
        "count": len(blocks),
        "steps": len(steps),
        "first_step": min(steps),
        "last_step": max(steps),
        "phases": sorted({block.phase for block in blocks}),
        "lines": _lines_of(blocks),
        "sizes": [{"bytes": each, "count": count} for each, count in sizes.most_common()],
    }


def _lines_of(blocks: list[Block]) -> list[LineBytes]:
    """The lines that made the blocks, those that made most bytes first. Blocks without a line are left out."""
    made: dict[_Line, list[Block]] = {}
    for block in blocks:
        if (line := _line_of(block.place)) is not None:
            made.setdefault(line, []).append(block)
    rows: list[LineBytes] = [
        {
            "file": file,
            "line": number,
            "function": function,
            "source": _source_of(same[0]),
            "bytes": sum(block.bytes for block in same),
            "count": len(same),
        }
        for (file, number, function), same in made.items()
    ]
    return sorted(rows, key=lambda row: -row["bytes"])


def _source_of(block: Block) -> str | None:
    at, frame = _made_at(block.place)
    return at.source_of(frame) if at is not None and frame is not None else None


# ---- growth ----


class _StepEnd(NamedTuple):
    step: int
    moment: int


def _spread(ends: list[_StepEnd]) -> list[_StepEnd]:
    """Choose at most _STEP_ENDS of the ends, the first and the last among them."""
    if len(ends) <= _STEP_ENDS:
        return ends
    return [ends[round(i * (len(ends) - 1) / (_STEP_ENDS - 1))] for i in range(_STEP_ENDS)]


def _find_growth(
    capture: Capture, begun: Sequence[Event], device: str | None, groups: list[LeakedBlocks]
) -> list[Growth]:
    """The owners that hold more at the end of nearly every step, in the whole run or in its second half. An owner of
    ``groups`` has a row for each line that made its blocks, without the lines that the groups list already."""
    ends = _spread([_StepEnd(this.bytes, following.number) for this, following in zip(begun, begun[1:]) if this.bytes])
    listed = {
        _Owner(group["device"], group["module"], group["category"]): {
            (line["file"], line["line"], line["function"]) for line in group["lines"]
        }
        for group in groups
    }
    held: dict[tuple[_Owner, _Line | None], list[int]] = {}
    for i, end in enumerate(ends):
        for key, value in _owned(capture.snapshot(end.moment), device, listed).items():
            held.setdefault(key, [0] * len(ends))[i] = value
    found = {key: growth for key, values in held.items() if (growth := _growth_of(key[0], ends, values)) is not None}
    blocks = list(capture.snapshot(ends[-1].moment).blocks(device=device)) if found else []
    for (owner, line), growth in found.items():
        lines = _lines_of([block for block in blocks if _Owner(block.device, block.module, block.category) == owner])
        growth["lines"] = [row for row in lines if line in (None, (row["file"], row["line"], row["function"]))]
    return sorted(found.values(), key=lambda growth: -growth["bytes_per_step"])


def _owned(
    snapshot: Snapshot, device: str | None, listed: Mapping[_Owner, set[_Line]]
) -> dict[tuple[_Owner, _Line | None], int]:
    """What each owner holds; of an owner that is listed, what each of its other lines made."""
    found: dict[tuple[_Owner, _Line | None], int] = {}
    for on, modules in snapshot.by_module().items():
        for module, sums in modules.items() if device in (None, on) else ():
            for category, value in parts_of(sums).items():
                found[_Owner(on, module, category), None] = value
    for on in {owner.device for owner in listed}:
        for module, place, raw in snapshot.by_module_and_place(on):
            for category, value in parts_of(sums_of(raw)).items():
                owner, line = _Owner(on, module, category), _line_of(place)
                if owner in listed and line is not None and line not in listed[owner]:
                    found[owner, line] = found.get((owner, line), 0) + value
    return {key: value for key, value in found.items() if key[1] is not None or key[0] not in listed}


def _line_of(place: Place | None) -> _Line | None:
    """The innermost line, as the lines of a leak have it; None if it is not known."""
    _, frame = _made_at(place)
    return (frame.file, frame.line, frame.function) if frame is not None and frame.line and frame.function else None


def _made_at(place: Place | None) -> tuple[Place | None, Frame | None]:
    """The line that a leak is shown by: the model's if it is in a library, else the program's own."""
    at = place if place is None or place.frames else place.attributed
    return at, at.innermost if at is not None else None


def _growth_of(owner: _Owner, ends: list[_StepEnd], held: list[int]) -> Growth | None:
    for first in (0, len(ends) // 2):
        if _is_growing(held[first:]):
            steps = ends[-1].step - ends[first].step
            return {
                "device": owner.device,
                "module": owner.module,
                "category": owner.category,
                "bytes_per_step": (held[-1] - held[first]) // steps,
                "first_step": ends[first].step,
                "first_bytes": held[first],
                "last_step": ends[-1].step,
                "last_bytes": held[-1],
                "lines": [],
            }
    return None


def _is_growing(held: list[int]) -> bool:
    grew = sum(before < after for before, after in zip(held, held[1:]))
    return len(held) >= _STEP_ENDS_NEEDED and grew >= _GROWING_SHARE * (len(held) - 1) and held[-1] == max(held)


# ---- in words ----


def describe_leaks(report: Leaks) -> str:
    """How much is left of earlier steps, or why there is nothing to show."""
    if report["step"] is None:
        steps = counted(report["steps"], "step") + (" that can be read" if report["damaged"] else "")
        needed = f"leaks can be seen from {STEPS_NEEDED + 2} steps on"
        also = "; evaluation (no_grad, inference_mode) has no steps" if report["evaluates"] else ""
        return f"Too few steps to tell: the capture has {steps}, and {needed}{also}."
    end = f"the end of step {report['step']}"
    if not report["groups"] and report["growth"]:
        return "Blocks of earlier steps are freed, but the blocks that replace them grow step after step."
    if not report["groups"]:
        why = f"at {end} no module held blocks from {STEPS_NEEDED} or more earlier steps"
        seen = "the blocks that can be read" if report["is_lower_bound"] else "the blocks that modscope sees"
        return f"No leaks among {seen}: {why}."
    held = sum(group["bytes"] for group in report["groups"])
    return f"{at_least(report['is_lower_bound'], size(held))} from earlier steps is still held at {end}."


def describe_growth(growth: Growth) -> str:
    """Say it as in "Other of Global grows by 4.00 KiB a step on average, from 40.00 KiB after step 3 to 68.00 KiB"."""
    name = growth["module"] or '""'
    first = f"{size(growth['first_bytes'])} after step {growth['first_step']}"
    last = f"{size(growth['last_bytes'])} after step {growth['last_step']}"
    return (
        f"{growth['category']} of {name} grows by {size(growth['bytes_per_step'])} a step on average, from "
        f"{first} to {last}"
    )
