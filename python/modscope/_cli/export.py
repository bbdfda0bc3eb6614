"""``modscope export``: a capture as a file that other programs open."""

from __future__ import annotations

import argparse
import codecs
import shlex
import sys
from argparse import Namespace
from typing import IO

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import find_device, notes
from modscope._cli.options import add_capture, add_device, add_force, add_output, moment
from modscope._export import FORMATS, ExportPart, describe_extensions, format_of_file, write
from modscope._read.load import Capture, CaptureError
from modscope._read.own_files import EXPORT
from modscope._read.summary import Report, file_report
from modscope._read.text import clean, counted, size
from modscope._show.output_file import create
from modscope._show.terminal import Screen


class _CountingFile:
    """A file, and how many bytes were written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def put(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)


class _TerminalFile(_CountingFile):
    """A file that is a terminal: names cannot move its cursor or change its settings."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        if not (text.isascii() and text.replace("\n", "").isprintable()):
            text = "".join(char if char == "\n" else clean(char) for char in text)
        super().put(text.encode("utf-8", "replace"))


def _format(text: str) -> str:
    from modscope._export import FORMATS

    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"There is no format {text!r}. The formats are: {', '.join(FORMATS)}")
    return text


def add_options(parser: Parser) -> None:
    add_capture(parser)
    extensions = ".pftrace, .perfetto-trace, .speedscope.json, .pickle, .csv, .json or .jsonl"
    add_output(parser, f"the file to write, with {extensions}; - is stdout", required=True)
    formats = "perfetto, speedscope, torch-snapshot, csv or json (default: what OUT's extension stands for)"
    parser.add_argument("--format", type=_format, metavar="F", help=formats)
    add_force(parser, "the file")
    moments = "only this moment: peak, oom, step:N or time:SECONDS; not for perfetto"
    parser.add_argument("--at", type=moment, metavar="MOMENT", help=moments)
    add_device(parser, "all")


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
    part = ExportPart(arguments.at, find_device(capture, arguments.device))
    with create(arguments.output, EXPORT, arguments.force) as file:
        out = _TerminalFile(file) if file.isatty() else _CountingFile(file)
        write(capture, arguments.format, out.put, part)
    return out.bytes


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


COMMAND = Command(
    ("export run.msc -o run.pftrace", "export run.msc -o peak.csv --at peak"),
    add_options,
    report,
    text,
    figures="what was written",
)
