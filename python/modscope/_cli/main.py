"""The command line, from its words to the exit status: ``modscope``, or ``python -m modscope``.

The first word chooses a module of this package, whose COMMAND (_cli/command.py) has the options, makes the figures and
lays them out. What it prints, and what is said when it fails, is written here."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from modscope._cli.command import Command, Parser, parse
from modscope._read.text import clean
from modscope._show.terminal import ReadingProgress, Screen, complain, write

if TYPE_CHECKING:
    from modscope._read.load import Capture

COMMANDS = {
    "run": "run a script, and record what happens to its memory in a file, a capture",
    "predict": "run a script on a virtual GPU, and say whether a real one has enough memory",
    "top": "follow a run while it is recorded: what holds the memory now, and what grows",
    "fit": "say whether a run fits a GPU, and what would make it fit",
    "batch": "find the largest batch that fits a GPU",
    "plan": "find which modules to checkpoint so that a run fits a budget",
    "summary": "show a run on one screen: the peak, and which modules held the memory then",
    "tree": "show which modules hold the memory at a moment, as a tree",
    "flame": "draw the memory at a moment as a flame graph, by module and stack",
    "blocks": "show the largest blocks of memory at a moment",
    "diff": "show what grew between two captures",
    "leaks": "show which blocks survive step after step",
    "report": "write captures as a page for a browser",
    "export": "write a capture as a file that other programs open",
    "calibrate": "measure on a GPU what operators take, for modscope predict",
    "doctor": "check whether modscope works with the torch that is installed here",
    "help": "explain a command, or a word such as moments or steps",
}


def main(words: list[str] | None = None) -> int:
    """The exit status. SystemExit after --help, and for words that are no command line."""
    words = sys.argv[1:] if words is None else words
    try:
        return _main(words)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0  # whoever read our output has gone
    except Exception as error:
        why, status = _describe(error)
        complain(why)
        return status


def _main(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) == 2 and words[1] in COMMANDS:
        words = [words[1], "--help"]
    name = words[0] if words else ""
    if name in COMMANDS:
        command: Command = importlib.import_module(f"modscope._cli.{name}").COMMAND
        arguments = parse(name, COMMANDS[name], command, words[1:])
        with _no_garbage_collection() if not command.runs_a_script else contextlib.nullcontext():
            return _run(name, command, arguments)
    if name and not name.startswith("-"):
        complain(_suggest(name))
        return 2
    parser = _parser()
    parser.parse_args(words)
    parser.print_help(sys.stderr)
    return 2


def _run(name: str, command: Command, arguments: argparse.Namespace) -> int:
    """Do what was asked, and print it. Where a script runs, its stdin and stdout are its own: our text goes to stderr,
    and if our figures go to stdout, the script's output goes to stderr too."""
    stream = sys.stderr if command.runs_a_script else sys.stdout
    shows_text = arguments.json != "-"
    if arguments.json == "-":
        arguments.quiet = True
        arguments.json = _stdout_for_figures() if command.runs_a_script else "-"
    elif arguments.json:
        from modscope._show.output_file import make_room

        arguments.json = os.path.abspath(arguments.json)
        make_room(arguments.json, name)
    progress = ReadingProgress()
    try:
        report = command.report(arguments, lambda file: _load(file, progress))
    finally:
        progress.clear()
    figures = command.as_json(report, arguments) if arguments.json else None
    if stream is None and (arguments.json == "-" or shows_text):
        complain("There is no stdout to write to")
    if figures is not None:
        from modscope._show.output_file import as_text, document_of, write_document

        document = document_of(name, figures)
        if arguments.json == "-":
            write(sys.stdout, f"{as_text(document)}\n")
        else:
            write_document(document, arguments.json)
    if shows_text and stream is not None:
        lines = command.text(report, Screen.of(stream), arguments)
        write(stream, "".join(f"{line}\n" for line in lines))
    return command.status(report)


def _load(file: str, progress: ReadingProgress) -> Capture:
    from modscope._read.load import CaptureError, load

    try:
        return load(file, progress)
    except CaptureError as error:
        if not file.endswith(".py"):
            raise
        raise CaptureError(f"{error}. To run and record a script:  modscope run {shlex.quote(file)}") from None


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A report of a large capture is many containers and no cycles: searching them for cycles takes half of the
    time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# ---- files ----


def _stdout_for_figures() -> int:
    """A descriptor of stdout. From now on what the script prints goes to stderr."""
    from modscope._record.capture_file import move_high

    if sys.stdout is None:
        raise OSError("There is no stdout to write to: give the name of a file")
    sys.stdout.flush()
    kept = move_high(os.dup(1))
    os.dup2(os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else 2, 1)
    return kept


# ---- what went wrong ----


def _describe(error: Exception) -> tuple[str, int]:
    """A sentence, and the exit status. An error that is none of ours is raised again."""
    from modscope._read.types import CaptureError, Refused

    if isinstance(error, Refused):
        return str(error), error.status
    if isinstance(error, OSError):
        return _describe_system(error), 1
    if isinstance(error, MemoryError):
        return "There is not enough memory to read this capture", 1
    if isinstance(error, CaptureError | ImportError):
        return str(error), 1
    raise error


def _describe_system(error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"There is no file {error.filename}"
    if isinstance(error, IsADirectoryError):
        return f"{error.filename} is a folder: give the name of a capture"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def _suggest(word: str) -> str:
    """What to type instead of a word that is not a command."""
    import difflib

    begin, quoted = f"There is no command {clean(word)!r}.", clean(shlex.quote(word))
    if word.endswith(".msc"):
        return f"{begin} To read a capture:  modscope summary {quoted}"
    if word.endswith(".py") or os.path.isfile(word):
        return f"{begin} To run and record a script:  modscope run {quoted}"
    if similar := difflib.get_close_matches(word, COMMANDS, 1):
        return f"{begin} Did you mean:  modscope {similar[0]}"
    return f"{begin} The commands are: {', '.join(COMMANDS)}"


# ---- without a command ----


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> NoReturn:
        from modscope._capture import version

        write(sys.stdout, f"modscope {version}\n")
        parser.exit()


def _parser() -> Parser:
    parser = Parser(
        prog="modscope",
        description="Show which nn.Module of a PyTorch program owns each byte of memory.",
        epilog="Examples:\n  modscope run -o run.msc train.py\n  modscope summary run.msc\n  modscope predict "
        "--gpu rtx4090 train.py",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show modscope's version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, does in COMMANDS.items():
        commands.add_parser(name, help=does)
    return parser
