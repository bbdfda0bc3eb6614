"""Collectives as ``modscope summary`` shows them."""

from __future__ import annotations

from modscope._commands.terminal import Screen
from modscope._groups import group_modules
from modscope._summary import Report, predicted_on
from modscope._text import clean, counted, duration, size

_ROWS = 10
_WHAT_TIME_IS = (
    "Times include waiting for other ranks. Those of send and recv last until the program's wait for them returned."
)


def _group(group: Report) -> str:
    if not group["size"]:
        return "not recorded"
    return f"{counted(group['size'], 'rank')} ({clean(group['ranks'])})"


def _modules(modules: list[Report]) -> str:
    """The modules for which most bytes went through."""
    groups = group_modules(modules, lambda one: str(one["module"]), lambda one: (one["count"], one["bytes"]))
    if not groups:
        return ""
    groups.sort(key=lambda group: -sum(int(one["bytes"]) for one in group.members))
    others = sum(len(group.members) for group in groups[1:])
    return clean(groups[0].name) + (f" and {others} more" if others else "")


def _count(count: int, steps: int) -> str:
    return f"{count // steps}" if count % steps == 0 else f"{count / steps:.1f}"


def collectives_text(result: Report, screen: Screen) -> list[str]:
    """A row for each kind and group: how many in a step, their bytes, their ranks, their modules."""
    rows = []
    steps = result["steps"]
    timed = any((row if steps else row["before_steps"])["seconds"] for row in result["collectives"])
    for row in result["collectives"]:
        sums = row if steps else row["before_steps"]
        if sums["count"]:
            cells = ["  " + row["kind"], _count(sums["count"], steps or 1), size(sums["bytes"] // (steps or 1))]
            cells += [duration(sums["seconds"] / (steps or 1)) if sums["seconds"] else ""] if timed else []
            rows.append((*cells, _group(row["group"]), _modules(row["modules"])))
    before = [row["before_steps"] for row in result["collectives"] if row["before_steps"]["count"]]
    is_even = all(row["count"] % steps == 0 for row in result["collectives"]) if steps else True
    head = ("Collectives, each step" if is_even else "Collectives, average step") if steps else "Collectives"
    headers = (head, "count", "bytes", *(["time"] if timed else []), "group", "modules")
    out = screen.table(headers, rows[:_ROWS], left=(0, len(headers) - 2)) if rows else [screen.bold("Collectives")]
    if len(rows) > _ROWS:
        out.append(f"  ({counted(len(rows) - _ROWS, 'more row')})")
    if timed and predicted_on(result["info"]) is None:
        out += [f"  {line}" for line in screen.wrap(_WHAT_TIME_IS)]
    if steps and before:
        launched = counted(sum(sums["count"] for sums in before), "collective")
        out.append(f"  Before the first step: {launched}, {size(sum(sums['bytes'] for sums in before))}")
    return out
