"""A run in figures: its peaks, what each module held then, how it ended. ``modscope summary``, the page and the
notebook show them. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modscope._categories import TOTAL
from modscope._collective_totals import summarize_collectives
from modscope._load import Capture, Snapshot
from modscope._peak import Peak
from modscope._text import counted, size
from modscope._virtual.gpus import label_of

Report = dict[str, Any]
"""Figures, as ``--json`` prints them."""


def file_report(file: str, capture: Capture) -> Report:
    """The keys with which every report on one capture begins."""
    losses = {"lost": capture.lost, "damaged": capture.damaged, "ended": capture.end is not None}
    return {"file": file, **losses, "predicted_on": predicted_on(capture.info)}


def predicted_on(info: Mapping[str, str]) -> str | None:
    """The virtual GPU of a capture that ``modscope predict`` made; None if the run was real."""
    return label_of(info.get("gpu_title", "a virtual GPU")) if info.get("source") == "predicted" else None


def moment_of(snapshot: Snapshot) -> Report:
    """A moment: when it was, and what was running."""
    phase, module = snapshot.running
    return {"moment": snapshot.moment, "time": snapshot.time, "step": snapshot.step, "phase": phase, "module": module}


def summarize(file: str, capture: Capture, most_modules: int | None = None) -> Report:
    """``most_modules``: how many modules are listed for each device; by default all."""
    devices = [_device(capture, name, most_modules) for name in capture.peaks]
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
        "phases": {word: phase._asdict() for word, phase in capture.phases.items()},
        "devices": sorted(devices, key=lambda one: (one["device"] != main, -int(one["peak"]["bytes"]))),
        "collectives": summarize_collectives(capture),
        "oom_count": capture.oom_count,
        "last_oom": summarize_oom(capture),
    }


def _peak(peak: Peak) -> Report:
    moment = {"moment": peak.moment, "time": peak.time, "step": peak.step, "phase": peak.phase, "module": peak.module}
    return {"bytes": peak.bytes, **moment, "reserved": peak.reserved}


def _device(capture: Capture, name: str, most_modules: int | None) -> Report:
    snapshot = capture.snapshot("peak", name)
    modules = snapshot.by_module().get(name, {})
    largest = sorted(modules.items(), key=lambda item: -item[1][TOTAL])[:most_modules]
    return {
        "device": name,
        "peak": _peak(capture.peaks[name]),
        "peak_reserved": capture.reserved[name],
        "categories": snapshot.totals[name],
        "kinds": snapshot.kinds.get(name, {}),
        "outside": snapshot.outside[name],
        "modules": [{"module": fqn, "own": sums} for fqn, sums in largest],
    }


def summarize_oom(capture: Capture) -> Report | None:
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
        **moment_of(snapshot),
        "phase": failed.phase,
        "module": failed.module,
    }


# ---- in words ----


def describe_program(info: Mapping[str, str]) -> str:
    """The program that ran, with its arguments and rank."""
    words = [info.get("program", "A program"), *info.get("arguments", "").split("\n")]
    rank = f"(rank {info.get('rank', '?')} of {info['world']})" if info.get("world", "1") != "1" else ""
    return " ".join(filter(None, (*words, rank)))


def describe_prediction(info: Mapping[str, str]) -> str:
    """ "predicted on RTX 4090"; "" if the run was real."""
    gpu = predicted_on(info)
    return f"predicted on {gpu}" if gpu else ""


def describe_end(end: Mapping[str, str] | None) -> str:
    """How the program ended."""
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
    """ "Stopped after 3 optimizer steps, as --steps 3 says". ``by``: the option of modscope; "": the program ended its recording itself, or the
    capture does not say."""
    option, _, number = by.partition(" ")
    after = {"--steps": f"{number} optimizer {'step' if number == '1' else 'steps'}", "--seconds": f"{number} s"}.get(
        option
    )
    return f"Stopped after {after}, as {by} says" if after else "Stopped before the program's own end"


def describe_losses(report: Report) -> list[str]:
    """A sentence for each reason to doubt the figures."""
    sentences = []
    if report["lost"]:
        sentences.append(f'{counted(report["lost"], "event")} could not be written: every figure is "at least".')
    if report["damaged"]:
        sentences.append(
            f'{size(report["damaged"])} of the file cannot be read: it is damaged, or was cut short. What comes after is "at least".'
        )
    return sentences
