"""The values of options, and the options that several commands have: each is defined here once."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modscope._cli.command import Parser
    from modscope._virtual.gpus import Gpu

# ---- values: each function reads the text of one ----


def read_value(parse: Callable[[str], Any], text: str) -> Any:
    """What a function of the package makes of it, which raises ValueError with a sentence."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def moment(text: str) -> str:
    from modscope._read.load import parse_moment

    read_value(parse_moment, text)
    return text


def number(least: int, most: int = 999_999_999) -> Callable[[str], int]:
    """A type of option: a number within a range."""
    which = f", {least} or more," if most == 999_999_999 else f" from {least} to {most},"

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"must be a number{which} not {text!r}")
        return int(text)

    return parse


def some_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def file_name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("needs the name of a file")
    return text


def one_gpu(text: str) -> Gpu:
    from modscope._virtual.gpus import find_gpu

    gpu: Gpu = read_value(find_gpu, text)
    return gpu


def some_gpus(text: str) -> list[Gpu]:
    from modscope._virtual.gpus import GPUS

    if text.strip().lower() == "all":
        return [*GPUS.values()]
    found = [one_gpu(name.strip()) for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("needs the name of a GPU, or all")
    return found


def two_batches(text: str) -> tuple[int, int]:
    """Read two numbers, as "4,8"."""
    small, _, large = text.partition(",")
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 10 for part in (small, large)) or not 0 < int(
        small
    ) < int(large):
        raise argparse.ArgumentTypeError(f"{text!r} is not two batches: give the smaller and the larger one, as 4,8")
    return int(small), int(large)


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps: give 1 or more")
    return int(text)


def _frames(text: str) -> int:
    if not text.isdecimal() or int(text) > 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of frames: give 0 to 64")
    return int(text)


def _float(text: str, below: float, why: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= below:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {why}")
    return value


def _seconds(text: str) -> float:
    return _float(text, 1e7, "number of seconds: give 60, or 0 for no limit")


def fraction(text: str) -> float:
    return _float(text, 1.0, "fraction: give a number from 0 to 1, such as 0.15")


def amount(text: str) -> int:
    """Read a number of bytes, as "22GiB"."""
    from modscope._read.text import parse_size

    value = parse_size(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of memory: give one such as 22GiB")
    return value


def rank_count(text: str) -> int:
    return _rank_count(text, "give one number, 1 or more")


def _rank_count(text: str, instead: str) -> int:
    """``instead``: what to give where the text is no number."""
    from modscope._virtual.ranks.options import MOST_RANKS, too_many

    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks: {instead}")
    if int(text) > MOST_RANKS:
        raise argparse.ArgumentTypeError(too_many(int(text)))
    return int(text)


def one_size(text: str) -> list[int]:
    return [rank_count(text)]


def several_sizes(text: str) -> list[int]:
    instead = "give 64, or several such as 8,16,32,64"
    return [*dict.fromkeys(_rank_count(size.strip(), instead) for size in text.split(","))]


def _rank(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank: the first one is 0")
    return int(text)


def _plan(text: str) -> str:
    from modscope._plan.file import load_plan

    try:
        read_value(load_plan, text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return os.path.abspath(text)


# ---- options of captures ----


def add_capture(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a capture")


def add_moment(parser: Parser) -> None:
    moments = "peak (the default), oom, step:N or time:SECONDS; see modscope help moments"
    parser.add_argument("--at", type=moment, default="peak", metavar="MOMENT", help=moments)


def add_device(parser: Parser, default: str = "the accelerator with the highest peak, else cpu") -> None:
    parser.add_argument("--device", metavar="D", help=f"a device, such as cuda:0 (default: {default})")


def add_module(parser: Parser) -> None:
    only = "only this module and those in it, such as GPT.blocks.0; 'GPT.blocks.*.mlp' names several"
    parser.add_argument("--module", type=some_text, metavar="M", help=only)


def add_rows(parser: Parser) -> None:
    parser.add_argument("-n", type=number(0), default=20, metavar="N", help="how many rows (default: 20; 0: all)")


def add_no_group(parser: Parser) -> None:
    parser.add_argument("--no-group", action="store_true", help="show equal rows one by one")


def add_by(parser: Parser, choices: Sequence[str], what: str) -> None:
    parser.add_argument("--by", choices=choices, default="module", help=what)


# ---- files and GPUs ----


def add_output(parser: Parser, what: str, metavar: str = "OUT", **more: Any) -> None:
    parser.add_argument("-o", "--output", type=file_name, metavar=metavar, help=what, **more)


def add_force(parser: Parser, what: str) -> None:
    parser.add_argument("-f", "--force", action="store_true", help=f"replace {what} if it exists")


def add_page(parser: Parser, what: str) -> None:
    parser.add_argument("--report", type=file_name, metavar="PAGE", help=f"write a page for a browser that {what}")


def add_gpus(parser: Parser) -> None:
    gpus = "a GPU by name, its memory as 24GiB, several with commas between them, or all (the default)"
    parser.add_argument("--gpu", type=some_gpus, metavar="GPU", help=gpus)


def add_batches(parser: Parser, more: str = "") -> None:
    batches = f"the batches of two captures, if their arguments do not tell them{more}"
    parser.add_argument("--batches", type=two_batches, metavar="A,B", help=batches)


# ---- options of scripts, in the records of _record/options.py and _predict/options.py ----


def add_steps(parser: Any, default: int | None) -> None:
    after = "never" if default is None else str(default)
    stop = f"stop the script after N training steps, with exit status 0 (default: {after})"
    parser.add_argument("--steps", type=_steps, default=default, metavar="N", help=stop)


def add_recording(parser: Parser, more: str = "") -> None:
    """Options of run and predict. ``more`` about the name of the capture."""
    path = f"the capture's path (default: modscope-<script>.<pid>.msc in this folder; {more})"
    add_output(parser, path, "FILE")
    add_force(parser, "the capture")
    plan = "checkpoint the modules that a plan names; see modscope help plan"
    parser.add_argument("--plan", type=_plan, metavar="PLAN", help=plan)
    stacks = (
        "keep N of the script's own Python frames for each block, and N of a model's in a library (default: 1; 0: none)"
    )
    parser.add_argument("--stacks", type=_frames, metavar="N", help=stacks)
    quiet = "print nothing at the end unless there was an error"
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)
    add_is_module(parser)


def add_epoch(parser: Any, what: str, *names: str) -> None:
    """``names``: others of --epoch-batches."""
    epoch = f"read the shapes of all batches of the script's DataLoader, {what}"
    parser.add_argument("--epoch", action="store_true", help=epoch)
    most = "with --epoch: read at most N batches (default: all; those of a stream that never ends need it)"
    parser.add_argument("--epoch-batches", *names, type=number(1), metavar="N", help=most)


def check_epoch(arguments: argparse.Namespace, of_script: bool = True) -> None:
    """Refuse what does not go together with --epoch. ``of_script``: a script was given, and not captures."""
    if arguments.epoch_batches and not arguments.epoch:
        arguments.error("--epoch-batches is of --epoch: add that, or leave --epoch-batches out")
    if not arguments.epoch:
        return
    if not of_script:
        arguments.error("--epoch reads the DataLoader of a script: give a script, or leave --epoch out")
    if arguments.target[0] == "-":
        arguments.error("--epoch needs a script in a file, not one that is read from stdin")


def add_is_module(parser: Any) -> None:
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")


def add_prediction(parser: Any, of_captures: str | None = None) -> None:
    """How a script is predicted. ``of_captures``: what --ranks means for captures, where they may be given instead of a
    script."""
    several = of_captures is None
    if not several:
        parser = parser.add_argument_group("options for a script")
        add_is_module(parser)
    add = parser.add_argument
    add_steps(parser, 3)
    seconds = "stop the script after S seconds (default: 60; 0: never)"
    add("--seconds", type=_seconds, default=60.0, metavar="S", help=seconds)
    add("--torch", metavar="VERSION", help="the torch whose rules apply, such as 2.11 (default: the installed one)")
    uncompiled = "torch.compile compiles nothing: predict the program uncompiled"
    add("--no-compile", action="store_true", help=uncompiled)
    ranks = "simulate N ranks: the script's process groups have so many"
    ranks += "; a comma-separated list prints a table" if several else of_captures or ""
    add("--ranks", type=several_sizes if several else one_size, metavar="N", help=ranks)
    add("--rank", type=_rank, metavar="R", help="which of the ranks the script is (default: 0)")
    add("--ranks-per-node", type=rank_count, metavar="N", help="how many ranks share a node (default: 8)")


def check_ranks(arguments: argparse.Namespace) -> None:
    """End with a message if --rank or --ranks-per-node is given without --ranks, or with captures."""
    if arguments.rank is None and not arguments.ranks_per_node:
        return
    if not arguments.target:
        arguments.error("--rank and --ranks-per-node are for scripts. A capture says itself which rank it is of")
    if not arguments.ranks:
        arguments.error("--rank and --ranks-per-node need --ranks, such as --ranks 64")
    from modscope._virtual.ranks.options import MOST_PER_NODE

    if (arguments.ranks_per_node or 1) > MOST_PER_NODE:
        given = arguments.ranks_per_node
        arguments.error(f"--ranks-per-node {given}: torch knows at most {MOST_PER_NODE} GPUs of a node")
    least = min(arguments.ranks)
    if arguments.rank is not None and arguments.rank >= least:
        arguments.error(f"--rank {arguments.rank}: of {least} ranks the last one is {least - 1}")


def check_no_ranks(arguments: argparse.Namespace) -> None:
    """End with a message if ranks are asked for of captures."""
    check_ranks(arguments)
    if arguments.ranks:
        arguments.error("--ranks is for scripts. A capture says itself which rank it is of: give the script instead")
