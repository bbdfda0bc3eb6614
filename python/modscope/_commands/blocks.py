"""``modscope blocks``: the largest blocks that are held at a moment."""

from __future__ import annotations

from argparse import Namespace

from modscope._commands.common import Load, Report, heading, label, moment_report, next_command, notes, others
from modscope._commands.terminal import Screen, counted, duration, size


def report(arguments: Namespace, load: Load) -> Report:
    result, snapshot = moment_report(arguments.file, load, arguments)
    result["count"] = snapshot.count
    result["blocks"] = [
        {
            "bytes": block.bytes,
            "category": block.category,
            "module": block.module,
            "phase": block.phase,
            "step": block.step,
            "made_at": block.made_at,
            "age": round(snapshot.time - block.made_at, 6),
            "outside": block.outside,
        }
        for block in snapshot.blocks(arguments.n or None, result["device"])
    ]
    return result


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    rows = []
    for block in result["blocks"]:
        mark = " *" if block["outside"] else ""
        made = (block["category"] + mark, block["phase"], str(block["step"]), duration(block["age"]))
        rows.append((size(block["bytes"]), *made, label(block["module"])))
    out = heading(result, screen)
    out += screen.table(("Bytes", "Category", "Made in", "Step", "Age", "Module"), rows, left=(1, 2))
    if any(block["outside"] for block in result["blocks"]):
        out += ["", "* from outside torch's allocators: numpy, mmap, shared memory"]
    held = sum(block["bytes"] for block in result["blocks"])
    out += ["", f"{counted(len(rows), 'block')}: {size(held)} of {size(result['total'])}"]
    out += others(result, screen) + notes(result, screen)
    return out + next_command("What stays step after step", "leaks", result["file"])
