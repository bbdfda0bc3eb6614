"""``modscope report``: captures as a page for a browser."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import page_address
from modscope._cli.options import add_force, add_output, number, one_gpu
from modscope._fit.job import Job
from modscope._fit.verdict import answer
from modscope._job.job import find_job
from modscope._job.read import read_ranks
from modscope._read.own_files import PAGE
from modscope._read.summary import Report
from modscope._read.text import clean, counted, size
from modscope._read.types import CaptureError
from modscope._show.output_file import create
from modscope._show.pages import Page
from modscope._show.pages.fit import source_of
from modscope._show.pages.ranks import Meant, ranks_page, what_is_meant
from modscope._show.pages.report import Source, page
from modscope._show.terminal import Screen, complain
from modscope._virtual.gpus import Gpu


def _step_range(text: str) -> tuple[int | None, int | None]:
    """The first and the last step of "3:7", "3:", ":7" or "3"."""
    low, colon, high = text.partition(":")
    wrong = argparse.ArgumentTypeError(f"must be A:B, A:, :B or A, such as 2:4, not {text!r}")
    try:
        first = number(0)(low) if low else None
        last = (number(0)(high) if high else None) if colon else first
    except argparse.ArgumentTypeError:
        raise wrong from None
    if first is None and last is None or first is not None and last is not None and first > last:
        raise wrong
    return first, last


def add_options(parser: Parser) -> None:
    files = "a capture; those of the ranks of one job get a rank axis, others are side by side"
    parser.add_argument("files", metavar="FILE", nargs="+", help=files)
    add_output(parser, "the page; - is stdout (default: FILE's name with .html, in this folder)")
    add_force(parser, "the page")
    steps = "only these steps: A:B, A:, :B, or A for one (default: all that fit)"
    parser.add_argument("--only-steps", type=_step_range, metavar="A:B", help=steps)
    parser.add_argument("--steps", dest="only_steps", type=_step_range, help=argparse.SUPPRESS)  # an older name
    side_by_side = "show every event of each rank, side by side, instead of a rank axis"
    parser.add_argument("--side-by-side", action="store_true", help=side_by_side)
    parser.add_argument("--no-source", action="store_true", help="put no source text of the program into the page")
    gpu = "also what would make it fit this GPU, as modscope fit says it: a name, or its memory as 24GiB"
    parser.add_argument("--gpu", type=one_gpu, metavar="GPU", help=gpu)


def report(arguments: Namespace, load: Load) -> Report:
    output = arguments.output or _default_name(arguments.files[0])
    with create(output, PAGE, arguments.force) as file:
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
        return ranks_page(job, arguments.only_steps), [rank.events for rank in job.ranks]
    sources = [_source(name, load, arguments.gpu) for name in arguments.files]
    made = page(sources, arguments.only_steps, not arguments.no_source)
    if meant.repeated is not None:
        again = (
            f"There are several captures of rank {meant.repeated}, so all are shown side by side. Give those "
            f"of one run to see its ranks over time."
        )
        made = made._replace(notes=[again, *made.notes])
    return made, [source.capture.event_count for source in sources]


def _source(file: str, load: Load, gpu: Gpu | None) -> Source:
    """With a GPU, what would make the run fit it is on the page too."""
    capture = load(file)
    return source_of(answer(Job(file, capture=capture), gpu)) if gpu and capture.peaks else Source(file, capture)


def _default_name(file: str) -> str:
    return os.path.splitext(os.path.basename(file))[0] + ".html"


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    for note in result["notes"]:
        complain(note)
    if result["output"] == "-":
        return []
    events = counted(sum(result["events"]), "event")
    of = "" if len(result["files"]) == 1 else f" of {counted(len(result['files']), 'capture')}"
    return [
        *screen.wrap(f"Wrote {clean(result['output'])} ({size(result['bytes'])}): {events}{of}"),
        *page_address(result["output"]),
    ]


COMMAND = Command(
    ("report run.msc -o run.html", "report rank0.msc rank1.msc --only-steps 2:4"),
    add_options,
    report,
    text,
    figures="what was written",
)
