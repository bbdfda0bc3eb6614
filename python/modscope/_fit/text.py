"""What ``modscope fit`` prints. Needs no torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modscope._fit.capacity import nccl_bytes, room_beside
from modscope._fit.job import Job
from modscope._fit.levers.fsdp2 import why_not_over
from modscope._fit.levers.registry import Tried
from modscope._fit.verdict import Answer
from modscope._read.ranks import which_rank, world_of
from modscope._read.script_arguments import ANY_SCRIPT, program_words, script_words
from modscope._read.summary import predicted_on
from modscope._read.text import at_least, clean, counted, describe_moment, near_size
from modscope._virtual.certainty import (
    FITS,
    NOT,
    OPEN,
    Verdict,
    about_several,
    count_of_retries,
    describe,
    describe_retries,
)
from modscope._virtual.gpus import Gpu

if TYPE_CHECKING:
    from modscope._show.terminal import Screen

_FASTER = "The script was predicted again with each of these changes."
_REPLAYED = "These are replays of its events with the change: how much time it saves is not known."


def lines_of(found: Answer, screen: Screen, script: Sequence[str] = ()) -> list[str]:
    """The verdict on one GPU, and the table of levers. ``script``: with its arguments, if one was given instead of a
    capture."""
    lines = _wrapped([verdict(found), *notes(found)], screen)
    if found.on_ranks and found.before.fits:
        lines += ["", *_table(found, list(found.on_ranks), screen, f"Each of {found.ranks} ranks")]
    if found.tried:
        title = "What would be faster" if found.before.fits else "What would help"
        lines += ["", *_table(found, found.tried, screen, title)]
    if found.before.fits:
        about = _FASTER if all(tried.is_verified for tried in found.tried) else _REPLAYED
        return [*lines, *_wrapped([about] if found.tried else [], screen)]
    end = []
    if any(tried.is_verified for tried in found.tried):
        end.append(
            "Verified: the script was predicted again with this change. The others are replays of its events with "
            "the change."
        )
    if not any(tried.outcome.fits for tried in found.tried) and found.job.whole_steps:
        end.append(_nothing_helps(found))
    return [*lines, *_wrapped([*end, *_next_command(found, script)], screen)]


def _wrapped(sentences: Sequence[str], screen: Screen) -> list[str]:
    return [line for sentence in sentences for line in screen.wrap(sentence)]


def verdict(found: Answer) -> str:
    return "".join(verdict_parts(found))


def verdict_parts(found: Answer) -> tuple[str, str]:
    """What is needed and what there is; and the answer."""
    job, before, gpu = found.job, found.before, found.gpu
    verb = "reserved" if job.caching else "allocated"
    most = _most(before.reserved, job.is_lower_bound or not _is_complete(found))
    rank = which_rank(job.capture)
    first = (
        f"{job.device}{f', as {rank},' if rank else ''} {verb} {most}. "
        f"{room_on(gpu, found.capacity, nccl_bytes(job.capture))}:"
    )
    if before.fits and not _is_complete(found):
        return f"{first} ", "whether a whole step fits is not known."
    other = found.other_kernels
    return f"{first} ", f"{_answer(found)}{f' {other.sentence}' if other else ''}"


def _answer(found: Answer) -> str:
    before, judged = found.before, found.verdict
    retries = ""
    if before.fits and before.retries:
        retries = describe_retries(before.retries, found.retries_per_step, before.reserved)
    spare = found.capacity - before.reserved_on_gpu
    if judged.answer == OPEN:
        return describe(judged, spare, retries)
    if before.fits:
        return f"it fits, with {near_size(spare)} to spare{f', but only because {retries}' if retries else ''}."
    where = f" It would fail {describe_moment(*before.failed)}." if before.failed else ""
    return f"short by {near_size(-spare)}.{where}"


def _most(reserved: int, is_lower_bound: bool) -> str:
    """ "20.5 GiB at most", or "at least 20.5 GiB" where events are missing."""
    return at_least(is_lower_bound, near_size(reserved)) + ("" if is_lower_bound else " at most")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def room_on(gpu: Gpu, capacity: int, nccl: int = 0) -> str:
    """ "RTX 4090 has 23.1 GiB beside the context". ``capacity``: what the program may reserve, by its own limit too.
    ``nccl``: what communicators take."""
    has = f"{clean(gpu.label)} has {room_beside(gpu, nccl)}"
    return has if capacity >= gpu.capacity - nccl else f"{has}, and the program limits itself to {near_size(capacity)}"


def _is_complete(found: Answer) -> bool:
    return not (found.job.died and not found.job.whole_steps)


def notes_on(job: Job) -> list[str]:
    """What the figures are not, whatever the GPU."""
    lines = []
    if not job.caching:
        lines.append(_about_cpu(job))
    if job.is_lower_bound:
        lines.append("Events of the capture are lost or damaged: every figure is at least as large.")
    if job.has_damaged_notes:
        lines.append(
            "Parts of the capture are damaged that say what was requested and what autograd saved: figures are rough."
        )
    if job.died and job.whole_steps:
        whole = counted(job.whole_steps, "whole step")
        lines.append(f"The run ended in step {job.steps[-1][1]}: figures are those of the {whole} before.")
    return lines


def _about_cpu(job: Job) -> str:
    """Why the figures are those of the CPU, and what that means."""
    gpu = predicted_on(job.capture.info)
    if job.capture.main_device != "cpu":
        return "The CPU has no caching allocator: figures are what was allocated, and a GPU reserves more."
    if gpu:
        when = "it ended before anything" if job.died else "nothing"
        return (
            f"It was predicted on {clean(gpu)}, but {when} was allocated on the GPU: figures are what the CPU "
            f"allocated."
        )
    return "It ran on the CPU, which has no caching allocator: figures are what was allocated, and a GPU reserves more."


def notes(found: Answer) -> list[str]:
    """Sentences on what the figures do not say."""
    job, lines = found.job, [*found.about, *notes_on(found.job)]
    program, world = program_words(job.capture.info) or ANY_SCRIPT, world_of(job.capture)
    if not job.steps:
        lines.append("The capture has no training steps: only the allocator's settings can be tried.")
    elif not job.whole_steps:
        options = ("--gpu", found.gpu.name, *(("--ranks", str(world)) if world > 1 else ()))
        lines.append(
            "The run ended in its first step, so what would follow is not known. Record a smaller batch, give a "
            f"predicted capture beside it, or predict the script:  modscope fit "
            f"{clean(script_words(program, *options))}"
        )
    if found.ranks and not found.on_ranks:
        lines.append(
            f"What each of {found.ranks} ranks would take is not known: {why_not_over(job)}. Predict the script "
            f"instead:  "
            f"modscope predict --gpu {shlex.quote(found.gpu.name)} --ranks {found.ranks} {clean(shlex.join(program))}"
        )
    return lines


def _nothing_helps(found: Answer) -> str:
    """Why: what holds most where the best change leaves most, and what would still help."""
    if not found.tried:
        return f"No change that is known here makes it fit. {_what_would(found)}"
    best = min(found.tried, key=lambda tried: tried.outcome.reserved).outcome
    verb = "reserved" if found.job.caching else "allocated"
    least = (
        f"None of this makes it fit: with the change that needs least, {near_size(best.reserved)} are {verb} "
        f"{describe_moment(*best.at)}"
    )
    if found.job.caching and best.allocated <= found.capacity:
        least += f", though only {near_size(best.allocated)} are allocated at most: the rest are gaps between blocks"
    return f"{least}. {_what_would(found)}"


def _what_would(found: Answer) -> str:
    if found.rest > found.capacity:
        return (
            f"Parameters, gradients and optimizer state alone are {near_size(found.rest)}: a GPU with more "
            f"memory, or more GPUs, would help."
        )
    return "A GPU with more memory, more GPUs or a smaller batch would help."


def in_column(verdict: Verdict) -> str:
    """What the column "fits" says of a verdict."""
    return {FITS: "yes", NOT: "no"}.get(verdict.answer, "too close")


def approximately(tried: Tried, figure: str) -> str:
    """ "about 4.2 GiB" where it is an estimate."""
    return f"about {figure}" if tried.is_approximate else figure


def cost_of(tried: Tried) -> str:
    retries = tried.outcome.retries if tried.outcome.fits else 0
    return tried.lever.cost + (f", and the allocator gives memory back {_times(retries)}" if retries else "")


def _table(found: Answer, rows: list[Tried], screen: Screen, title: str) -> list[str]:
    verified = any(tried.is_verified for tried in rows)
    headers = (title, "reserved", "fits", *["verified"] * verified, "cost")
    cells = []
    for tried in rows:
        figures = (
            approximately(tried, near_size(tried.outcome.reserved_on_gpu)),
            in_column(found.verdict_on(tried)),
            *["yes" if tried.is_verified else ""] * verified,
        )
        cells.append((clean(tried.lever.name), *figures, cost_of(tried)))
    last = len(headers) - 1
    return screen.table(headers, cells, left=(0, 2, 3), broken=(0, last), indent="  ")


def _next_command(found: Answer, script: Sequence[str]) -> list[str]:
    if not found.job.caching or not any(tried.lever.modules for tried in found.tried):
        return []
    world = world_of(found.job.capture)
    ranks = ("--ranks", str(world)) if script and world > 1 else ()
    options = ("--gpu", found.gpu.name, *ranks, "-o", "plan.json")
    words = script_words(script, *options) if script else shlex.join([found.job.file, *options])
    return [f"Make a plan:  modscope plan {clean(words)}"]


# ---- several GPUs ----


def table_of_gpus(answers: list[Answer], screen: Screen) -> list[str]:
    first = answers[0]
    verb = "reserved" if first.job.caching else "allocated"
    sentences = [f"{first.job.device} {verb} {_most(first.before.reserved, first.job.is_lower_bound)}.", *notes(first)]
    lines = [*_wrapped(sentences, screen), ""]
    of_ranks = [f"on {first.ranks} ranks"] if any(each.on_ranks for each in answers) else []
    if of_ranks:
        least = min(first.on_ranks, key=lambda tried: tried.outcome.reserved)
        most = approximately(least, near_size(least.outcome.reserved))
        lines[-1:] = [
            *screen.wrap(f"Each of {first.ranks} ranks: {clean(least.lever.name)}, {most} reserved at most."),
            "",
        ]
    headers = ("GPU", "has", "fits", *of_ranks, "what would make it fit", "cost")
    cells = []
    for each in answers:
        cheapest = min(
            (tried for tried in each.tried if tried.outcome.fits and not each.before.fits),
            key=lambda tried: tried.price,
            default=None,
        )
        how = (clean(cheapest.lever.name), cost_of(cheapest)) if cheapest else ("", "")
        on_ranks = ["yes" if any(tried.outcome.fits for tried in each.on_ranks) else "no"] if of_ranks else []
        cells.append((clean(each.gpu.name), near_size(each.capacity), _in_table(each), *on_ranks, *how))
    last = len(headers) - 1
    lines += screen.table(headers, cells, left=(0, 2, 3, last - 1), broken=(last - 1, last), indent="  ")
    return [*lines, *_wrapped(_about_table(answers), screen)]


def _in_table(found: Answer) -> str:
    """ "yes, giving memory back 2 times in each step", or "no *" of a GPU that runs other kernels."""
    often = ""
    if found.before.fits and found.before.retries:
        often = f", but {count_of_retries(found.before.retries, found.retries_per_step)}"
    return f"{in_column(found.verdict)}{often}{' *' if found.other_kernels else ''}"


def _about_table(answers: Sequence[Answer]) -> list[str]:
    """Why verdicts of the table are open, and which may be wrong."""
    verdicts = [found.verdict for found in answers]
    reasons = dict.fromkeys(verdict.why for verdict in verdicts if verdict.answer == OPEN)
    return [
        *(f"{OPEN.capitalize()}: {why}" for why in reasons),
        *about_several(answers[0].job.capture, [found.gpu for found in answers]),
    ]
