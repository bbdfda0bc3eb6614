"""What all reading commands share: opening, moments in words, notes, the next command."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from modscope._commands.terminal import Screen, cells, clean, counted, percent, size
from modscope._load import Capture, Snapshot
from modscope._categories import TOTAL, Sums

Report = dict[str, Any]
Load = Callable[[str], Capture]

_SPLIT = 36  # columns for the categories of a row, where there is room


def head(file: str, capture: Capture) -> Report:
    """The keys with which every report of one capture begins."""
    return {"file": file, "lost": capture.lost, "damaged": capture.damaged}


def spot(snapshot: Snapshot) -> Report:
    """A moment: when it was, and what was running."""
    phase, module = snapshot.running
    return {"moment": snapshot.moment, "time": snapshot.time, "step": snapshot.step, "phase": phase, "module": module}


def moment_report(file: str, load: Load, arguments: Namespace) -> tuple[Report, Snapshot]:
    """The beginning of a report on a device at a moment, and the snapshot to go on with."""
    capture, at = load(file), arguments.at
    device = find_device(capture, arguments.device)
    snapshot = capture.snapshot(at, device)
    failed = capture.last_oom if at == "oom" else None
    if device is None:
        device = failed.device if failed else capture.main_device if at == "peak" else snapshot.main_device
    held = {name: sums[TOTAL] for name, sums in snapshot.totals.items()}
    report = {
        **head(file, capture),
        "is_lower_bound": snapshot.is_lower_bound,
        "at": at,
        **spot(snapshot),
        "device": device,
        "total": held.pop(device or "", 0),
        "reserved": snapshot.reserved.get(device or "", 0),
        "requested": failed.bytes if failed else None,
        "others": {name: value for name, value in held.items() if value},
    }
    return report, snapshot


def find_device(capture: Capture, asked: str | None) -> str | None:
    """A device by its name, or by the beginning of it if no other begins so."""
    if asked is None:
        return None
    alike = [name for name in capture.devices if name.startswith(asked)]
    device = alike[0] if len(alike) == 1 else asked
    capture._device(device)
    return device


# ---- in words ----

def parts_of(sums: Sums) -> Sums:
    return {word: value for word, value in sums.items() if value and word != TOTAL}


def at_least(is_lower_bound: bool, text: str) -> str:
    return f"at least {text}" if is_lower_bound else text


def _doing(phase: str, module: str) -> str:
    if phase in ("idle", "optimizer"):
        what = "" if phase == "idle" else "in the optimizer's step"
        return what if module == "Global" else f"{what} in {module}".strip()
    return f"{phase} outside any module" if module == "Global" else f"{phase} of {module}"


def when(moment: Report, screen: Screen, room: int) -> str:
    """ "in step 2, backward of GPT2.h.11.mlp, at 1.531 s", the module's name shortened if need be."""

    def sentence(name: str) -> str:
        step = f"in step {moment['step']}" if moment["step"] else "before the first step"
        return ", ".join(filter(None, (step, _doing(moment["phase"], name), f"at {moment['time']:.3f} s")))

    name = clean(moment["module"])
    excess = cells(sentence(name)) - room
    if excess > 0:
        name = screen.fit(name, max(cells(name) - excess, 12))
    return screen.cut(sentence(name), room)


def label(name: str) -> str:
    return "Global (outside any module)" if name == "Global" else name or '""'


def _split(sums: Sums) -> str:
    """ "52% Activation, 30% Parameter" """
    parts = sorted(parts_of(sums).items(), key=lambda part: -part[1])
    return ", ".join(f"{percent(value, sums[TOTAL])} {word}" for word, value in parts)


def name_column(rows: Sequence[tuple[str, str, Sums]], room: int, screen: Screen, split: bool = True) -> list[str]:
    """What leads to each name, the name, and where there is room the categories of what it holds."""
    for_split = _SPLIT if split and room > 2 * _SPLIT else 0
    names = [screen.fit(label(name), room - for_split - cells(lead)) for lead, name, _ in rows]
    used = [cells(lead) + cells(name) for (lead, _, _), name in zip(rows, names)]
    out = []
    for (lead, _, sums), name, width in zip(rows, names, used):
        line = screen.dim(lead) + name
        if for_split:
            line += " " * (max(used) - width + 2) + screen.dim(screen.cut(_split(sums), room - max(used) - 2))
        out.append(line)
    return out


def heading(report: Report, screen: Screen) -> list[str]:
    """Which device and moment a report is of, and how much was held."""
    moment = " at its peak" if report["at"] == "peak" else ""
    if report["at"].startswith("step:"):
        moment = f" at the end of {report['at'].replace(':', ' ')}"
    if report["requested"]:
        moment = f" when {size(report['requested'])} more could not be had"
    lines = [f"{clean(report['device'])} held {at_least(report['is_lower_bound'], size(report['total']))}{moment}"]
    reserved = f"({size(report['reserved'])} reserved)"
    if report["reserved"] and cells(lines[0] + reserved) < screen.width:
        lines[0] += " " + reserved
    elif report["reserved"]:
        lines.append(reserved)
    return [*(screen.bold(screen.cut(line, screen.width)) for line in lines), when(report, screen, screen.width), ""]


def others(report: Report, screen: Screen) -> list[str]:
    """The devices that a report leaves out."""
    if not report["others"]:
        return []
    names = ", ".join(f"{name} {size(value)}" for name, value in list(report["others"].items())[:4])
    return ["", *screen.wrap(f"Then also: {names} (--device {next(iter(report['others']))})")]


def notes(report: Report, screen: Screen) -> list[str]:
    """What makes the figures doubtful."""
    lines = []
    if report["lost"]:
        lines += screen.wrap(f"{counted(report['lost'], 'event')} could not be written: every figure is \"at least\".")
    if report["damaged"]:
        lines += screen.wrap(f"{size(report['damaged'])} of the file cannot be read: damaged, or cut short.")
    return ["", *lines] if lines else []


def command_line(*words: str) -> str:
    return clean(" ".join(["modscope", *map(shlex.quote, words)]))


def moment_words(report: Report, arguments: Namespace) -> list[str]:
    """The words with which another command is told the same moment and device."""
    on = [] if arguments.device is None else ["--device", report["device"]]
    return [report["file"], "--at", report["at"], *on]


def next_command(what: str, *words: str) -> list[str]:
    return ["", f"{what}:  {command_line(*words)}"]
