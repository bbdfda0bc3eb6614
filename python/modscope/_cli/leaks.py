"""``modscope leaks``: blocks that survive step after step, and owners that hold more after each step."""

from __future__ import annotations

from argparse import Namespace

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import find_device, next_command, notes
from modscope._cli.options import add_capture, add_device
from modscope._read.leaks import LeakedBlocks, Leaks, LineBytes, describe_growth, describe_leaks, find_leaks
from modscope._read.text import clean, counted, label, size
from modscope._show.lines import describe_line
from modscope._show.terminal import Screen

_SIZES = 4  # that are listed of a group
_LINES = 3
_SMALL = 0.01  # of what lines made; one that made less is not listed
_GROWING = 10  # owners that are listed


def add_options(parser: Parser) -> None:
    add_capture(parser)
    add_device(parser, "all")


def report(arguments: Namespace, load: Load) -> Leaks:
    capture = load(arguments.file)
    return find_leaks(arguments.file, capture, find_device(capture, arguments.device))


# ---- as text ----


def text(result: Leaks, screen: Screen, arguments: Namespace) -> list[str]:
    title = screen.wrap(describe_leaks(result))
    growth = _growth(result, screen)
    if not result["groups"]:
        return title + growth + notes(result, screen) + next_command("What is held", "summary", result["file"])
    out = [*map(screen.bold, title), ""]
    width = max(len(size(group["bytes"])) for group in result["groups"])
    several = len({group["device"] for group in result["groups"]}) > 1
    for group in result["groups"]:
        out += _lines(group, width, several, screen)
    out[-1:] = growth + notes(result, screen)
    return out + next_command("The blocks", "blocks", result["file"], "--at", f"step:{result['step']}")


def _growth(result: Leaks, screen: Screen) -> list[str]:
    """A sentence for each owner that holds more after each step."""
    growth, out = result["growth"], list[str]()
    several = len({each["device"] for each in growth}) > 1
    for each in growth[:_GROWING]:
        on = f" (on {each['device']})" if several else ""
        out += ["", *screen.wrap(describe_growth(each) + on), *_made_by(each["lines"], "  ", screen)]
    if len(growth) > _GROWING:
        out += ["", f"({len(growth) - _GROWING} more)"]
    return out


def _made_by(lines: list[LineBytes], pad: str, screen: Screen) -> list[str]:
    """The lines of the program that made most of it, with their source text where it is there."""
    out, room = list[str](), screen.width - len(pad)
    whole = sum(line["bytes"] for line in lines)
    lines = [line for line in lines if line["bytes"] >= _SMALL * whole]
    for line in lines[:_LINES]:
        out.append(pad + screen.fit(f"made by {describe_line(line)}: {size(line['bytes'])}", room))
        out += [pad + screen.dim(screen.cut(f"    {line['source']}", room))] if line["source"] else []
    if len(lines) > _LINES:
        out.append(f"{pad}and by {counted(len(lines) - _LINES, 'other line')}")
    return out


def _lines(group: LeakedBlocks, width: int, several_devices: bool, screen: Screen) -> list[str]:
    room = screen.width - width - 2
    on = f" on {clean(group['device'])}" if several_devices else ""
    owner = f"{group['category']} of {label(group['module'])}"
    steps = f"{group['steps']} steps ({group['first_step']} to {group['last_step']})"
    sizes = ", ".join(f"{each['count']} x {size(each['bytes'])}" for each in group["sizes"][:_SIZES])
    if len(group["sizes"]) > _SIZES:
        sizes += f", {counted(len(group['sizes']) - _SIZES, 'more size')}"
    pad = " " * (width + 2)
    first = f"{size(group['bytes']):>{width}}  {screen.bold(screen.fit(owner, room - len(on)))}{on}"
    allocated = f"{counted(group['count'], 'block')} allocated in {steps}"
    if group["phases"] != ["idle"]:
        allocated += f", in {', '.join(group['phases'])}"
    outside = []
    if group["outside"]:
        part = "" if group["outside"] == group["bytes"] else f"{size(group['outside'])} of it "
        outside = [pad + screen.cut(f"{part}from outside torch's allocators: numpy, mmap, shared memory", room)]
    return [
        first,
        pad + screen.cut(allocated, room),
        *_made_by(group["lines"], pad, screen),
        *outside,
        pad + screen.cut(sizes, room),
        "",
    ]


COMMAND = Command(("leaks run.msc",), add_options, report, text)
