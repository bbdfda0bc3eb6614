"""What all reading commands share: opening a capture at a moment, and the parts that their texts have in common."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence

from modscope._categories import TOTAL, Sums, parts_of
from modscope._commands.terminal import Screen
from modscope._load import Capture, Snapshot
from modscope._summary import Report, describe_losses, file_report, moment_of
from modscope._text import at_least, clean, describe_moment, label, percent, size, width_of

Load = Callable[[str], Capture]

_SPLIT = 36  # columns for the categories of a row, where there is room


def moment_report(file: str, load: Load, arguments: Namespace) -> tuple[Report, Snapshot]:
    """The keys with which a report on a device at a moment begins, and the snapshot of that moment."""
    capture, at = load(file), arguments.at
    device = find_device(capture, arguments.device)
    snapshot = capture.snapshot(at, device)
    failed = capture.last_oom if at == "oom" else None
    if device is None:
        device = failed.device if failed else capture.main_device if at == "peak" else snapshot.main_device
    held = {name: sums[TOTAL] for name, sums in snapshot.totals.items()}
    report = {
        **file_report(file, capture),
        "is_lower_bound": snapshot.is_lower_bound,
        "at": at,
        **moment_of(snapshot),
        "device": device,
        "total": held.pop(device or "", 0),
        "reserved": snapshot.reserved.get(device or "", 0),
        "requested": failed.bytes if failed else None,
        "others": {name: value for name, value in held.items() if value},
    }
    return report, snapshot


def find_device(capture: Capture, asked: str | None) -> str | None:
    """The device of this name, or the only one whose name begins so. CaptureError if there is none."""
    if asked is None:
        return None
    matching = [name for name in capture.devices if name.startswith(asked)]
    device = matching[0] if len(matching) == 1 else asked
    capture.device_number(device)
    return device


# ---- as text ----


def when(moment: Report, screen: Screen, columns: int) -> str:
    """ "in step 2, backward of GPT2.h.11.mlp, at 1.531 s", with the module's name shortened if need be."""
    where = moment["step"], moment["phase"], moment["module"], moment["time"]
    return describe_moment(*where, columns, screen.dots)


def _split(sums: Sums) -> str:
    """ "52% Activation, 30% Parameter" """
    parts = sorted(parts_of(sums).items(), key=lambda part: -part[1])
    return ", ".join(f"{percent(value, sums[TOTAL])} {word}" for word, value in parts)


def name_column(rows: Sequence[tuple[str, str, Sums]], room: int, screen: Screen, split: bool = True) -> list[str]:
    """For each row the lines that lead to its name, the name, and where there is room the shares of its categories."""
    for_split = _SPLIT if split and room > 2 * _SPLIT else 0
    names = [screen.fit(label(name), room - for_split - width_of(lead)) for lead, name, _ in rows]
    used = [width_of(lead) + width_of(name) for (lead, _, _), name in zip(rows, names)]
    out = []
    for (lead, _, sums), name, width in zip(rows, names, used):
        line = screen.dim(lead) + name
        if for_split:
            line += " " * (max(used) - width + 2) + screen.dim(screen.cut(_split(sums), room - max(used) - 2))
        out.append(line)
    return out


def heading(report: Report, screen: Screen) -> list[str]:
    """The device, how much it held, and the moment."""
    moment = " at its peak" if report["at"] == "peak" else ""
    if report["at"].startswith("step:"):
        moment = f" at the end of {report['at'].replace(':', ' ')}"
    if report["requested"]:
        moment = f" when an allocation of {size(report['requested'])} failed"
    lines = [f"{clean(report['device'])} held {at_least(report['is_lower_bound'], size(report['total']))}{moment}"]
    reserved = f"({size(report['reserved'])} reserved)"
    if report["reserved"] and width_of(lines[0] + reserved) < screen.width:
        lines[0] += " " + reserved
    elif report["reserved"]:
        lines.append(reserved)
    return [*(screen.bold(screen.cut(line, screen.width)) for line in lines), when(report, screen, screen.width), ""]


def others(report: Report, screen: Screen) -> list[str]:
    """A line about the other devices that held something at that moment."""
    if not report["others"]:
        return []
    names = ", ".join(f"{name} {size(value)}" for name, value in list(report["others"].items())[:4])
    return ["", *screen.wrap(f"Other devices: {names} (--device {next(iter(report['others']))})")]


def notes(report: Report, screen: Screen) -> list[str]:
    """Lines on why the figures may be too low, if they may."""
    lines = [line for sentence in describe_losses(report) for line in screen.wrap(sentence)]
    return ["", *lines] if lines else []


def command_line(*words: str) -> str:
    return clean(" ".join(["modscope", *map(shlex.quote, words)]))


def moment_words(report: Report, arguments: Namespace) -> list[str]:
    """The arguments that give another command the same file, moment and device."""
    on = [] if arguments.device is None else ["--device", report["device"]]
    return [report["file"], "--at", report["at"], *on]


def next_command(what: str, *words: str) -> list[str]:
    return ["", f"{what}:  {command_line(*words)}"]
