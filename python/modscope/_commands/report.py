"""``modscope report``: captures as a page for a browser."""

from __future__ import annotations

import os
import pathlib
import sys
from argparse import Namespace

from modscope._commands.common import Load
from modscope._commands.output import create
from modscope._commands.terminal import Screen
from modscope._report import Source, page
from modscope._summary import Report
from modscope._text import clean, counted, size


def report(arguments: Namespace, load: Load) -> Report:
    output = arguments.output or _default_name(arguments.files[0])
    with create(output, arguments.force, *arguments.files) as file:
        sources = [Source(name, load(name)) for name in arguments.files]
        made = page(sources, arguments.steps)
        data = made.html.encode()
        file.write(data)
    return {
        "files": arguments.files,
        "output": output,
        "bytes": len(data),
        "events": [source.capture.event_count for source in sources],
        "notes": made.notes,
    }


def _default_name(file: str) -> str:
    return os.path.splitext(os.path.basename(file))[0] + ".html"


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    if sys.stderr is not None:
        for note in result["notes"]:
            print(*screen.wrap(note), sep="\n", file=sys.stderr)
    if result["output"] == "-":
        return []
    events = counted(sum(result["events"]), "event")
    of = "" if len(result["files"]) == 1 else f" of {counted(len(result['files']), 'capture')}"
    address = pathlib.Path(result["output"]).absolute().as_uri()
    return [
        *screen.wrap(f"Wrote {clean(result['output'])} ({size(result['bytes'])}): {events}{of}"),
        "",
        f"Open it in a browser:  {clean(address)}",
    ]
