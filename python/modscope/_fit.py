"""``modscope fit``: whether a job fits a GPU, and what would make it fit. It takes a capture, two captures of different
batches, or a script, which is predicted first."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import textwrap
from collections.abc import Sequence

from modscope._fit_answer import Answer, answer, as_json
from modscope._fit_batch import Batches
from modscope._fit_job import Job
from modscope._fit_text import lines_of, table_of_gpus
from modscope._load import CaptureError
from modscope._text import clean
from modscope._virtual.gpus import GPUS, parse_gpus

_VALUED = ("--gpu", "--json", "--report", "--device", "--batches", "--steps", "--seconds", "--torch")
"""Options of ours that may follow the capture or the script."""


def _batches(text: str) -> tuple[int, int]:
    small, _, large = text.partition(",")
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 10 for part in (small, large)) or not 0 < int(small) < int(large):
        raise argparse.ArgumentTypeError(f"{text!r} is not two batches: give the smaller and the larger one, as 4,8")
    return int(small), int(large)


def _parser() -> argparse.ArgumentParser:
    known = textwrap.fill(f"GPUs: {', '.join(GPUS)}", 76, subsequent_indent="      ", break_on_hyphens=False)
    parser = argparse.ArgumentParser(
        prog="modscope fit",
        usage="modscope fit [options] FILE\n       modscope fit [options] SMALL LARGE\n       modscope fit [options] script.py [arguments]",
        description="Say whether a job fits a GPU, and what would make it fit, with what each\n"
        "change costs. FILE is a capture, recorded or predicted. SMALL and LARGE are\n"
        "captures of one program with two batches: other batches are on the line\n"
        "through both. A script is predicted first, as modscope predict does it.",
        epilog=f"Options may stand before or after the file. What follows -- is the script's.\n\n{known}\n\n"
        "Examples:\n  modscope fit before.msc --gpu rtx4090\n  modscope fit small.msc large.msc --gpu 24GiB\n"
        "  modscope fit train.py --gpu rtx4090 -- --batch 8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--gpu", type=parse_gpus, metavar="GPU", help="a GPU by name, its memory as 24GiB, several with commas between them, or all (the default)")
    add("--device", metavar="D", help="the device of the capture, such as cuda:0; default: the accelerator with the highest peak, else cpu")
    add("--batches", type=_batches, metavar="A,B", help="the batches of SMALL and LARGE, if their arguments do not tell them")
    add("--json", metavar="OUT", help="write the exact figures to a file as JSON")
    add("--report", metavar="OUT", help="write a page for a browser that draws each change over the run's timeline; needs one GPU")
    add("--steps", type=int, default=3, metavar="N", help="of a script: how many optimizer steps are predicted (default: 3)")
    add("--seconds", type=float, default=60.0, metavar="S", help="of a script: stop it after S seconds (default: 60; 0: never)")
    add("--torch", metavar="VERSION", help="of a script: the torch whose rules apply (default: the installed one)")
    return parser


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the rest: the file or the script, with its arguments."""
    own: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, _ = word.partition("=")
        if word == "--":
            rest += words[at + 1 :]
            break
        if name in _VALUED:
            own += words[at : at + (1 if equals else 2)]
            at += 1 if equals else 2
            continue
        (own if word in ("-h", "--help") and not rest else rest).append(word)
        at += 1
    return own, rest


def _is_script(word: str) -> bool:
    return word.endswith(".py") or word == "-m"


def main(arguments: list[str]) -> int:
    own, rest = _split(arguments)
    parser = _parser()
    options = parser.parse_args(own)
    if not rest:
        parser.error("no capture is given. Use: modscope fit FILE, or modscope fit script.py")
    if options.gpu == []:
        parser.error("--gpu needs the name of a GPU, or all")
    for option, path in (("--json", options.json), ("--report", options.report)):
        if path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            parser.error(f"{option} {path}: its folder does not exist")
    if options.report is not None and len(options.gpu or ()) != 1:
        parser.error("--report needs one GPU: give its name with --gpu")
    if not _is_script(rest[0]):
        unknown = [word for word in rest if word.startswith("-")]
        if unknown or len(rest) > 2:
            parser.error(f"unrecognized arguments: {clean(' '.join(unknown or rest[2:]))}")
    try:
        if _is_script(rest[0]):
            from modscope import _fit_script

            return _fit_script.fit(options, rest)
        show(fit(rest, options), options.json, options.report, rest)
        return 0
    except CaptureError as error:
        why = str(error)
    except FileNotFoundError as error:
        why = f"There is no file {error.filename}"
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    print(f"modscope: {clean(why)}", file=sys.stderr)
    return 1


def fit(files: Sequence[str], options: argparse.Namespace) -> list[Answer]:
    """For each GPU."""
    jobs = [Job(file, options.device) for file in files]
    batches = Batches(jobs[0], jobs[1], options.batches) if len(jobs) == 2 else None
    return [answer(jobs[-1], gpu, batches) for gpu in options.gpu or list(GPUS.values())]


def show(answers: list[Answer], path: str | None, report: str | None = None, files: Sequence[str] = ()) -> None:
    """``path``: of the JSON; ``report``: of the page of the first answer; ``files``: the captures."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"gpus": [as_json(each) for each in answers]}, file, indent=2)
            file.write("\n")
    if report:
        from modscope._fit_page import write_page

        for note in write_page(answers[0], report, files):
            print(f"modscope: {clean(note)}", file=sys.stderr)
    print("\n".join(lines_of(answers[0]) if len(answers) == 1 else table_of_gpus(answers)))
    if report:
        print(f"Open it in a browser:  {clean(pathlib.Path(report).absolute().as_uri())}")
