"""What all reading commands share: opening a capture at a moment, and the parts that their texts have in common."""

from __future__ import annotations

import pathlib
import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from modscope._cli.command import Load
from modscope._read.categories import TOTAL, Sums, parts_of
from modscope._read.load import Capture, Snapshot, parse_moment
from modscope._read.summary import Report, describe_losses, file_report, moment_of
from modscope._read.text import at_least, clean, describe_moment, label, percent, size, width_of
from modscope._show.terminal import Screen

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
    report: Report = {
        **file_report(file, capture),
        "is_lower_bound": snapshot.is_lower_bound,
        "at": at,
        **moment_of(snapshot),
        "device": device,
        "total": held.pop(device or "", 0),
        "reserved": snapshot.reserved.get(device or "", 0),
        "requested": failed.bytes if failed else None,
        "has_lines": capture.places.has_lines,
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
    """ "in step 2, backward of GPT2.h.11.mlp, at 1.531 s", with the module's name shortened if need be. The time is
    left out if the user asked for a time: that of the last event before it would be another one."""
    time = None if str(moment.get("at")).startswith("time:") else moment["time"]
    where = moment["step"], moment["phase"], moment["module"], time
    return describe_moment(*where, columns, screen.dots)


def _split(sums: Sums, columns: int, screen: Screen) -> str:
    """ "52% Activation, 30% Parameter", with as many categories as fit. Those that round to 0% are left out."""
    parts = sorted(parts_of(sums).items(), key=lambda part: -part[1])
    shares = [f"{percent(value, sums[TOTAL])} {word}" for word, value in parts if 200 * value >= sums[TOTAL]]
    for count in range(len(shares), 0, -1):
        line = ", ".join([*shares[:count], *([screen.dots] if count < len(shares) else [])])
        if width_of(line) <= columns:
            return line
    return ""


def name_column(rows: Sequence[tuple[str, str, Sums]], room: int, screen: Screen, split: bool = True) -> list[str]:
    """For each row the lines that lead to its name, the name, and where there is room the shares of its categories."""
    for_split = _SPLIT if split and room > 2 * _SPLIT else 0
    names = screen.fit_all(
        [label(name) for _, name, _ in rows], [room - for_split - width_of(lead) for lead, _, _ in rows]
    )
    used = [width_of(lead) + width_of(name) for (lead, _, _), name in zip(rows, names)]
    out = []
    for (lead, _, sums), name, width in zip(rows, names, used):
        line = screen.dim(lead) + name
        if for_split:
            line += " " * (max(used) - width + 2) + screen.dim(_split(sums, room - max(used) - 2, screen))
        out.append(line)
    return out


def _asked(report: Report) -> str:
    """The moment that was asked for, as the end of a sentence."""
    word, number = parse_moment(report["at"])
    if report["requested"]:
        return f" when an allocation of {size(report['requested'])} failed"
    if word == "step":
        return f" at the end of step {number}" if number else " just before the first step"
    return f" at {number:.3f} s" if word == "time" else " at its peak" if word == "peak" else ""


def heading(report: Report, screen: Screen) -> list[str]:
    """The device, how much it held, and the moment."""
    held = at_least(report["is_lower_bound"], size(report["total"]))
    lines = [f"{clean(report['device'])} held {held}{_asked(report)}"]
    reserved = f"({size(report['reserved'])} reserved)"
    if report["reserved"] and width_of(lines[0] + reserved) < screen.width:
        lines[0] += " " + reserved
    elif report["reserved"]:
        lines.append(reserved)
    predicted = [screen.cut(f"predicted on {report['predicted_on']}", screen.width)] if report["predicted_on"] else []
    below = screen.wrap(f"Shown: {report['below']}, {size(report['shown'])} of it") if report.get("below") else []
    return [
        *(screen.bold(screen.cut(line, screen.width)) for line in lines),
        when(report, screen, screen.width),
        *predicted,
        *below,
        "",
    ]


def others(report: Report, screen: Screen) -> list[str]:
    """A line about the other devices that held something at that moment."""
    if not report["others"]:
        return []
    names = ", ".join(f"{name} {size(value)}" for name, value in list(report["others"].items())[:4])
    return ["", *screen.wrap(f"Other devices: {names} (--device {next(iter(report['others']))})")]


def why_incomplete(report: Mapping[str, Any]) -> list[str]:
    """Sentences on why the figures may be too low, if they may. The summary has said already how the run ended."""
    sentences = describe_losses(report)
    if not report.get("ended", True) and "end" not in report:
        sentences.append("The capture has no end: its run was killed or still runs, or the file was cut short.")
    return sentences


def notes(report: Mapping[str, Any], screen: Screen) -> list[str]:
    """Such sentences as lines."""
    lines = [line for sentence in why_incomplete(report) for line in screen.wrap(sentence)]
    return ["", *lines] if lines else []


def command_line(*words: str) -> str:
    return clean(" ".join(["modscope", *map(shlex.quote, words)]))


def moment_words(report: Report, arguments: Namespace) -> list[str]:
    """The arguments that give another command the same file, moment and device."""
    on = [] if arguments.device is None else ["--device", report["device"]]
    below = ["--module", report["below"]] if report.get("below") else []
    return [report["file"], "--at", report["at"], *on, *below]


def page_address(path: str) -> list[str]:
    """Where a page is that was written; nothing for stdout."""
    return [] if path == "-" else ["", f"Open it in a browser:  {clean(pathlib.Path(path).absolute().as_uri())}"]


def next_command(what: str, *words: str) -> list[str]:
    return ["", f"{what}:  {command_line(*words)}"]
