"""``modscope export``: a capture as a file that other programs open."""

from __future__ import annotations

import codecs
import os
import shlex
import sys
from argparse import Namespace
from typing import IO

from modscope._commands.common import Load, find_device, notes
from modscope._output import create
from modscope._commands.terminal import Screen
from modscope._export import FORMATS, Asked, describe_extensions, format_of_file, write
from modscope._load import Capture, CaptureError
from modscope._summary import Report, file_report
from modscope._text import clean, counted, size


class _CountingFile:
    """A file, and how many bytes were written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def put(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)


class _TerminalFile(_CountingFile):
    """The same for a terminal: names cannot move its cursor or change its settings."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        if not (text.isascii() and text.replace("\n", "").isprintable()):
            text = "".join(char if char == "\n" else clean(char) for char in text)
        super().put(text.encode("utf-8", "replace"))


def report(arguments: Namespace, load: Load) -> Report:
    arguments.format = _choose_format(arguments)
    _check(arguments)
    capture = load(arguments.file)
    if not capture.event_count and not capture.peaks:
        raise CaptureError(f"There is nothing to export: {arguments.file} has no events in it")
    written = _write(capture, arguments)
    return {
        **file_report(arguments.file, capture),
        "is_lower_bound": capture.is_lower_bound,
        "format": arguments.format,
        "at": arguments.at or ("peak" if arguments.format == "speedscope" else None),
        "output": arguments.output,
        "bytes": written,
        "events": capture.event_count,
    }


def _write(capture: Capture, arguments: Namespace) -> int:
    """Write the file; how many bytes it has."""
    out = None
    asked = Asked(arguments.at, find_device(capture, arguments.device))
    try:
        with create(arguments.output, arguments.force, arguments.file) as file:
            out = _TerminalFile(file) if file.isatty() else _CountingFile(file)
            write(capture, arguments.format, out.put, asked)
    except BrokenPipeError:
        if arguments.output == "-":
            # The reader has closed the pipe. Python flushes stdout once more when it exits, which must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise OSError(
            f"{arguments.output} cannot be written: {error.strerror}" if error.strerror else str(error)
        ) from None
    return out.bytes if out else 0


def _choose_format(arguments: Namespace) -> str:
    """The format that was asked for, or the one that the file's extension stands for; else exit with status 2."""
    asked: str | None = arguments.format
    implied = format_of_file(arguments.output)
    fits = implied in (None, asked) or asked == "speedscope" and implied == "json"
    if asked is not None and fits:
        return asked
    if asked is None and implied is not None:
        return implied
    if asked is not None:
        problem = f"{arguments.output} has the extension of {implied}, but --format says {asked}: change one of them"
    elif arguments.output == "-":
        problem = "The format is not known: with -o - add --format"
    else:
        problem = f"The extension of {arguments.output} is not known: add --format, or use another extension"
    arguments.error(f"{clean(problem)}. The formats and their extensions are {describe_extensions()}")
    raise AssertionError  # error() does not return


def _check(arguments: Namespace) -> None:
    """Exit with status 2 if the options do not go together."""
    format = FORMATS[arguments.format]
    with_moments = ", ".join(name for name, other in FORMATS.items() if other.has_moments)
    if arguments.at and not format.has_moments:
        arguments.error(f"{arguments.format} always shows the whole run: leave out --at, or use {with_moments}")
    if arguments.device and (not format.has_moments or (arguments.format in ("csv", "json") and not arguments.at)):
        arguments.error(
            f"The events in {arguments.format} are of all devices: leave out --device, or add --at to csv or json"
        )
    if arguments.output == "-" and not format.is_text and sys.stdout is not None and sys.stdout.isatty():
        arguments.error(f"{arguments.format} is binary and cannot be shown in a terminal: give a file with -o")
    if arguments.output == "-" and arguments.json:
        arguments.error("--json describes the file that was written, so it needs a file: give one with -o")


# ---- as text ----


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    if result["output"] == "-":
        return []
    events = counted(result["events"], "event")
    every = f"what can be read of {events}" if result["damaged"] else events
    what = every if result["at"] is None else f"what each module held at {result['at']}"
    out = screen.wrap(f"Wrote {clean(result['output'])} ({size(result['bytes'])}): {what}")
    return [*out, *notes(result, screen), "", f"Open it:  {clean(_open_it(result))}"]


def _open_it(result: Report) -> str:
    name = result["output"]
    return FORMATS[result["format"]].open_it.format(shlex.quote(name) if result["format"] == "torch-snapshot" else name)
