"""A run in figures: its peaks, what each module held then, its collectives, how it ended. ``modscope summary``, the
page and the notebook show them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypedDict

from modscope._read.categories import TOTAL, Sums
from modscope._read.load import Capture, Snapshot
from modscope._read.shapes import shape_text, unit_of
from modscope._read.step_time import step_ms
from modscope._read.text import counted, gpu_label, milliseconds, size
from modscope._read.types import CollectiveGroup, Peak

_MUCH = 0.1
"""The part of a peak from which on it is worth a hint."""

Report = dict[str, Any]
"""Figures, as ``--json`` prints them. The records of this package have the names and the keys of _cli/schema.txt; where
another class has that name, "Report" follows it."""


class FileReport(TypedDict):
    """What every report on one capture begins with."""

    file: str
    lost: int
    damaged: int
    ended: bool
    predicted_on: str | None


class MomentReport(TypedDict):
    """When a moment was, and what was running."""

    moment: int
    time: float
    step: int
    phase: str
    module: str


class PeakReport(MomentReport):
    """The moment at which a device held most."""

    bytes: int
    reserved: int


class OwnBytes(TypedDict):
    """A module, and the bytes that it holds itself, by category."""

    module: str
    own: Sums


class DeviceSums(TypedDict):
    """A device at its peak, with the modules that hold most."""

    device: str
    peak: PeakReport
    peak_reserved: int
    categories: Sums
    kinds: Sums
    outside: int
    modules: list[OwnBytes]


class OutOfMemory(MomentReport):
    """An allocation that failed, and what was held then."""

    device: str | None
    requested: int
    held: int
    allocated: int | None
    reserved: int | None


class LaunchSums(TypedDict):
    """How many collectives were launched, their bytes, and how long they took."""

    count: int
    bytes: int
    seconds: float


class ModuleLaunches(TypedDict):
    """The collectives that were launched for a module."""

    module: str
    count: int
    bytes: int


class CollectiveGroupReport(TypedDict):
    """The ranks that take part in a collective."""

    name: str
    backend: str
    ranks: str
    size: int


class CollectiveSums(LaunchSums):
    """The collectives of one kind in one group: those of steps, and those before the first step."""

    kind: str
    group: CollectiveGroupReport
    before_steps: LaunchSums
    phases: dict[str, int]
    modules: list[ModuleLaunches]
    """The modules for which most bytes went through first, all phases together."""


class ShapeOfSteps(TypedDict):
    """The steps whose inputs had one shape."""

    shape: list[int]
    unit: str
    steps: int
    peak: int
    step: int


class InputShapes(TypedDict):
    """How the peak of the main device depends on the shape of a step's inputs."""

    shapes: int
    largest: ShapeOfSteps
    most_common: ShapeOfSteps


class PhaseSums(TypedDict):
    """A phase of the run: its seconds, and the blocks that were allocated in it."""

    time: float
    blocks: int
    bytes: int


class CaptureReport(FileReport):
    """A run."""

    is_lower_bound: bool
    bytes: int
    events: int
    info: dict[str, str]
    end: dict[str, str] | None
    duration: float
    steps: int
    optimizer_steps: int
    step_ms: float | None
    phases: dict[str, PhaseSums]
    devices: list[DeviceSums]
    inputs: InputShapes | None
    collectives: list[CollectiveSums]
    oom_count: int
    last_oom: OutOfMemory | None
    has_lines: bool
    hints: list[str]


def file_report(file: str, capture: Capture) -> FileReport:
    """The keys with which every report on one capture begins."""
    return {
        "file": file,
        "lost": capture.lost,
        "damaged": capture.damaged,
        "ended": capture.end is not None,
        "predicted_on": predicted_on(capture.info),
    }


def predicted_on(info: Mapping[str, str]) -> str | None:
    """The virtual GPU of a capture that ``modscope predict`` made; None if the run was real."""
    return gpu_label(info.get("gpu_title", "a virtual GPU")) if info.get("source") == "predicted" else None


def moment_of(snapshot: Snapshot) -> MomentReport:
    """A moment: when it was, and what was running."""
    phase, module = snapshot.running
    return {"moment": snapshot.moment, "time": snapshot.time, "step": snapshot.step, "phase": phase, "module": module}


def summarize(file: str, capture: Capture) -> CaptureReport:
    """The figures of a run that ``modscope summary`` prints."""
    devices = [_device(capture, name) for name in capture.peaks]
    main = capture.main_device
    return {
        **file_report(file, capture),
        "is_lower_bound": capture.is_lower_bound,
        "bytes": capture.bytes,
        "events": capture.event_count,
        "info": dict(capture.info),
        "end": None if capture.end is None else dict(capture.end),
        "duration": capture.duration,
        "steps": capture.last_step,
        "optimizer_steps": capture.optimizer_steps,
        "step_ms": step_ms(capture),
        "phases": {
            word: {"time": phase.time, "blocks": phase.blocks, "bytes": phase.bytes}
            for word, phase in capture.phases.items()
        },
        "devices": sorted(devices, key=lambda one: (one["device"] != main, -int(one["peak"]["bytes"]))),
        "inputs": summarize_inputs(capture),
        "collectives": summarize_collectives(capture),
        "oom_count": capture.oom_count,
        "last_oom": summarize_oom(capture),
        "has_lines": capture.places.has_lines,
        "hints": _hints(capture, main),
    }


def _hints(capture: Capture, device: str) -> list[str]:
    """Sentences about what the figures of a device at its peak do not show."""
    if device not in capture.peaks:
        return []
    snapshot = capture.snapshot("peak", device)
    lines: dict[str, int] = {}
    for module, place, raw in snapshot.by_module_and_place(device):
        frames = place.attributed.frames if module == "Global" and place is not None else ()
        for frame in (frame for frame in frames if frame.function.rpartition(".")[2] == "forward"):
            where = f"{frame.function}, {os.path.basename(frame.file)}:{frame.line or '?'}"
            lines[where] = lines.get(where, 0) + sum(raw)
            break
    made = sum(lines.values())
    if not made or made < _MUCH * snapshot.totals[device][TOTAL]:
        return []
    return [
        f"{size(made)} of Global were made in a forward that no call of a module is around "
        f"({max(lines, key=lambda where: lines[where])}). A module is seen where it is called itself, as module(x): "
        "module.forward(x) calls only the function."
    ]


def _peak(peak: Peak) -> PeakReport:
    return {
        "bytes": peak.bytes,
        "moment": peak.moment,
        "time": peak.time,
        "step": peak.step,
        "phase": peak.phase,
        "module": peak.module,
        "reserved": peak.reserved,
    }


def _device(capture: Capture, name: str) -> DeviceSums:
    snapshot = capture.snapshot("peak", name)
    modules = snapshot.by_module().get(name, {})
    largest = sorted(modules.items(), key=lambda item: -item[1][TOTAL])
    return {
        "device": name,
        "peak": _peak(capture.peaks[name]),
        "peak_reserved": capture.reserved[name],
        "categories": snapshot.totals[name],
        "kinds": snapshot.kinds.get(name, {}),
        "outside": snapshot.outside[name],
        "modules": [{"module": fqn, "own": sums} for fqn, sums in largest],
    }


def summarize_inputs(capture: Capture) -> InputShapes | None:
    """The largest shape of inputs and the most common one; None if steps do not differ in it."""
    rows: list[ShapeOfSteps] = [
        {"shape": [*dims], "unit": unit_of(dims, elements), "steps": steps, "peak": peak, "step": step}
        for dims, elements, steps, step, peak in capture.input_shapes
    ]
    if len(rows) < 2:
        return None
    return {"shapes": len(rows), "largest": rows[0], "most_common": max(rows, key=lambda row: row["steps"])}


def describe_inputs(inputs: InputShapes, steps: int) -> str:
    """Say how the peak depends on the shape. ``steps``: how many the run has."""
    largest, common = inputs["largest"], inputs["most_common"]
    text = f"The inputs of steps had {inputs['shapes']:,} shapes: {_describe_steps(largest)}, the largest, "
    text += f"held up to {size(largest['peak'])} (step {largest['step']:,})"
    if common == largest:
        return f"{text}; it is also the most common, in {common['steps']:,} of {counted(steps, 'step')}."
    return (
        f"{text}; {_describe_steps(common)}, the most common, in {common['steps']:,} of {counted(steps, 'step')}, "
        f"held up to {size(common['peak'])} (step {common['step']:,})."
    )


def _describe_steps(steps: ShapeOfSteps) -> str:
    return shape_text(steps["shape"], steps["unit"])


def summarize_oom(capture: Capture) -> OutOfMemory | None:
    """The last allocation that failed; None if none did."""
    failed = capture.last_oom
    if failed is None:
        return None
    snapshot = capture.snapshot("oom")
    return {
        "device": failed.device,
        "requested": failed.bytes,
        "held": snapshot.totals.get(str(failed.device), {}).get(TOTAL, 0),
        "allocated": failed.allocated,
        "reserved": failed.reserved,
        "moment": snapshot.moment,
        "time": snapshot.time,
        "step": snapshot.step,
        "phase": failed.phase or "idle",
        "module": failed.module or "Global",
    }


# ---- in words ----


def describe_program(info: Mapping[str, str]) -> str:
    """The program that ran, with its arguments and rank."""
    words = [info.get("program", "A program"), *info.get("arguments", "").split("\n")]
    rank = f"(rank {info.get('rank', '?')} of {info['world']})" if info.get("world", "1") != "1" else ""
    return " ".join(filter(None, (*words, rank)))


def describe_prediction(info: Mapping[str, str]) -> str:
    """Say on which GPU a run was predicted: "predicted on RTX 4090"; "" if the run was real."""
    gpu = predicted_on(info)
    return f"predicted on {gpu}" if gpu else ""


def describe_step_time(milliseconds_of_step: float | None) -> str:
    """Say how long a step takes: "19.7 ms a step"; "" if that is not known."""
    return f"{milliseconds(milliseconds_of_step)} a step" if milliseconds_of_step else ""


def describe_end(end: Mapping[str, str] | None) -> str:
    """Say how the program ended: "Finished", "Exited with status 1"."""
    if end is None:
        return "No end: it was killed, or still runs"
    how, status, error, by = (end.get(word, "") for word in ("how", "status", "error", "by"))
    if how == "finished" and status not in ("", "0"):
        return f"Exited with status {status}"
    words = {
        "finished": "Finished",
        "exception": "Ended by an exception",
        "stopped": "Stopped" if error else _describe_stop(by),
        "interrupted": "Interrupted",
        "terminated": "Ended by SIGTERM",
    }
    return words.get(how, how or "Ended") + (f": {error.splitlines()[0]}" if error.strip() else "")


def _describe_stop(by: str) -> str:
    """Say what stopped a recording: "Stopped after 3 steps, as --steps 3 says". ``by``: the option of
    modscope; "" if the program ended its recording itself, or the capture does not say."""
    option, _, number = by.partition(" ")
    after = {"--steps": f"{number} {'step' if number == '1' else 'steps'}", "--seconds": f"{number} s"}.get(option)
    return f"Stopped after {after}, as {by} says" if after else "Stopped before the program's own end"


def describe_losses(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each reason to doubt the figures."""
    sentences = []
    if report["lost"]:
        sentences.append(f'{counted(report["lost"], "event")} could not be written: every figure is "at least".')
    if report["damaged"]:
        sentences.append(
            f"{size(report['damaged'])} of the file cannot be read: it is damaged, or was cut short. What comes "
            f'after is "at least".'
        )
    return sentences


# ---- collectives ----


def summarize_collectives(capture: Capture) -> list[CollectiveSums]:
    """The collectives of each kind and group, those with most bytes first."""
    rows: dict[tuple[str, CollectiveGroup], CollectiveSums] = {}
    modules: dict[tuple[str, CollectiveGroup], dict[str, ModuleLaunches]] = {}
    for kind, group, module, phase, in_step, count, amount, seconds in capture.collective_totals():
        if (kind, group) not in rows:
            rows[kind, group], modules[kind, group] = _new_row(kind, group), {}
        row = rows[kind, group]
        sums: LaunchSums = row if in_step else row["before_steps"]
        sums["count"] += count
        sums["bytes"] += amount
        sums["seconds"] += seconds
        if not in_step:
            continue
        row["phases"][phase] = row["phases"].get(phase, 0) + count
        launched = modules[kind, group].setdefault(module, {"module": module, "count": 0, "bytes": 0})
        launched["count"] += count
        launched["bytes"] += amount
    for key, row in rows.items():
        row["modules"] = sorted(modules[key].values(), key=lambda one: -one["bytes"])
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def group_report(group: CollectiveGroup) -> CollectiveGroupReport:
    return {"name": group.name, "backend": group.backend, "ranks": group.ranks, "size": group.size}


def _new_row(kind: str, group: CollectiveGroup) -> CollectiveSums:
    return {
        "kind": kind,
        "group": group_report(group),
        "count": 0,
        "bytes": 0,
        "seconds": 0.0,
        "before_steps": {"count": 0, "bytes": 0, "seconds": 0.0},
        "phases": {},
        "modules": [],
    }
