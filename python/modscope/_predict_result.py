"""The result of a prediction: what the GPU would have had to reserve, whether that fits, and where memory ran out. Needs no torch."""

from __future__ import annotations

import statistics
from typing import Any

from modscope._load import Capture
from modscope._virtual.gpus import Gpu

DEVICE = "cuda:0"
Result = dict[str, Any]
"""As --json writes it."""


def result_of(
    gpu: Gpu, facts: dict[str, Any], capture: Capture | None, path: str, step_ms: float | None = None
) -> Result:
    """The result of a script that ran on this virtual GPU. ``facts`` are _predict_script.Prediction.facts'."""
    peak = capture.peaks.get(DEVICE) if capture else None
    reserved = capture.reserved.get(DEVICE, 0) if capture else 0
    failed = _failure(capture) if capture else None
    fits = failed is None or _went_on(capture, facts)
    may_reserve = may_reserve_beside(gpu, facts)
    return {
        "gpu": gpu.name,
        "title": gpu.title,
        "memory": gpu.memory,
        "context": gpu.context,
        "reserved_peak": reserved,
        "allocated_peak": peak.bytes if peak else 0,
        "fits": fits,
        "may_reserve": may_reserve,
        "to_spare": max(may_reserve - reserved, 0) if fits else None,
        "step_ms": step_ms if step_ms is not None else _step_ms(capture),
        "seconds": facts["seconds"],
        "steps": facts["steps"],
        "peak": _moment(peak.step, peak.phase, peak.module) if peak else None,
        "reserved_at_peak": peak.reserved if peak else 0,
        "reserved_moment": _reserved_moment(capture, reserved)
        if capture and peak and peak.reserved != reserved
        else None,
        "out_of_memory": failed,
        "ranks": facts.get("ranks"),
        "ended": facts["ended"],
        "timed_out": facts["timed_out"],
        "error": facts["error"],
        "status": facts["status"],
        "torch": facts["torch"],
        "allocator": capture.info.get("allocator", "") if capture else "",
        "bytes_without_rule": facts["bytes_without_rule"],
        "notes": facts["notes"],
        "capture": path,
    }


def may_reserve_beside(gpu: Gpu, facts: dict[str, Any]) -> int:
    """What torch's allocator may reserve beside the context and NCCL's communicators."""
    ranks = facts.get("ranks") or {"communicator_bytes": 0}
    return min(gpu.may_reserve(facts["fraction"]), max(gpu.capacity - int(ranks["communicator_bytes"]), 0))


def has_failed(result: Result) -> bool:
    """Whether the script ended by an exception, or with a status that says so; not, where the GPU's memory ran out."""
    return bool(result["fits"]) and (result["ended"] == "exception" or result["status"] not in ("", "0"))


def failed_early(result: Result) -> bool:
    """Whether it failed before its first optimizer step, so that nothing can be said of what it needs."""
    return has_failed(result) and not result["steps"]


def as_json(result: Result) -> Result:
    """Without a verdict where there can be none."""
    return {**result, "fits": None, "to_spare": None} if failed_early(result) else result


def _moment(step: int, phase: str | None, module: str | None) -> Result:
    return {"step": step, "phase": phase or "idle", "module": module or "Global"}


def _failure(capture: Capture | None) -> Result | None:
    """The last allocation that failed on the virtual GPU."""
    failed = capture.last_oom if capture else None
    if capture is None or failed is None or failed.device != DEVICE:
        return None
    step = capture.snapshot("oom").step
    figures = {"requested": failed.bytes, "allocated": failed.allocated, "reserved": failed.reserved}
    return {"count": capture.oom_count, **figures, **_moment(step, failed.phase, failed.module)}


def _went_on(capture: Capture | None, facts: dict[str, Any]) -> bool:
    """Whether the script caught the failure and did its work afterwards: it took an optimizer step, or, if it never takes
    one, allocated more."""
    if capture is None or capture.last_oom is None or facts["ended"] == "exception":
        return False
    kind = "optimizer_step" if capture.optimizer_steps else "add"
    return next(capture.events(kind, first=capture.last_oom.number + 1), None) is not None


def _reserved_moment(capture: Capture, reserved: int) -> Result | None:
    """When the most was first reserved."""
    for event in capture.events("reserved"):
        if event.device == DEVICE and event.bytes == reserved:
            snapshot = capture.snapshot(event.number + 1)
            return _moment(snapshot.step, *snapshot.running)
    return None


def _step_ms(capture: Capture | None) -> float | None:
    """The median time of the steps after the first, where the capture's clock is the virtual one. A step that no optimizer
    ended has no time: the script was stopped in it, or does not train."""
    if capture is None or capture.info.get("clock") != "virtual":
        return None
    complete = range(1, capture.optimizer_steps + 1)
    steps = [1e3 * (step.end - step.begin) for step in capture.steps() if step.number in complete]
    times = [time for time in steps[1:] or steps if time > 0]
    return statistics.median(times) if times else None
