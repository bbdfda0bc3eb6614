"""``modscope summary``: a run on one screen."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, NamedTuple

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import name_column, next_command, notes, when
from modscope._read.categories import TOTAL, Kind, Sums, category_of, parts_of
from modscope._read.groups import group_modules
from modscope._read.load import Capture
from modscope._read.ranks import number_said
from modscope._read.summary import (
    CaptureReport,
    Report,
    describe_end,
    describe_inputs,
    describe_prediction,
    describe_program,
    describe_step_time,
    summarize,
)
from modscope._read.text import at_least, clean, counted, duration, percent, size
from modscope._show.collectives import collectives_text
from modscope._show.terminal import Screen
from modscope._virtual.gpus import Gpu
from modscope._virtual.outside import outside_of, said_of

MODULES = 10
_FEWEST = 3  # rows of modules in a low terminal
_DEVICES = 6


def add_options(parser: Parser) -> None:
    files = "a capture, or those of the ranks of one job"
    parser.add_argument("files", metavar="FILE", nargs="+", help=files)


def report(arguments: Namespace, load: Load) -> CaptureReport | Report:
    if len(arguments.files) > 1:
        return _report_of_ranks(arguments)
    file = arguments.files[0]
    capture = load(file)
    found = summarize(file, capture)
    return {**found, "hints": [*found["hints"], *_beside_torch(capture)]}


def _beside_torch(capture: Capture) -> list[str]:
    """What nvidia-smi would show of a program whose run was predicted, and did not fail."""
    name, device = capture.info.get("gpu", ""), capture.main_device
    reserved, context = capture.reserved.get(device, 0), number_said(capture, "gpu_context")
    if capture.info.get("source") != "predicted" or context is None or capture.last_oom or not reserved:
        return []
    gpu = Gpu(name, name, 0, (9, 0), 1, context=context)
    report = outside_of(gpu, capture).report(reserved)
    return [f"torch reserves {size(reserved)}, {said_of(report)}."]


def _report_of_ranks(arguments: Namespace) -> Report:
    """Report on several captures, of the ranks of one job."""
    from modscope._job.job import find_job
    from modscope._job.read import read_ranks

    return {"job": find_job(read_ranks(arguments.files))}


def as_json(result: Report, arguments: Namespace) -> Mapping[str, Any]:
    if "job" in result:
        from modscope._show.ranks_text import job_report

        return job_report(result["job"])
    devices = [{**device, "modules": device["modules"][:MODULES]} for device in result["devices"]]
    return {**result, "devices": devices}


# ---- as text ----


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    if "job" in result:
        return _text_of_ranks(result, screen)
    out = _run(result, screen)
    if result["last_oom"]:
        out += _out_of_memory(result, screen)
    if not result["devices"]:
        none = "Nothing about its memory can be read." if result["is_lower_bound"] else "No memory was held."
        ends_early = (
            f"The file ends after {counted(result['bytes'], 'byte')}: its run was killed at its "
            f"beginning, or the file was cut short. Record it again."
        )
        out += ["", none, *(screen.wrap(ends_early) if result["end"] is None else []), *notes(result, screen)]
        return out + next_command("What modscope can track here", "doctor")
    at = "oom" if result["last_oom"] else "peak"
    words = "tree", result["file"], "--at", at
    lines = next_command("Which lines made it", *words, "--by", "line")[1:] if result["has_lines"] else []
    end = [*notes(result, screen), *next_command("Which modules hold it", *words), *lines]
    whole = [*out, *_parts(result, screen, MODULES, _phases(result, screen)), *end]
    room = None if screen.height is None else screen.height - 1  # The last line is the prompt's.
    if room is None or len(whole) <= room:
        return whole
    short = [*out, *_parts(result, screen, 0, _phases_in_a_line(result, screen)), *end]
    return [*out, *_parts(result, screen, max(room - len(short), _FEWEST), _phases_in_a_line(result, screen)), *end]


def _parts(result: Report, screen: Screen, modules: int, phases: list[str]) -> list[str]:
    """The parts of a run with at most so many rows of modules, each after an empty line."""
    main = result["devices"][0]
    parts = [_peaks(result, screen), _categories(main, screen), _modules(main, screen, modules), phases]
    if result["inputs"]:
        parts.append(screen.wrap(describe_inputs(result["inputs"], result["steps"])))
    parts += [screen.wrap(clean(hint)) for hint in result["hints"]]
    if result["collectives"]:
        parts.append(collectives_text(result, screen))
    return [line for part in parts for line in ("", *part)]


def _text_of_ranks(result: Report, screen: Screen) -> list[str]:
    from modscope._show.ranks_text import job_text

    job = result["job"]
    highest = max(job.ranks, key=lambda rank: rank.bytes)
    return job_text(job, screen) + next_command("A rank with the highest peak", "summary", highest.file)


def _run(result: Report, screen: Screen) -> list[str]:
    steps = f"{counted(result['steps'], 'step')}, {counted(result['optimizer_steps'], 'optimizer step')}"
    a_step = describe_step_time(result["step_ms"])
    figures = duration(result["duration"]), steps, a_step, describe_prediction(result["info"])
    name, *rest = (
        screen.cut(line, screen.width)
        for line in (describe_program(result["info"]), ", ".join(filter(None, figures)), describe_end(result["end"]))
    )
    return [screen.bold(name), *rest]


def _out_of_memory(result: Report, screen: Screen) -> list[str]:
    oom = result["last_oom"]
    times = "" if result["oom_count"] == 1 else f" {result['oom_count']} times, the last time"
    failed = f"Out of memory{times}: an allocation of {size(oom['requested'])} failed on {clean(oom['device'])}"
    held = at_least(result["is_lower_bound"], size(oom["held"])) + " was held"
    if oom["reserved"]:
        held += f", {size(oom['reserved'])} reserved"
    room = screen.width - 2
    inputs = (result["end"] or {}).get("inputs", "")
    return [
        "",
        screen.bold(screen.cut(failed, screen.width)),
        "  " + when(oom, screen, room),
        "  " + screen.cut(held, room),
        *(["  " + screen.cut(clean(inputs), room)] if inputs else []),
    ]


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
    held = sorted(((value, category) for category, value in parts_of(main["categories"]).items()), reverse=True)
    width = max((len(size(value)) for value, _ in held), default=0)
    bar = min(screen.width - width - 23, 40)
    most = max((value for value, _ in held), default=1)
    out = [screen.bold(f"By category, on {clean(main['device'])} at its peak")]
    for value, category in held:
        drawn = screen.bar(value / most, bar, {category: value})
        out.append(f"  {size(value):>{width}}  {percent(value, total):>4}  {category:10}  {drawn}".rstrip())
        out += [
            f"  {size(part):>{width}}  {percent(part, total):>4}    {kind}"
            for kind, part in sorted(main["kinds"].items(), key=lambda item: -item[1])
            if category_of(Kind(kind)) == category
        ]
    if main["outside"]:
        out.append(
            f"  {size(main['outside']):>{width}}  {percent(main['outside'], total):>4}  of it outside torch's "
            f"allocators"
        )
    return out


class _ModuleRow(NamedTuple):
    name: str
    own: Sums
    """Of all modules of the row together."""
    each: str
    """ "4 x 7.01 MiB", or "" for one module."""


def _rows(modules: list[Report]) -> list[_ModuleRow]:
    """The modules, largest first; those with equal bytes whose names differ only in numbers share a row."""
    groups = group_modules(modules, lambda one: str(one["module"]), lambda one: tuple(one["own"].values()))
    rows = []
    for group in groups:
        own, count = group.members[0]["own"], len(group.members)
        each = f"{count} x {size(own[TOTAL])}" if count > 1 else ""
        rows.append(_ModuleRow(group.name, {category: count * value for category, value in own.items()}, each))
    return sorted(rows, key=lambda row: -row.own[TOTAL])


def _modules(main: Report, screen: Screen, most_rows: int) -> list[str]:
    every, total = _rows(main["modules"]), main["peak"]["bytes"]
    rows = every[:most_rows]
    most = max((row.own[TOTAL] for row in rows), default=1)
    width = max((len(size(row.own[TOTAL])) for row in rows), default=0)
    each_width = max((len(row.each) for row in rows), default=0)
    bar = min(screen.width // 6, 20) if not each_width else min(screen.width // 8, 20)
    room = screen.width - width - bar - 12 - (each_width + 2 if each_width else 0)
    names = name_column([("", row.name, row.own) for row in rows], room, screen)
    which = f": {len(rows)} of {len(every)} rows" if len(rows) < len(every) else ""
    out = [screen.bold(f"By module, own bytes (without children){which}")]
    for row, name in zip(rows, names):
        own = row.own[TOTAL]
        drawn = screen.bar(own / most, bar, parts_of(row.own))
        each = f"{row.each:>{each_width}}  " if each_width else ""
        out.append(f"  {size(own):>{width}}  {percent(own, total):>4}  {drawn}  {each}{name}")
    return out


def _phases(result: Report, screen: Screen) -> list[str]:
    rows = []
    spent = sum(phase["time"] for phase in result["phases"].values())
    for word, phase in result["phases"].items():
        if phase["time"] or phase["blocks"]:
            allocated = f"{size(phase['bytes'])} in {counted(phase['blocks'], 'block')}"
            rows.append(("  " + word, duration(phase["time"]), percent(phase["time"], spent), allocated))
    return screen.table(("By phase", "time", "", "allocated"), rows, left=(0,))


def _phases_in_a_line(result: Report, screen: Screen) -> list[str]:
    """Each phase's part of the time, for a terminal that has no room for more."""
    phases = {word: phase["time"] for word, phase in result["phases"].items() if phase["time"]}
    shares = ", ".join(f"{word} {percent(time, sum(phases.values()))}" for word, time in phases.items())
    return [screen.cut(f"Time by phase: {shares}", screen.width)]


COMMAND = Command(("summary run.msc", "summary rank0.msc rank1.msc"), add_options, report, text, as_json)
