"""``modscope summary``: a run on one screen."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from modscope._commands.common import (
    Load,
    Report,
    at_least,
    head,
    name_column,
    next_command,
    notes,
    parts_of,
    spot,
    when,
)
from modscope._commands.terminal import Screen, clean, counted, duration, percent, size
from modscope._load import Capture
from modscope._peak import Peak
from modscope._categories import TOTAL

_MODULES = 10
_DEVICES = 6


def report(arguments: Namespace, load: Load) -> Report:
    return report_of(arguments.file, load(arguments.file))


def report_of(file: str, capture: Capture) -> Report:
    devices = [_device(capture, name) for name in capture.peaks]
    main = capture.main_device
    return {
        **head(file, capture),
        "is_lower_bound": capture.is_lower_bound,
        "bytes": capture.bytes,
        "events": capture.count,
        "info": dict(capture.info),
        "end": None if capture.end is None else dict(capture.end),
        "duration": capture.duration,
        "steps": capture.last_step,
        "optimizer_steps": capture.optimizer_steps,
        "phases": {word: phase._asdict() for word, phase in capture.phases.items()},
        "devices": sorted(devices, key=lambda one: (one["device"] != main, -int(one["peak"]["bytes"]))),
        "oom_count": capture.oom_count,
        "last_oom": _oom(capture),
    }


def _peak(peak: Peak) -> Report:
    when = {"moment": peak.moment, "time": peak.time, "step": peak.step, "phase": peak.phase, "module": peak.module}
    return {"bytes": peak.bytes, **when, "reserved": peak.reserved}


def _device(capture: Capture, name: str) -> Report:
    snapshot = capture.snapshot("peak", name)
    modules = snapshot.by_module().get(name, {})
    largest = sorted(modules.items(), key=lambda item: -item[1][TOTAL])[:_MODULES]
    return {
        "device": name,
        "peak": _peak(capture.peaks[name]),
        "peak_reserved": capture.reserved[name],
        "categories": snapshot.totals[name],
        "modules": [{"module": fqn, "own": sums} for fqn, sums in largest],
    }


def _oom(capture: Capture) -> Report | None:
    """The last allocation that failed."""
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
        **spot(snapshot),
        "phase": failed.phase,
        "module": failed.module,
    }


# ---- as text ----


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    out = _run(result, screen)
    if result["last_oom"]:
        out += _out_of_memory(result, screen)
    if not result["devices"]:
        none = "Nothing of its memory can be read." if result["is_lower_bound"] else "No memory was held."
        out += ["", none, *notes(result, screen)]
        return out + next_command("What modscope sees here", "doctor")
    main = result["devices"][0]
    for part in (_peaks(result, screen), _categories(main, screen), _modules(main, screen), _phases(result, screen)):
        out += ["", *part]
    out += notes(result, screen)
    at = "oom" if result["last_oom"] else "peak"
    return out + next_command("See who", "tree", result["file"], "--at", at)


def _run(result: Report, screen: Screen) -> list[str]:
    steps = f"{counted(result['steps'], 'step')}, {counted(result['optimizer_steps'], 'optimizer step')}"
    name, *rest = (
        screen.cut(line, screen.width)
        for line in (program(result["info"]), f"{duration(result['duration'])}, {steps}", ended(result["end"]))
    )
    return [screen.bold(name), *rest]


def program(info: Mapping[str, str]) -> str:
    """What ran, with its arguments and rank."""
    words = [info.get("program", "A program"), *info.get("arguments", "").split("\n")]
    rank = f"(rank {info.get('rank', '?')} of {info['world']})" if info.get("world", "1") != "1" else ""
    return " ".join(filter(None, (*words, rank)))


def ended(end: dict[str, str] | None) -> str:
    if end is None:
        return "No end: it was killed, or still runs"
    how, status, error = (end.get(word, "") for word in ("how", "status", "error"))
    if how == "finished" and status not in ("", "0"):
        return f"Exited with status {status}"
    words = {
        "finished": "Finished",
        "exception": "Ended by an exception",
        "stopped": "Stopped" if error else "Stopped as asked",
        "interrupted": "Interrupted",
    }
    return words.get(how, how or "Ended") + (f": {error.splitlines()[0]}" if error.strip() else "")


def _out_of_memory(result: Report, screen: Screen) -> list[str]:
    oom = result["last_oom"]
    times = "" if result["oom_count"] == 1 else f" {result['oom_count']} times, at last"
    asked = f"Out of memory{times}: {size(oom['requested'])} asked on {clean(oom['device'])}"
    held = at_least(result["is_lower_bound"], size(oom["held"])) + " was held"
    if oom["reserved"]:
        held += f", {size(oom['reserved'])} reserved"
    room = screen.width - 2
    return ["", screen.bold(screen.cut(asked, screen.width)), "  " + when(oom, screen, room), "  " + screen.cut(held, room)]


def _peaks(result: Report, screen: Screen) -> list[str]:
    shown = result["devices"][:_DEVICES]
    names = [screen.fit(one["device"], 12) for one in shown]
    amounts = [at_least(result["is_lower_bound"], size(one["peak"]["bytes"])) for one in shown]
    name_width, width = max(map(len, names)), max(map(len, amounts))
    pad = " " * (name_width + width + 6)
    own_line = screen.width - len(pad) < 48
    out = [screen.bold("Peak")]
    for one, name, amount in zip(shown, names, amounts):
        line = f"  {name:{name_width}}  {screen.bold(amount.rjust(width))}"
        room = screen.width - (4 if own_line else len(pad))
        where = when(one["peak"], screen, room)
        out += [line, f"    {where}"] if own_line else [f"{line}  {where}"]
        if one["peak_reserved"]:
            reserved = f"{size(one['peak']['reserved'])} reserved"
            if one["peak_reserved"] != one["peak"]["reserved"]:
                reserved += f" then, {size(one['peak_reserved'])} at most"
            out.append(f"{'    ' if own_line else pad}{reserved}")
    if len(shown) < len(result["devices"]):
        out.append(f"  ({counted(len(result['devices']) - len(shown), 'more device')})")
    return out


def _categories(main: Report, screen: Screen) -> list[str]:
    total = main["peak"]["bytes"]
    held = sorted(((value, word) for word, value in parts_of(main["categories"]).items()), reverse=True)
    width = max((len(size(value)) for value, _ in held), default=0)
    bar = min(screen.width - width - 23, 40)
    most = max((value for value, _ in held), default=1)
    out = [screen.bold(f"By category, on {clean(main['device'])} at its peak")]
    for value, word in held:
        drawn = screen.bar(value / most, bar, {word: value})
        out.append(f"  {size(value):>{width}}  {percent(value, total):>4}  {word:10}  {drawn}".rstrip())
    return out


def _modules(main: Report, screen: Screen) -> list[str]:
    total = main["peak"]["bytes"]
    most = max((one["own"][TOTAL] for one in main["modules"]), default=1)
    width = max((len(size(one["own"][TOTAL])) for one in main["modules"]), default=0)
    bar = min(screen.width // 6, 20)
    room = screen.width - width - bar - 12
    names = name_column([("", one["module"], one["own"]) for one in main["modules"]], room, screen)
    out = [screen.bold("By module, what each holds itself")]
    for one, name in zip(main["modules"], names):
        own = one["own"][TOTAL]
        drawn = screen.bar(own / most, bar, parts_of(one["own"]))
        out.append(f"  {size(own):>{width}}  {percent(own, total):>4}  {drawn}  {name}")
    return out


def _phases(result: Report, screen: Screen) -> list[str]:
    rows = []
    spent = sum(phase["time"] for phase in result["phases"].values())
    for word, phase in result["phases"].items():
        if phase["time"] or phase["blocks"]:
            made = f"{size(phase['bytes'])} in {counted(phase['blocks'], 'block')}"
            rows.append(("  " + word, duration(phase["time"]), percent(phase["time"], spent), made))
    return screen.table(("By phase", "time", "", "made"), rows, left=(0,))
