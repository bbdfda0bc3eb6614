"""``modscope run``: run a script as Python does, and record its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from argparse import Namespace
from typing import NamedTuple

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import next_command
from modscope._cli.options import add_recording, add_steps
from modscope._read.live import captures_of_process
from modscope._record.options import ScriptOptions, options_of
from modscope._record.run import check_target, command, start, stem
from modscope._show.terminal import Screen, say


def add_options(parser: Parser) -> None:
    add_recording(parser, "of a rank: modscope-<script>.rank<N>.msc")
    add_steps(parser, None)
    parser.add_argument("--no-capture", action="store_true", help="write no capture, only print the peak")
    parser.add_argument("--follow-fork", action="store_true", help="write a capture for each forked child too")
    top = (
        "show what holds the memory while the script runs, as modscope top does; what the script prints goes to a file"
    )
    parser.add_argument("--top", action="store_true", help=top)


class _FollowedRun(NamedTuple):
    """A script that ran while its capture was followed."""

    lines: list[str]
    capture: str
    status: int


def report(arguments: Namespace, load: Load) -> _FollowedRun:
    """Without --top, this process becomes the script's, which prints everything at its end (_record/in_process.py)."""
    if arguments.no_capture and (arguments.output or arguments.force or arguments.follow_fork or arguments.top):
        arguments.error("--no-capture writes no file, so it cannot be combined with -o, -f, --follow-fork or --top")
    if not arguments.top:
        start(options_of(ScriptOptions, arguments))
    if arguments.json is not None:
        arguments.error("--json prints figures at the end of the script, which --top runs beside: use one of them")
    return _run_and_follow(options_of(ScriptOptions, arguments))


def text(watched: _FollowedRun, screen: Screen, arguments: Namespace) -> list[str]:
    lines = [line for each in watched.lines for line in screen.wrap(each)]
    return lines + (next_command("See it", "summary", watched.capture) if watched.capture else [])


# ---- --top ----


def _run_and_follow(options: ScriptOptions) -> _FollowedRun:
    check_target(options.target)
    root = os.path.splitext(options.output)[0] if options.output else f"modscope-{stem(options)}.{os.getpid()}"
    printed = f"{root}.log"
    with open(printed, "wb" if options.force else "xb") as log:
        script = subprocess.Popen(command(options, ()), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        followed = _follow(script)
        if script.poll() is None:
            say(f"The script goes on; Ctrl-C interrupts it. What it prints is in {printed}")
        script.wait()
    except KeyboardInterrupt:  # the script got the same signal
        followed = [], ""
        script.wait()
    except SystemExit:
        script.send_signal(signal.SIGTERM)
        script.wait()
        raise
    status = script.returncode if script.returncode >= 0 else 128 - script.returncode
    lines = [*followed[0], f"The script ended with status {status}. What it printed is in {printed}"]
    return _FollowedRun(lines, followed[1], status)


def _follow(script: subprocess.Popen[bytes]) -> tuple[list[str], str]:
    from modscope._cli.top import follow
    from modscope._show.live import View

    names: list[str] = []
    while not names and script.poll() is None:  # until torch has been imported
        time.sleep(0.05)
        names = captures_of_process(script.pid)
    if not names:
        return ["Nothing was recorded."], ""
    followed = follow(lambda: captures_of_process(script.pid), View(), 1, lambda: script.poll() is not None)
    return followed.lines, followed.capture


COMMAND = Command(
    ("run -o run.msc train.py --epochs 1", "run --top train.py"),
    add_options,
    report,
    text,
    status=lambda watched: watched.status,
    figures="the peaks, and how the script ended,",
    takes="script",
    usage=("[options] script.py [arguments]", "[options] -m module [arguments]"),
    about="The script runs as Python runs it. Everything after the script or the module is passed to it.",
)
