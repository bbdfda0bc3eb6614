"""``modscope report``: captures as a page for a browser."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from modscope._commands.common import Load, page_address
from modscope._output import create
from modscope._commands.terminal import Screen
from modscope._capture_types import CaptureError
from modscope._fit_answer import answer
from modscope._fit_job import Job
from modscope._fit_page import source_of
from modscope._ranks_job import find_job
from modscope._ranks_page import Meant, ranks_page, what_is_meant
from modscope._ranks_read import read_ranks
from modscope._report import Page, Source, page
from modscope._summary import Report
from modscope._text import clean, counted, size
from modscope._virtual.gpus import Gpu


def report(arguments: Namespace, load: Load) -> Report:
    output = arguments.output or _default_name(arguments.files[0])
    with create(output, arguments.force, *arguments.files) as file:
        made, events = _make_page(arguments, load)
        data = made.html.encode()
        file.write(data)
    return {"files": arguments.files, "output": output, "bytes": len(data), "events": events, "notes": made.notes}


def _make_page(arguments: Namespace, load: Load) -> tuple[Page, list[int]]:
    """The page, and how many events each capture has."""
    meant = Meant(False, None) if arguments.side_by_side or arguments.gpu else what_is_meant(arguments.files)
    if meant.is_job:
        ranks = read_ranks(arguments.files)
        try:
            job = find_job(ranks)
        except CaptureError as error:
            raise CaptureError(f"{error}, or add --side-by-side to compare them one by one") from None
        return ranks_page(job, arguments.steps), [rank.events for rank in job.ranks]
    sources = [_source(name, load, arguments.gpu) for name in arguments.files]
    made = page(sources, arguments.steps, not arguments.no_source)
    if meant.repeated is not None:
        again = f"There are several captures of rank {meant.repeated}, so all are shown side by side. Give those of one run to see its ranks over time."
        made = made._replace(notes=[again, *made.notes])
    return made, [source.capture.event_count for source in sources]


def _source(file: str, load: Load, gpu: Gpu | None) -> Source:
    """With a GPU, what would make the run fit it is on the page too."""
    capture = load(file)
    return source_of(answer(Job(file), gpu)) if gpu and capture.peaks else Source(file, capture)


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
    return [
        *screen.wrap(f"Wrote {clean(result['output'])} ({size(result['bytes'])}): {events}{of}"),
        *page_address(result["output"]),
    ]
