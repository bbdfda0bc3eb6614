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
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from modscope import _predict_process
from modscope._capture import Allocator
from modscope._load import Capture, load
from modscope._predict_result import DEVICE, Result, as_json, failed_early, has_failed, may_reserve_beside
from modscope._predict_script import FACTS, LOG
from modscope._predict_text import as_lines, describe_error, hints, notes, seconds, step_time
from modscope._text import clean, counted, describe_moment, rough_size, size
from modscope._virtual.gpus import GPUS, Gpu, rules_of


def predict(options: argparse.Namespace) -> int:
    """The exit status, which is the script's."""
    began = time.monotonic()
    gpus: list[Gpu] = options.gpu or list(GPUS.values())
    status = 0
    rows: dict[Gpu, Result] = {}
    with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
        for number, kind in enumerate(_kinds(gpus)):
            part = os.path.join(folder, str(number))
            os.mkdir(part)
            ended = _predict_process.run(options, part, kind, silent=number > 0)
            status = status or ended
            facts = read_facts(part)
            if facts is None or "nothing" in facts:
                return refuse(options, facts, status)
            rows |= rows_of(kind, part, facts)
    results = [rows[gpu] for gpu in gpus]
    write_json(options.json, "gpus", results, time.monotonic() - began)
    if not options.quiet:
        first, *others = _sentences(options, results, time.monotonic() - began)
        sys.stderr.write(as_lines([first]) + _table(gpus, results) + "".join(f"{line}\n" for line in others))
        sys.stderr.flush()
    return status


def _kinds(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """The GPUs by their rules, those with most memory first: the script sees that much."""
    kinds: dict[Any, list[Gpu]] = {}
    for gpu in sorted(gpus, key=lambda gpu: -gpu.memory):
        kinds.setdefault(rules_of(gpu), []).append(gpu)
    return list(kinds.values())


def read_facts(part: str) -> dict[str, Any] | None:
    """None: the script's process ended without them."""
    try:
        with open(os.path.join(part, FACTS), encoding="utf-8") as file:
            facts: dict[str, Any] = json.load(file)
            return facts
    except (OSError, ValueError):
        return None


def refuse(options: argparse.Namespace, facts: dict[str, Any] | None, status: int, whose: str = "") -> int:
    """The script's own messages say why, if it failed. ``whose``: the rank, for the message."""
    if facts is not None and has_failed({**facts, "fits": True}):
        failed = {**facts, "fits": True, "ranks": {"size": options.ranks[0]} if options.ranks else None}
        sys.stderr.write(
            as_lines([f"{whose}the script failed before it used a GPU: {describe_error(failed)}.", *hints(failed)])
        )
    elif facts is not None:
        sys.stderr.write(as_lines([f"{whose}{options.target[0]} {facts['nothing']}, so there is nothing to predict."]))
    else:
        how = f"with status {status} and " if status else ""
        sys.stderr.write(as_lines([f"{whose}the script's process ended {how}without a result."]))
    return status if facts is not None else status or 1


# ---- one GPU ----


def rows_of(kind: list[Gpu], part: str, facts: dict[str, Any]) -> dict[Gpu, Result]:
    capture = load(facts["capture"])
    with open(os.path.join(part, LOG), "rb") as file:
        log = file.read()
    unlimited = Allocator(facts["torch"], capture.info.get("allocator") or None)
    unlimited.replay(log)
    needed = unlimited.stats()["reserved_bytes"]["all"]["peak"]
    return {gpu: _row(gpu, capture, log, facts, needed) for gpu in kind}


def _row(gpu: Gpu, capture: Capture, log: bytes, facts: dict[str, Any], needed: int) -> Result:
    """Replay on this GPU what the script asked of the unlimited one, which reserved ``needed`` bytes at most."""
    may_reserve = may_reserve_beside(gpu, facts)
    allocator = Allocator(facts["torch"], capture.info.get("allocator") or None, may_reserve, gpu.memory)
    failed = allocator.replay(log)
    stats = allocator.stats()
    reserved, allocated = stats["reserved_bytes"]["all"], stats["allocated_bytes"]["all"]
    failure = None
    if failed is not None:
        number, requested = failed
        figures = {"requested": requested, "allocated": allocated["current"], "reserved": reserved["current"]}
        failure = {"count": 1, **figures, **_moment_of(capture, number)}
    return {
        "gpu": gpu.name,
        "title": gpu.title,
        "memory": gpu.memory,
        "context": gpu.context,
        "reserved_peak": reserved["peak"],
        "allocated_peak": allocated["peak"],
        "fits": failed is None,
        "may_reserve": may_reserve,
        "to_spare": max(may_reserve - reserved["peak"], 0) if failed is None else None,
        "reserved_if_larger": needed,
        "step_ms": facts["step_times"].get(gpu.name),
        "out_of_memory": failure,
        "ranks": facts.get("ranks"),
        **{
            key: facts[key]
            for key in (
                "seconds",
                "steps",
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


def _moment_of(capture: Capture, number: int) -> Result:
    """What was running when the script allocated the block of this number."""
    added = (event for event in capture.events("add") if event.device == DEVICE)
    event = next(itertools.islice(added, number, None), None)
    if event is None:  # events were lost
        return {"step": 0, "phase": "idle", "module": "Global"}
    return {"step": capture.snapshot(event.number).step, "phase": event.phase, "module": event.module}


# ---- the result ----


def write_json(path: str | None, what: str, results: list[Result], elapsed: float) -> None:
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"seconds": round(elapsed, 3), what: [as_json(result) for result in results]}, file, indent=2)
            file.write("\n")


def _sentences(options: argparse.Namespace, results: list[Result], elapsed: float) -> list[str]:
    first = results[0]
    done = counted(first["steps"], "step") if first["steps"] else "the script"
    which = counted(len(results), "GPU")
    lines = [f"predicted {done} on {which} in {seconds(elapsed)}."]
    if not any(result["reserved_peak"] or result["out_of_memory"] for result in results):
        lines.append('The script used no GPU: it uses one where its device is "cuda".')
    if first["timed_out"]:
        lines.append(f"The script was stopped after {first['timed_out']:g} s, as --seconds says.")
    elif has_failed(first):
        lines.append(f"The script failed ({describe_error(first)}): what would follow is not known.")
        lines += hints(first)
    lines += notes(first)
    fits = [result for result in results if result["fits"]]
    example = (fits or results)[0]["gpu"]
    words = ["modscope", "predict", "--gpu", example, *["-m"] * options.module, *options.target]
    lines.append(f"One GPU, with a capture:  {clean(shlex.join(words))}")
    return lines


def _table(gpus: list[Gpu], results: list[Result]) -> str:
    has_times = any(result["step_ms"] for result in results)
    rows = [["GPU", "memory", "reserves", "to spare", *(["a step"] if has_times else []), ""]]
    for gpu, result in zip(gpus, results):
        time = [step_time(result["step_ms"]) if result["step_ms"] else ""] if has_times else []
        rows.append([gpu.name, rough_size(gpu.memory), *needs(result), *time, verdict(result)])
    return as_columns(rows)


def needs(result: Result) -> list[str]:
    """What is reserved, and what is to spare."""
    reserves = result["reserved_peak"] if result["fits"] else result["reserved_if_larger"]
    spare = (
        rough_size(result["to_spare"]) if result["fits"] else f"-{rough_size(max(reserves - result['may_reserve'], 0))}"
    )
    return [size(reserves), spare]


def as_columns(rows: Sequence[Sequence[str]]) -> str:
    """The first column begins on the left and the last one too; numbers between them end in one column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1])), row[-1]]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def verdict(result: Result) -> str:
    failed = result["out_of_memory"]
    if failed is None and failed_early(result):
        return "not known: the script failed before its first optimizer step"
    if failed is None:
        return "fits so far: then the script failed" if has_failed(result) else "fits"
    when = describe_moment(failed["step"], failed["phase"], failed["module"], columns=60)
    return f"does not fit: {when}"
