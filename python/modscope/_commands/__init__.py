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


def _steps(text: str) -> tuple[int | None, int | None]:
    """The first and the last step of "3:7", "3:", ":7" or "3"."""
    low, colon, high = text.partition(":")
    first = _number(low) if low else None
    last = (_number(high) if high else None) if colon else first
    if first is None and last is None or first is not None and last is not None and first > last:
        raise argparse.ArgumentTypeError(f"steps are A:B, A:, :B or A, not {text!r}")
    return first, last


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = commands.add_parser("summary", help="a run on one screen: the peak, when, where, and who held it")
    tree = commands.add_parser("tree", help="who holds what at a moment, as a tree")
    blocks = commands.add_parser("blocks", help="the largest blocks at a moment")
    diff = commands.add_parser("diff", help="what grew between two captures")
    leaks = commands.add_parser("leaks", help="what survives step after step")
    report = commands.add_parser("report", help="captures as a page for a browser")
    export = commands.add_parser("export", help="a capture as a file that other programs open (docs/export.md)")
    for parser in (summary, tree, blocks, leaks, export):
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
    report.add_argument("files", metavar="FILE", nargs="+", help="a capture; several are shown side by side")
    report.add_argument("-o", "--output", metavar="OUT", help="the page; by default FILE's name with .html, in this folder")
    report.add_argument("-f", "--force", action="store_true", help="replace the page if it exists")
    report.add_argument("--steps", type=_steps, metavar="A:B", help="only these steps, or one; by default all that fit")
    _add_export(export)
    for parser in (summary, tree, blocks, diff, leaks, report, export):
        parser.add_argument("--json", action="store_true", help="exact figures for programs (docs/reading.md)")


def _format(text: str) -> str:
    from modscope._export import FORMATS

    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"There is no format {text!r}, but {', '.join(FORMATS)}")
    return text


def _add_export(export: argparse.ArgumentParser) -> None:
    formats = "perfetto, speedscope, torch-snapshot, csv or json"
    moments = "of this moment only: peak, oom, step:N or time:SECONDS; not for perfetto"
    export.add_argument("--format", type=_format, required=True, metavar="F", help=formats)
    export.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write; - is stdout")
    export.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
    export.add_argument("--at", type=_moment, metavar="MOMENT", help=moments)
    export.add_argument("--device", help="such as cuda:0; the default is all of them")
    export.set_defaults(error=export.error)


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
    if sys.stdout is None or not text:
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
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"There is no file {error.filename}"
    if isinstance(error, IsADirectoryError):
        return f"{error.filename} is a directory, and no capture"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def _refuse(why: str) -> int:
    from modscope._commands.terminal import clean

    if sys.stderr is not None:
        print(f"modscope: {clean(why)}", file=sys.stderr)
    return 1
