"""``modscope predict`` for several GPUs: a table.

The script runs once for each kind of GPU (gpus.rules_of), with unlimited memory. What it asked of the allocator is then
replayed on each GPU of that kind, with the memory that this one has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from modscope._capture import Allocator
from modscope._predict.in_script import FACTS, LOG
from modscope._predict.options import PredictOptions, records_of
from modscope._predict.process import for_part, start, wait
from modscope._predict.progress import Progress
from modscope._predict.result import (
    Facts,
    Predicted,
    Result,
    as_json,
    failed_early,
    has_failed,
    judged,
    may_reserve_beside,
    verdict_of,
)
from modscope._predict.text import count_steps, describe_error, hints, notes, seconds, step_time
from modscope._read.load import Capture, load
from modscope._read.step_time import step_ms_by
from modscope._read.text import clean, counted, describe_moment, rough_size, size
from modscope._record.options import ScriptOptions
from modscope._show.terminal import Screen, as_lines, say
from modscope._virtual.certainty import OPEN, count_of_retries, in_table
from modscope._virtual.gpus import GPUS, Gpu, rules_of


def predict(arguments: argparse.Namespace) -> Predicted:
    began = time.monotonic()
    gpus: list[Gpu] = arguments.gpu or list(GPUS.values())
    script, prediction = records_of(arguments)
    status = 0
    rows: dict[Gpu, Result] = {}
    with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
        kinds = kinds_of(gpus)
        for number, kind in enumerate(kinds):
            part = os.path.join(folder, str(number))
            of_kind = for_part(script, prediction, part, gpus=[gpu.name for gpu in kind])
            what = f"{script.program} on {kind[0].label} ({number + 1} of {len(kinds)})"
            progress = Progress(what, script.steps, [part], quiet=script.quiet or bool(script.json))
            ended = wait(start(*of_kind, silent=number > 0), progress.tick)
            progress.done()
            status = status or ended
            facts = read_facts(part)
            if facts is None or "nothing" in facts:
                return nothing_to_predict(script, prediction, facts, status)
            rows |= rows_of(kind, part, facts)
    results, elapsed = [rows[gpu] for gpu in gpus], time.monotonic() - began

    def text(screen: Screen) -> list[str]:
        first, *others = _sentences(script, results, elapsed)
        wrapped = [line for sentence in others for line in screen.wrap(sentence)]
        return [*as_lines([first], screen), *_table(gpus, results, screen), *wrapped]

    return Predicted(status, figures_of("gpus", results, elapsed), text)


def kinds_of(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """The GPUs by their rules, those with most memory first: the script sees that much."""
    kinds: dict[Any, list[Gpu]] = {}
    for gpu in sorted(gpus, key=lambda gpu: -gpu.memory):
        kinds.setdefault(rules_of(gpu), []).append(gpu)
    return list(kinds.values())


def read_facts(part: str) -> Facts | None:
    """None: the script's process ended without them."""
    try:
        with open(os.path.join(part, FACTS), encoding="utf-8") as file:
            facts: Facts = json.load(file)
            return facts
    except (OSError, ValueError):
        return None


def nothing_to_predict(
    script: ScriptOptions, prediction: PredictOptions, facts: Facts | None, status: int, whose: str = ""
) -> Predicted:
    """The script's own messages say why, if it failed. ``whose``: the rank, for the message."""
    if facts is not None and has_failed({**facts, "fits": True}):
        failed = {**facts, "fits": True, "ranks": {"size": prediction.ranks} if prediction.ranks else None}
        why = [f"the script failed before it used a GPU: {describe_error(failed)}.", *hints(failed)]
    elif facts is not None:
        why = [f"{script.program} {facts['nothing']}, so there is nothing to predict."]
    else:
        how = f"with status {status} and " if status else ""
        why = [f"the script's process ended {how}without a result."]
    say(f"{whose}{why[0]}", *why[1:])
    return Predicted(status if facts is not None else status or 1)


# ---- one GPU ----


def rows_of(kind: list[Gpu], part: str, facts: Facts) -> dict[Gpu, Result]:
    capture = load(facts["capture"])
    with open(os.path.join(part, LOG), "rb") as file:
        log = file.read()
    unlimited = Allocator(facts["torch"], capture.info.get("allocator") or None)
    unlimited.replay(log)
    needed = unlimited.stats()["reserved_bytes"]["all"]["peak"]
    return {gpu: _row(gpu, capture, log, facts, needed) for gpu in kind}


def _row(gpu: Gpu, capture: Capture, log: bytes, facts: Facts, needed: int) -> Result:
    """Replay on this GPU what the script asked of the unlimited one, which reserved ``needed`` bytes at most."""
    may_reserve = may_reserve_beside(gpu, facts)
    run = _Replayed(gpu, capture, log, facts, may_reserve, needed)
    allocator = run.on(may_reserve)
    failed = allocator.replay(log)
    stats = allocator.stats()
    reserved, allocated = stats["reserved_bytes"]["all"], stats["allocated_bytes"]["all"]
    failure = None
    if failed is not None:
        number, requested = failed
        figures = {"requested": requested, "allocated": allocated["current"], "reserved": reserved["current"]}
        failure = {"count": 1, **figures, **_moment_of(capture, facts["device"], number)}
    return {
        "gpu": gpu.name,
        "device": facts["device"],
        "title": gpu.title,
        "memory": gpu.memory,
        "context": gpu.context,
        "reserved_peak": reserved["peak"],
        "allocated_peak": allocated["peak"],
        "fits": failed is None,
        "may_reserve": may_reserve,
        "to_spare": max(may_reserve - reserved["peak"], 0) if failed is None else None,
        **judged(gpu, facts, capture, failed is None, reserved["peak"], stats["num_alloc_retries"], run),
        "reserved_if_larger": needed,
        "step_ms": step_ms_by(capture, facts["step_ends"].get(gpu.name, [])),
        "out_of_memory": failure,
        "ranks": facts.get("ranks"),
        "compiled": facts.get("compiled"),
        **{
            key: facts[key]
            for key in (
                "seconds",
                "steps",
                "are_optimizer_steps",
                "ended",
                "timed_out",
                "error",
                "status",
                "torch",
                "bytes_without_rule",
                "notes",
            )
        },
        "allocator": capture.info.get("allocator", ""),
    }


class _Replayed(NamedTuple):
    """What a script asked of an unlimited GPU, replayed on this one."""

    gpu: Gpu
    capture: Capture
    log: bytes
    facts: Facts
    may_reserve: int
    needed: int

    def on(self, capacity: int) -> Allocator:
        return Allocator(self.facts["torch"], self.capture.info.get("allocator") or None, capacity, self.gpu.memory)

    def unlimited(self) -> int:
        return self.needed

    def fits_with(self, capacity: int) -> bool:
        return self.on(capacity).replay(self.log) is None


def _moment_of(capture: Capture, device: str, number: int) -> Result:
    """What was running when the script allocated the block of this number."""
    added = (event for event in capture.events("add") if event.device == device)
    event = next(itertools.islice(added, number, None), None)
    if event is None:  # events were lost
        return {"step": 0, "phase": "idle", "module": "Global"}
    return {"step": capture.snapshot(event.number).step, "phase": event.phase, "module": event.module}


# ---- the result ----


def figures_of(what: str, results: list[Result], elapsed: float) -> Result:
    return {"seconds": round(elapsed, 3), what: [as_json(result) for result in results]}


def _sentences(script: ScriptOptions, results: list[Result], elapsed: float) -> list[str]:
    first = results[0]
    done = count_steps(first)
    which = counted(len(results), "GPU")
    lines = [f"predicted {done} on {which} in {seconds(elapsed)}."]
    if not any(result["reserved_peak"] or result["out_of_memory"] for result in results):
        lines.append('The script used no GPU: it uses one where its device is "cuda".')
    if first["timed_out"]:
        lines.append(f"The script was stopped after {first['timed_out']:g} s, as --seconds says.")
    elif has_failed(first):
        lines.append(f"The script failed ({describe_error(first)}): what would follow is not known.")
        lines += hints(first)
    lines += [*about_verdicts(results), *notes(first)]
    fits = [result for result in results if result["fits"]]
    example = (fits or results)[0]["gpu"]
    words = ["modscope", "predict", "--gpu", example, *script.target]
    lines.append(f"One GPU, with a capture:  {clean(shlex.join(words))}")
    return lines


def _table(gpus: list[Gpu], results: list[Result], screen: Screen) -> list[str]:
    rows = [[gpu.name, rough_size(gpu.memory), *needs(result)] for gpu, result in zip(gpus, results)]
    return table(["GPU", "memory", "reserves", "to spare"], rows, results, screen)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], results: Sequence[Result], screen: Screen, about: str = ""
) -> list[str]:
    """The rows with the time of a step, if it is known of one of them, and the verdict. ``about`` precedes a time."""
    has_times = any(result["step_ms"] for result in results)
    times = [[f"{about}{step_time(result['step_ms'])}" if result["step_ms"] else ""] * has_times for result in results]
    cells = [[*row, *time, verdict(result)] for row, time, result in zip(rows, times, results)]
    headers = [*headers, *["a step"] * has_times, ""]
    return screen.table(headers, cells, left=(0,), broken=(len(headers) - 1,))


def needs(result: Result) -> list[str]:
    """What is reserved, and what is to spare."""
    reserves = result["reserved_peak"] if result["fits"] else result["reserved_if_larger"]
    spare = (
        rough_size(result["to_spare"]) if result["fits"] else f"-{rough_size(max(reserves - result['may_reserve'], 0))}"
    )
    return [size(reserves), spare]


def about_verdicts(results: Sequence[Result]) -> list[str]:
    """Why verdicts of a table are open, and what jobs that fit by giving memory back would reserve otherwise."""
    reasons = dict.fromkeys(result["why"] for result in results if verdict_of(result).answer == OPEN)
    lines = [f"{OPEN.capitalize()}: {why}" for why in reasons]
    again = [result["reserved_unlimited"] for result in results if result["fits"] and result.get("retries")]
    if again:
        lines.append(
            f"Steps take longer where the allocator gives memory back and takes it again: with more memory "
            f"{size(max(again))} would be reserved."
        )
    return lines


def verdict(result: Result) -> str:
    failed, found = result["out_of_memory"], verdict_of(result)
    if failed is None and failed_early(result):
        return "not known: the script failed before its first optimizer step"
    if found.answer == OPEN:
        return in_table(found)
    if failed is None:
        often = ""
        if result.get("retries"):
            often = f", but {count_of_retries(result['retries'], result['retries_per_step'])}"
        return f"fits so far{often}: then the script failed" if has_failed(result) else f"fits{often}"
    when = describe_moment(failed["step"], failed["phase"], failed["module"], columns=60)
    return f"does not fit: {when}"
