"""The commands that read captures. Each is in a module of its own name, with ``report``, which makes the figures as
``--json`` prints them, and ``text``, which lays them out for a terminal. Nothing else in the package imports these."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modscope._commands.terminal import Progress
    from modscope._load import Capture

_LONGEST_INDENTED = 1_000_000  # characters of JSON


def run(arguments: argparse.Namespace) -> int:
    """Run a command that ``arguments.add_commands`` added; its exit status."""
    from modscope._commands.terminal import Progress
    from modscope._load import CaptureError

    progress = Progress()
    try:
        with _no_garbage_collection():
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
        why = "There is not enough memory to read this capture"
    progress.done()
    return _refuse(why)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A report of a large capture is many containers and no cycles: searching them for cycles takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _text_of(arguments: argparse.Namespace, progress: Progress) -> str:
    import importlib

    from modscope._load import CaptureError, load

    command = importlib.import_module(f"modscope._commands.{arguments.command}")

    def load_capture(file: str) -> Capture:
        try:
            return load(file, progress)
        except CaptureError as error:
            if not file.endswith(".py"):
                raise
            raise CaptureError(f"{error}. To run and record a script:  modscope run {shlex.quote(file)}") from None

    report = command.report(arguments, load_capture)
    if arguments.json:
        return _json_of({"command": arguments.command, **report})
    if sys.stdout is None:
        return ""
    from modscope._commands.terminal import Screen

    return "\n".join(command.text(report, Screen.of(sys.stdout), arguments))


def _json_of(report: dict[str, object]) -> str:
    """Indented for people, unless it is so long that nobody reads it: deep trees would be mostly spaces."""
    import json

    text = json.dumps(report)
    return json.dumps(report, indent=2) if len(text) <= _LONGEST_INDENTED else text


def _print(text: str) -> int:
    if sys.stdout is None or not text:
        return 0
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        print(text, flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe. Python flushes stdout once more when it exits, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _refuse(f"The output cannot be written: {error.strerror}")
    return 0


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"There is no file {error.filename}"
    if isinstance(error, IsADirectoryError):
        return f"{error.filename} is a folder: give the name of a capture"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def _refuse(why: str) -> int:
    from modscope._text import clean

    if sys.stderr is not None:
        print(f"modscope: {clean(why)}", file=sys.stderr)
    return 1
