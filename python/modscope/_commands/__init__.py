"""The commands that read captures: their arguments, and how they end. Each is in a module of its own name, with
``report``, the figures as ``--json`` prints them, and ``text``, the same for a terminal."""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modscope._commands.terminal import Progress


def _moment(text: str) -> str:
    from modscope._load import parse_moment

    try:
        parse_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if (number := _number(text)) == 0:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = commands.add_parser("summary", help="a run on one screen: the peak, when, where, and who held it")
    tree = commands.add_parser("tree", help="who holds what at a moment, as a tree")
    blocks = commands.add_parser("blocks", help="the largest blocks at a moment")
    diff = commands.add_parser("diff", help="what grew between two captures")
    leaks = commands.add_parser("leaks", help="what survives step after step")
    for parser in (summary, tree, blocks, leaks):
        parser.add_argument("file", metavar="FILE", help="a capture")
    diff.add_argument("file", metavar="A", help="a capture")
    diff.add_argument("other", metavar="B", help="a later one")
    for parser in (tree, blocks, diff):
        moments = "peak (the default), oom (the last allocation that failed), step:N (its end), or time:SECONDS"
        parser.add_argument("--at", type=_moment, default="peak", metavar="MOMENT", help=moments)
    for parser in (tree, blocks, diff, leaks):
        parser.add_argument("--device", help="such as cuda:0; the default is the one that matters most, CPU last")
    tree.add_argument("--depth", type=_positive, metavar="D", help="levels to show; by default as many as fit 40 lines")
    tree.add_argument("--by", choices=("module", "category"), default="module", help="what comes first")
    tree.add_argument("--all", action="store_true", help="show modules with less than 1%%, too")
    for parser in (blocks, diff):
        parser.add_argument("-n", type=_number, default=20, metavar="N", help="how many; 20 by default, 0 for all")
    for parser in (summary, tree, blocks, diff, leaks):
        parser.add_argument("--json", action="store_true", help="exact figures for programs (docs/reading.md)")


def run(arguments: argparse.Namespace) -> int:
    """Run a command; its exit status."""
    from modscope._commands.terminal import Progress
    from modscope._load import CaptureError

    progress = Progress()
    try:
        text = _text_of(arguments, progress)
        progress.done()
        return _print(text)
    except KeyboardInterrupt:
        progress.done()
        return 130
    except CaptureError as error:
        why = str(error)
    except OSError as error:
        why = _why(error)
    except MemoryError:
        why = "There is not enough memory to read this"
    progress.done()
    return _refuse(why)


def _text_of(arguments: argparse.Namespace, progress: Progress) -> str:
    import importlib

    from modscope._load import load

    command = importlib.import_module(f"modscope._commands.{arguments.command}")
    report = command.report(arguments, lambda file: load(file, progress))
    if arguments.json:
        import json

        return json.dumps({"command": arguments.command, **report}, indent=2)
    if sys.stdout is None:
        return ""
    from modscope._commands.terminal import Screen

    return "\n".join(command.text(report, Screen.of(sys.stdout), arguments))


def _print(text: str) -> int:
    if sys.stdout is None:
        return 0
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        print(text, flush=True)
    except BrokenPipeError:
        # Whoever reads has seen enough. Python flushes again at its end, and must find somebody there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _refuse(f"The output cannot be written: {error.strerror}")
    return 0


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"There is no file {error.filename}"
    if isinstance(error, IsADirectoryError):
        return f"{error.filename} is a directory, and no capture"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def _refuse(why: str) -> int:
    from modscope._commands.terminal import clean

    if sys.stderr is not None:
        print(f"modscope: {clean(why)}", file=sys.stderr)
    return 1
