"""``modscope fit``: whether a job fits a GPU, and what would make it fit. It takes a capture, two captures of different
batches, one of a run that died and one that has what it lacks, or a script, which is predicted first."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import sys
import textwrap
from collections.abc import Sequence

from modscope._output import check, create
from modscope._fit_answer import Answer, answer, as_json
from modscope._fit_batch import Batches
from modscope._fit_beside import join
from modscope._fit_job import Job
from modscope._fit_ranks import world_of
from modscope._fit_text import lines_of, table_of_gpus
from modscope._load import CaptureError
from modscope._script_arguments import VALUED, add_options, batches_of, is_script, split_arguments
from modscope._text import clean
from modscope._virtual.gpus import GPUS, parse_gpus

_VALUED = ("--gpu", "--json", "--report", "--device", "--batches", *VALUED)
_FLAGS = ("-f", "--force")
"""Options of ours that may follow the capture or the script."""


def _parser() -> argparse.ArgumentParser:
    known = textwrap.fill(f"GPUs: {', '.join(GPUS)}", 76, subsequent_indent="      ", break_on_hyphens=False)
    parser = argparse.ArgumentParser(
        prog="modscope fit",
        usage="modscope fit [options] FILE\n       modscope fit [options] SMALL LARGE\n       modscope fit [options] DIED PREDICTED\n       modscope fit [options] script.py [arguments]",
        description="Say whether a job fits a GPU, and what would make it fit, with what each\n"
        "change costs. FILE is a capture, recorded or predicted. SMALL and LARGE are\n"
        "captures of one program with two batches: other batches are on the line\n"
        "through both. DIED is a capture of a run that ran out of memory: what it lacks\n"
        "is taken from PREDICTED, a capture of the same program. A script is predicted\n"
        "first, as modscope predict does it.",
        epilog=f"Options may stand before or after the file. What follows -- is the script's.\n\n{known}\n\n"
        "Examples:\n  modscope fit before.msc --gpu rtx4090\n  modscope fit small.msc large.msc --gpu 24GiB\n"
        "  modscope fit train.py --gpu rtx4090 -- --batch 8\n  modscope fit train_fsdp2.py --gpu rtx4090 --ranks 8\n"
        "  modscope fit before.msc --gpu rtx4090 --ranks 16",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--gpu",
        type=parse_gpus,
        metavar="GPU",
        help="a GPU by name, its memory as 24GiB, several with commas between them, or all (the default)",
    )
    add(
        "--device",
        metavar="D",
        help="the device of the capture, such as cuda:0; default: the accelerator with the highest peak, else cpu",
    )
    add(
        "--batches",
        type=batches_of,
        metavar="A,B",
        help="the batches of SMALL and LARGE, if their arguments do not tell them",
    )
    add("--json", metavar="OUT", help="write the exact figures to a file as JSON")
    add(
        "--report",
        metavar="OUT",
        help="write a page for a browser that draws each change over the run's timeline; needs one GPU",
    )
    add("-f", "--force", action="store_true", help="replace the files of --json and --report if they exist")
    add_options(parser)
    return parser


def main(arguments: list[str]) -> int:
    own, rest = split_arguments(arguments, _VALUED, _FLAGS)
    parser = _parser()
    options = parser.parse_args(own)
    if not rest:
        parser.error("no capture is given. Use: modscope fit FILE, or modscope fit script.py")
    if options.gpu == []:
        parser.error("--gpu needs the name of a GPU, or all")
    for option, path in (("--json", options.json), ("--report", options.report)):
        if path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            parser.error(f"{option} {path}: its folder does not exist")
    if options.json is not None and _is_input(options.json, rest):
        parser.error(f"--json {options.json} is a file that is read: choose another name")
    if options.report is not None and len(options.gpu or ()) != 1:
        parser.error("--report needs one GPU: give its name with --gpu")
    if not is_script(rest[0]):
        unknown = [word for word in rest if word.startswith("-")]
        if unknown or len(rest) > 2:
            parser.error(f"unrecognized arguments: {clean(' '.join(unknown or rest[2:]))}")
    try:
        for path in filter(None, (options.json, options.report)):
            check(path, options.force, *rest)
        if is_script(rest[0]):
            from modscope import _fit_script

            return _fit_script.fit(options, rest)
        _check_ranks(options)
        show(fit(rest, options), options, (), rest)
        return 0
    except CaptureError as error:
        why = str(error)
    except BrokenPipeError:
        # The reader has closed the pipe. Python flushes stdout once more when it exits, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FileNotFoundError as error:
        why = f"There is no file {error.filename}"
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    print(f"modscope: {clean(why)}", file=sys.stderr)
    return 1


def _check_ranks(options: argparse.Namespace) -> None:
    """Of captures."""
    if options.rank is not None or options.ranks_per_node:
        raise CaptureError("--rank and --ranks-per-node are for scripts. A capture says itself which rank it is of")
    if options.ranks == 1:
        raise CaptureError("--ranks 1: give as many GPUs as the job could be sharded over, such as 8")


def _is_input(path: str, files: Sequence[str]) -> bool:
    """Whether the file to be written is one of the captures, or the script."""
    return os.path.exists(path) and any(os.path.exists(file) and os.path.samefile(path, file) for file in files)


def fit(files: Sequence[str], options: argparse.Namespace) -> list[Answer]:
    """For each GPU."""
    jobs = [Job(file, options.device) for file in files]
    job, batches = jobs[-1], None
    about: list[str] = []
    if len(jobs) == 2 and any(each.died for each in jobs):
        job, about = join(*jobs)
    elif len(jobs) == 2:
        batches = Batches(jobs[0], jobs[1], options.batches)
        about = [batches.note] if batches.note else []
    ranks, world = options.ranks or 0, world_of(job.capture)
    if ranks and world > 1 and ranks <= world:
        raise CaptureError(
            f"--ranks {ranks}: {job.file} is of one of {world} ranks already. Give more of them, or leave it out"
        )
    gpus = options.gpu or list(GPUS.values())
    return [answer(job, gpu, batches, faster=len(gpus) == 1, ranks=ranks)._replace(about=about) for gpu in gpus]


def show(answers: list[Answer], options: argparse.Namespace, script: Sequence[str], files: Sequence[str]) -> None:
    """Print them, and write the files that were asked for. ``script``: with its arguments, if one was given instead of a capture; ``files``: the
    captures or the script, which nothing replaces."""
    if options.json:
        text = json.dumps({"gpus": [as_json(each) for each in answers]}, indent=2)
        with create(options.json, options.force, *files) as file:
            file.write(f"{text}\n".encode())
    if options.report:
        from modscope._fit_page import page_of

        made = page_of(answers[0])
        with create(options.report, options.force, *files) as file:
            file.write(made.html.encode())
        for note in made.notes:
            print(f"modscope: {clean(note)}", file=sys.stderr)
    width = _columns()
    print("\n".join(lines_of(answers[0], width, script) if len(answers) == 1 else table_of_gpus(answers, width)))
    if options.report:
        print(f"Open it in a browser:  {clean(pathlib.Path(options.report).absolute().as_uri())}")
    sys.stdout.flush()  # here, where a closed pipe is handled


def _columns() -> int | None:
    """Of the terminal; None: lines may be as long as they are."""
    in_terminal = sys.stdout is not None and sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
    return max(shutil.get_terminal_size().columns, 60) if in_terminal else None
