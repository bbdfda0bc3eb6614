"""The arguments of commands that take a script as well as captures: ``modscope fit``, ``plan`` and ``batch``."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence

from modscope import _ranks
from modscope._capture_types import CaptureError

VALUED = ("--steps", "--seconds", "--torch", "--ranks", "--rank", "--ranks-per-node")
"""The options that say how a script is predicted; each has a value."""
ANY_SCRIPT = ["train.py"]
"""What stands for the script in a command, where its name is not known."""


def is_script(word: str) -> bool:
    return word.endswith(".py") or word == "-m"


def split_arguments(
    words: Sequence[str], valued: Sequence[str], flags: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Our own options, and the rest: the files, or the script with its arguments. Options of ours may stand after them;
    what follows -- is the script's. ``valued``: those with a value; ``flags``: those without."""
    own: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, _ = word.partition("=")
        if word == "--":
            rest += words[at + 1 :]
            break
        if name in valued:
            own += words[at : at + (1 if equals else 2)]
            at += 1 if equals else 2
            continue
        (own if word in flags or word in ("-h", "--help") and not rest else rest).append(word)
        at += 1
    return own, rest


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of VALUED."""
    add = parser.add_argument
    add(
        "--steps",
        type=_steps,
        default=3,
        metavar="N",
        help="of a script: how many optimizer steps are predicted (default: 3)",
    )
    add(
        "--seconds",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="of a script: stop it after S seconds (default: 60; 0: never)",
    )
    add("--torch", metavar="VERSION", help="of a script: the torch whose rules apply (default: the installed one)")
    add(
        "--ranks",
        type=_ranks.parse_count,
        metavar="N",
        help="of a script: imagine so many ranks, as modscope predict does; fit of a capture: over how many GPUs it could be sharded",
    )
    add("--rank", type=_ranks.parse_rank, metavar="R", help="of a script: which of them it is (default: 0)")
    add(
        "--ranks-per-node",
        type=_ranks.parse_count,
        metavar="N",
        help="of a script: how many ranks share a node (default: 8)",
    )


def check_ranks(options: argparse.Namespace) -> None:
    """Of a script. CaptureError if the options contradict each other. ``options.ranks`` is a list of one, or None."""
    if not options.ranks and (options.rank is not None or options.ranks_per_node):
        raise CaptureError("--rank and --ranks-per-node need --ranks, such as --ranks 64")
    if options.rank is not None and options.rank >= options.ranks[0]:
        raise CaptureError(f"--rank {options.rank}: of {options.ranks[0]} ranks the last one is {options.ranks[0] - 1}")


def check_no_ranks(options: argparse.Namespace) -> None:
    """Of captures. CaptureError if ranks were asked for."""
    if options.ranks or options.rank is not None or options.ranks_per_node:
        raise CaptureError(
            "--ranks, --rank and --ranks-per-node are for scripts. A capture says itself which rank it is of: give the script instead"
        )


def _steps(text: str) -> int:
    from modscope._run import count

    return count(text)


def _seconds(text: str) -> float:
    from modscope._predict import parse_seconds

    return parse_seconds(text)


def batches_of(text: str) -> tuple[int, int]:
    """The two numbers of "4,8"."""
    small, _, large = text.partition(",")
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 10 for part in (small, large)) or not 0 < int(
        small
    ) < int(large):
        raise argparse.ArgumentTypeError(f"{text!r} is not two batches: give the smaller and the larger one, as 4,8")
    return int(small), int(large)


def program_words(info: Mapping[str, str]) -> list[str]:
    """The script of a capture, or -m and its module, with its arguments, for a command that runs it again; [] if the capture does not say it, or the
    program is none that modscope can run. ``info``: what the capture says of its run."""
    program, arguments = info.get("program", ""), info.get("arguments", "")
    words = arguments.split("\n") if arguments else []
    if (
        program.endswith(".py") and os.path.basename(program) != "__main__.py"
    ):  # which is a module, whose name is not known
        return [program, *words]
    parts = program.split(".")
    return ["-m", program, *words] if len(parts) > 1 and all(map(str.isidentifier, parts)) else []


def script_words(target: Sequence[str], *options: str) -> str:
    """The script, options of ours and the script's arguments, for a line that can be typed."""
    count = 2 if target[0] == "-m" else 1
    arguments = ["--", *target[count:]] if target[count:] else []
    return shlex.join([*target[:count], *options, *arguments])
