"""What ``modscope fit`` prints. Needs no torch."""

from __future__ import annotations

import shlex

from modscope._fit_answer import Answer
from modscope._fit_levers import Tried
from modscope._text import at_least, clean, counted, describe_moment, rough_size, width_of

_INDENT = "  "


def lines_of(found: Answer) -> list[str]:
    """The verdict on one GPU, and the table of levers."""
    lines = [verdict(found), *notes(found)]
    if found.tried:
        lines += ["", *_table(found.tried)]
    if found.before.fits:
        return lines
    if not found.tried:
        return lines if not found.job.whole_steps else [*lines, _nothing_helps(found)]
    if not any(tried.outcome.fits for tried in found.tried):
        lines.append(_nothing_helps(found))
    return [*lines, *_next_command(found)]


def verdict(found: Answer) -> str:
    job, before, gpu = found.job, found.before, found.gpu
    verb = "reserved" if job.caching else "allocated"
    most = at_least(job.is_lower_bound or not _is_complete(found), f"{rough_size(before.reserved)} at most")
    has = f"{clean(gpu.label)} has {rough_size(gpu.capacity)} beside the context"
    first = f"{job.device} {verb} {most}. {has}:"
    if before.fits:
        spare = gpu.capacity - before.reserved
        if spare < 0:
            return f"{first} it fits, but the allocator must give free segments back {counted(before.retries, 'time')}."
        return f"{first} it fits, with {rough_size(spare)} to spare."
    failed = before.failed
    where = f" It would fail {describe_moment(*failed)}." if failed else ""
    return f"{first} short by {rough_size(before.reserved - gpu.capacity)}.{where}"


def _is_complete(found: Answer) -> bool:
    return not (found.job.died and not found.job.whole_steps)


def notes(found: Answer) -> list[str]:
    """What the figures are not."""
    job, lines = found.job, []
    if not job.caching:
        lines.append("It ran on the CPU, which has no caching allocator: figures are what was allocated, and a GPU reserves more.")
    if job.is_lower_bound:
        lines.append("Events of the capture are lost or damaged: every figure is at least as large.")
    if not job.steps:
        lines.append("The capture has no training steps: only the allocator's settings can be tried.")
    elif not job.whole_steps:
        lines.append(
            "The run ended in its first step, so what would follow is not known. Record a smaller batch, or predict the script:  "
            "modscope fit train.py --gpu " + shlex.quote(found.gpu.name)
        )
    elif job.died:
        whole = counted(job.whole_steps, "whole step")
        lines.append(f"The run ended in step {job.steps[-1][1]}: figures are those of the {whole} before.")
    return lines


def _nothing_helps(found: Answer) -> str:
    held = f"{rough_size(found.rest)} of parameters, gradients and optimizer state remain"
    return f"None of this makes it fit: {held}. A GPU with more memory, more GPUs or a smaller batch would."


def _fits(tried: Tried) -> str:
    return "yes" if tried.outcome.fits else "no"


def cost_of(tried: Tried) -> str:
    retries = tried.outcome.retries if tried.outcome.fits else 0
    return tried.lever.cost + (f", and the allocator gives memory back {counted(retries, 'time')}" if retries else "")


def _table(rows: list[Tried]) -> list[str]:
    cells = [("What would help", "reserved", "fits", "cost")]
    for tried in rows:
        bound = "<= " if tried.lever.is_bound else ""
        cells.append((clean(tried.lever.name), bound + rough_size(tried.outcome.reserved), _fits(tried), cost_of(tried)))
    widths = [max(width_of(row[i]) for row in cells) for i in range(3)]
    return [
        _INDENT + "   ".join([_left(row[0], widths[0]), row[1].rjust(widths[1]), _left(row[2], widths[2]), row[3]]) for row in cells
    ]


def _left(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def _next_command(found: Answer) -> list[str]:
    if not found.job.caching or not any(tried.lever.name.startswith("checkpoint") for tried in found.tried):
        return []
    return [f"Make a plan:  modscope plan {clean(shlex.quote(found.job.file))} --gpu {shlex.quote(found.gpu.name)} -o plan.json"]


# ---- several GPUs ----


def table_of_gpus(answers: list[Answer]) -> list[str]:
    first = answers[0]
    verb = "reserved" if first.job.caching else "allocated"
    lines = [f"{first.job.device} {verb} {at_least(first.job.is_lower_bound, rough_size(first.before.reserved))} at most.", *notes(first), ""]
    cells = [("GPU", "has", "fits", "what would make it fit", "cost")]
    for each in answers:
        cheapest = min((tried for tried in each.tried if tried.outcome.fits), key=lambda tried: tried.price, default=None)
        how = (clean(cheapest.lever.name), cost_of(cheapest)) if cheapest else ("", "")
        cells.append((clean(each.gpu.name), rough_size(each.gpu.capacity), "yes" if each.before.fits else "no", *how))
    widths = [max(width_of(row[i]) for row in cells) for i in range(4)]
    for row in cells:
        parts = [_left(row[0], widths[0]), row[1].rjust(widths[1]), _left(row[2], widths[2]), _left(row[3], widths[3]), row[4]]
        lines.append((_INDENT + "   ".join(parts)).rstrip())
    return lines
