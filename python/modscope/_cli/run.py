"""``modscope run``: run a script as Python does, and record its memory."""

from __future__ import annotations

from argparse import Namespace
from typing import NoReturn

from modscope._cli.command import Command, Load, Parser
from modscope._cli.options import add_recording, add_steps
from modscope._record.options import ScriptOptions, options_of
from modscope._record.run import start


def add_options(parser: Parser) -> None:
    add_recording(parser, "of a rank: modscope-<script>.rank<N>.msc")
    add_steps(parser, None)
    parser.add_argument("--no-capture", action="store_true", help="write no capture, only print the peak")
    parser.add_argument("--follow-fork", action="store_true", help="write a capture for each forked child too")


def report(arguments: Namespace, load: Load) -> NoReturn:
    """This process becomes the script's, which prints everything at its end (_record/in_process.py)."""
    if arguments.no_capture and (arguments.output or arguments.force or arguments.follow_fork):
        arguments.error("--no-capture writes no file, so it cannot be combined with -o, -f or --follow-fork")
    start(options_of(ScriptOptions, arguments))


COMMAND = Command(
    ("run -o run.msc train.py --epochs 1",),
    add_options,
    report,
    lambda report, screen, arguments: [],
    figures="the peaks, and how the script ended,",
    takes="script",
    usage=("[options] script.py [arguments]", "[options] -m module [arguments]"),
    about="The script runs as Python runs it. Everything after the script or the module is passed to it.",
)
