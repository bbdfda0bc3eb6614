"""``modscope fit``: whether a job fits a GPU, and what would make it fit. It takes a capture, two captures of different
batches, one of a run that died and one that has what it lacks, or a script, which is predicted first."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from typing import IO, NamedTuple

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import page_address
from modscope._cli.options import (
    add_batches,
    add_device,
    add_epoch,
    add_force,
    add_gpus,
    add_page,
    add_prediction,
    check_epoch,
    check_ranks,
)
from modscope._fit.job import Job
from modscope._fit.script import answer_script
from modscope._fit.text import lines_of, table_of_gpus
from modscope._fit.two_captures import Batches, join
from modscope._fit.verdict import Answer, answer, as_json
from modscope._predict.capture_of_script import PredictedScript
from modscope._predict.options import records_of
from modscope._read.load import CaptureError
from modscope._read.own_files import PAGE
from modscope._read.ranks import world_of
from modscope._show.output_file import create
from modscope._show.terminal import Screen, complain
from modscope._virtual.gpus import GPUS, Gpu


class FitReport(NamedTuple):
    answers: list[Answer]
    """For each GPU."""
    notes: Sequence[str]
    """What the page says of its figures."""


def add_options(parser: Parser) -> None:
    file = "a capture, recorded or predicted; or a script, which is predicted"
    parser.add_argument("file", metavar="FILE", help=file)
    other = "a capture of the same program with a larger batch; or, if FILE is of a run that ran out of memory, a "
    other += "predicted capture, from which what is missing is taken"
    parser.add_argument("other", metavar="OTHER", nargs="?", help=other)
    add_gpus(parser)
    add_batches(parser)
    add_page(parser, "draws each change over the run's timeline; needs one GPU")
    add_force(parser, "a file that is written")
    add_device(parser)
    add_prediction(parser, of_captures="; of a capture: over how many GPUs it could be sharded")
    add_epoch(parser, "and judge each change by the worst of them")


def report(arguments: Namespace, load: Load) -> FitReport:
    gpus: list[Gpu] = arguments.gpu or list(GPUS.values())
    if arguments.report and len(gpus) != 1:
        arguments.error("--report needs one GPU: give its name with --gpu")
    check_ranks(arguments)
    check_epoch(arguments, bool(arguments.target))
    inputs = [file for file in (arguments.file, arguments.other) if file]
    page_file = create(arguments.report, PAGE, arguments.force) if arguments.report else nullcontext()
    with page_file as html:
        if not arguments.target:
            answers = _of_captures(inputs, gpus, arguments)
            return FitReport(answers, _write_page(html, answers[0]))
        with PredictedScript(*records_of(arguments)) as script:
            answers = answer_script(script, gpus)
            return FitReport(answers, _write_page(html, answers[0]))


def _of_captures(files: Sequence[str], gpus: Sequence[Gpu], arguments: Namespace) -> list[Answer]:
    ranks: int = arguments.ranks[0] if arguments.ranks else 0
    if ranks == 1:
        arguments.error("--ranks 1: give as many GPUs as the job could be sharded over, such as 8")
    jobs = [Job(file, arguments.device) for file in files]
    job, batches = jobs[-1], None
    about: list[str] = []
    if len(jobs) == 2 and any(each.died for each in jobs):
        job, about = join(*jobs)
    elif len(jobs) == 2:
        batches = Batches(jobs[0], jobs[1], arguments.batches)
        about = [batches.note] if batches.note else []
    world = world_of(job.capture)
    if ranks and world > 1 and ranks <= world:
        raise CaptureError(
            f"--ranks {ranks}: {job.file} is of one of {world} ranks already. Give more of them, or leave it out"
        )
    return [answer(job, gpu, batches, faster=len(gpus) == 1, ranks=ranks)._replace(about=about) for gpu in gpus]


def _write_page(html: IO[bytes] | None, found: Answer) -> Sequence[str]:
    """What the page says of its figures; nothing if none was asked for."""
    if html is None:
        return ()
    from modscope._show.pages.fit import page_of

    made = page_of(found)
    html.write(made.html.encode())
    return made.notes


def text(found: FitReport, screen: Screen, arguments: Namespace) -> list[str]:
    for note in found.notes:
        complain(note)
    answers = found.answers
    lines = lines_of(answers[0], screen, arguments.target) if len(answers) == 1 else table_of_gpus(answers, screen)
    return [*lines, *(page_address(arguments.report) if arguments.report else [])]


COMMAND = Command(
    (
        "fit before.msc --gpu rtx4090",
        "fit small.msc large.msc --gpu 24GiB",
        "fit train.py --gpu rtx4090 -- --batch 8",
        "fit train_fsdp2.py --gpu rtx4090 --ranks 8",
        "fit before.msc --gpu rtx4090 --ranks 16",
    ),
    add_options,
    report,
    text,
    lambda found, arguments: {"gpus": [as_json(each) for each in found.answers]},
    takes="script or captures",
    usage=("[options] FILE [OTHER]", "[options] script.py [-- arguments]"),
    about="It says what each change costs. Of two captures with different batches, other batches are interpolated "
    "linearly. A script is predicted first, as modscope predict does it. Options may stand before or after the file. "
    "What follows -- is the script's.",
)
