"""The line that ``modscope run`` prints at the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from modscope._read.text import describe_moment, size

if TYPE_CHECKING:
    from modscope._read.types import Peak
    from modscope._record.child_processes import StartedProcess
    from modscope._record.record import RecordingResult

_MOST_NAMES = 8


def _main_first(peaks: dict[str, Peak]) -> list[str]:
    """The devices; the main one is the one with the highest peak, but the CPU only if there is no other."""
    return sorted(peaks, key=lambda device: (device == "cpu", -peaks[device].bytes))


def _describe_peaks(peaks: dict[str, Peak]) -> str:
    """The main device's peak with its moment, then the other devices' peaks."""
    if not peaks:
        return "Nothing was allocated."
    main, *others = _main_first(peaks)
    peak = peaks[main]
    text = f"Peak {size(peak.bytes)} on {main} {describe_moment(peak.step, peak.phase, peak.module)}"
    return "; ".join([text, *(f"{size(peaks[device].bytes)} on {device}" for device in others)]) + "."


def describe_peak(peaks: dict[str, Peak]) -> str:
    """The main device's peak in a few words."""
    if not peaks:
        return ""
    main = _main_first(peaks)[0]
    return f"peak {size(peaks[main].bytes)} on {main}"


def _describe_losses(outcome: RecordingResult) -> str:
    why = f" ({outcome.error})" if outcome.error else ""
    if outcome.lost:
        return f'{outcome.lost:,} events are not in it{why}: every figure is "at least".'
    return f"It is not complete{why}." if why else ""


class RunPeak(TypedDict):
    """When a device held most."""

    bytes: int
    step: int
    phase: str
    module: str


class StartedProcessReport(TypedDict):
    """A process that the script started."""

    pid: int
    capture: str | None
    peak: str
    error: str | None


class RunReport(TypedDict):
    """The peaks of a script, and how it ended."""

    capture: str | None
    bytes: int
    events: int
    lost: int
    is_lower_bound: bool
    out_of_memory: int
    peaks: dict[str, RunPeak]
    ended: str
    error: str
    status: str
    processes: list[StartedProcessReport]


def figures_of(
    path: str | None, outcome: RecordingResult | None, end: dict[str, str], others: Sequence[StartedProcess]
) -> RunReport:
    """What ``modscope run --json`` writes. ``path``: that of the capture; None: there is none. ``outcome``: None if the
    program allocated nothing. ``others``: processes that it started."""
    return {
        "capture": path if outcome and outcome.bytes else None,
        "bytes": outcome.bytes if outcome else 0,
        "events": outcome.events if outcome else 0,
        "lost": outcome.lost if outcome else 0,
        "is_lower_bound": bool(outcome and (outcome.lost or outcome.error)),
        "out_of_memory": outcome.out_of_memory if outcome else 0,
        "peaks": {
            device: {"bytes": peak.bytes, "step": peak.step, "phase": peak.phase, "module": peak.module}
            for device, peak in (outcome.peaks if outcome else {}).items()
        },
        "ended": end.get("ended", ""),
        "error": end.get("error", ""),
        "status": end.get("status", ""),
        "processes": [
            {"pid": other.pid, "capture": other.path or None, "peak": other.peak, "error": other.error or None}
            for other in others
        ],
    }


def last_line(
    name: str, outcome: RecordingResult, how: str, loss: str | None = None, others: Sequence[StartedProcess] = ()
) -> str:
    """What a recording says at its end. ``name``: the capture's file; "" if none was asked for. ``how`` the program
    ended, as the capture says it. ``loss``: what happened to the file, if it is no longer under its name. ``others``:
    processes that it started."""
    peaks = " ".join([_describe_peaks(outcome.peaks), *_describe_others(others, " too")])
    if not name:
        return peaks
    if not outcome.bytes:
        return f"could not write {shlex.quote(name)}: {outcome.error or 'nothing was written'}. {peaks}"
    name = shlex.quote(name)
    if loss:
        return f"the capture {name} {loss} during the run. {peaks}"
    see = f"tree {name} --at oom" if how == "exception" and outcome.out_of_memory else f"summary {name}"
    inputs = f"{outcome.inputs[0].upper()}{outcome.inputs[1:]}." if how == "exception" and outcome.inputs else ""
    wrote = f"wrote {name} ({size(outcome.bytes)})."
    parts = [wrote, _describe_losses(outcome), peaks, inputs, f"See it:  modscope {see}"]
    return " ".join(filter(None, parts))


_SIZE = "(9999.99_MiB)"


def closing_after_sigterm(name: str) -> tuple[str, str]:
    """What is printed after SIGTERM has ended the program: before and after the size of the capture ``name``, which is
    not known yet."""
    from modscope._show.terminal import Screen, as_lines

    name = shlex.quote(name)
    sentence = f"wrote {name} {_SIZE}. SIGTERM ended the program. See it:  modscope summary {name}"
    before, _, after = "\n".join(as_lines([sentence], Screen.of(sys.__stderr__))).partition(_SIZE)
    return f"{before}(", f"){after}\n"


def last_line_of_launcher(program: str, what: str, others: Sequence[StartedProcess], started: bool) -> str:
    """The line for a program without a capture of its own. ``what`` it did instead; ``others``: processes that it
    started and that were recorded; ``started``: whether it started any program."""
    names = [shlex.quote(other.name) for other in others if other.name and not other.error]
    if not others:
        hint = (
            " Processes that it started did not either, or are no Python: start those with modscope run."
            if started
            else ""
        )
        return f"{program} {what}, so no capture was written.{hint}"
    parts = [f"{program} itself {what}.", *_describe_others(others)]
    if len(names) == 1:
        parts.append(f"See it:  modscope summary {names[0]}")
    elif names:
        parts.append(f"See them:  modscope report {' '.join(names[:_MOST_NAMES])}")
    return " ".join(parts)


def _describe_others(others: Sequence[StartedProcess], too: str = "") -> list[str]:
    """A sentence about the processes that were recorded, and one about those that could not be."""
    recorded = [other for other in others if not other.error]
    failed = [other for other in others if other.error]
    sentences = []
    if recorded:
        words = [_describe_other(other) for other in recorded[:_MOST_NAMES]]
        if len(recorded) > _MOST_NAMES:
            words.append(f"and {len(recorded) - _MOST_NAMES} more")
        if any(other.name for other in recorded):
            did = "wrote a capture" if len(recorded) == 1 else "wrote captures"
        else:
            did = "was tracked" if len(recorded) == 1 else "were tracked"
        sentences.append(f"{_count(recorded)} {did}{too}: {', '.join(words)}.")
    if failed:
        sentences.append(f"{_count(failed)} could not be recorded: {failed[0].error.rstrip('.')}.")
    return sentences


def _count(others: Sequence[StartedProcess]) -> str:
    return "A process that it started" if len(others) == 1 else f"{len(others)} processes that it started"


def _describe_other(other: StartedProcess) -> str:
    name = shlex.quote(other.name) if other.name else f"process {other.pid}"
    return f"{name} ({other.peak})" if other.peak else name
