"""``modscope export``: a capture as a file that other programs open."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from typing import IO

from modscope._commands.common import Load, Report, find_device, head, notes
from modscope._commands.output import create
from modscope._commands.terminal import Screen, clean, counted, size
from modscope._export import FORMATS, Asked, write
from modscope._load import Capture, CaptureError


class _Counted:
    """A file, and how much was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def put(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)


def report(arguments: Namespace, load: Load) -> Report:
    _check(arguments)
    capture = load(arguments.file)
    if not capture.count and not capture.peaks:
        raise CaptureError(f"There is nothing to export: {arguments.file} has no events in it")
    written = _write(capture, arguments)
    return {
        **head(arguments.file, capture),
        "is_lower_bound": capture.is_lower_bound,
        "format": arguments.format,
        "at": arguments.at or ("peak" if arguments.format == "speedscope" else None),
        "output": arguments.output,
        "bytes": written,
        "events": capture.count,
    }


def _write(capture: Capture, arguments: Namespace) -> int:
    """How many bytes it was."""
    out = None
    asked = Asked(arguments.at, find_device(capture, arguments.device), capture._progress)
    try:
        with create(arguments.output, arguments.force, arguments.file) as file:
            out = _Counted(file)
            write(capture, arguments.format, out.put, asked)
    except BrokenPipeError:
        if arguments.output == "-":
            # Whoever reads has seen enough. Python flushes again at its end, and must find somebody there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise OSError(f"{arguments.output} cannot be written: {error.strerror}" if error.strerror else str(error)) from None
    return out.bytes if out else 0


def _check(arguments: Namespace) -> None:
    """What is wrong with the words themselves: exit status 2."""
    format = FORMATS[arguments.format]
    with_moments = ", ".join(name for name, other in FORMATS.items() if other.moments)
    if arguments.at and not format.moments:
        arguments.error(f"{arguments.format} is of the whole run: --at is for {with_moments}")
    if arguments.device and (not format.moments or (arguments.format in ("csv", "json") and not arguments.at)):
        arguments.error(f"{arguments.format} is of all devices here: --device goes with --at")
    if arguments.output == "-" and not format.text and sys.stdout is not None and sys.stdout.isatty():
        arguments.error(f"{arguments.format} is not for a terminal: give a file with -o")
    if arguments.output == "-" and arguments.json:
        arguments.error("--json tells of the file that was written: it needs one, not -o -")


# ---- as text ----


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    if result["output"] == "-":
        return []
    what = counted(result["events"], "event") if result["at"] is None else f"who held what at {result['at']}"
    out = screen.wrap(f"Wrote {clean(result['output'])} ({size(result['bytes'])}): {what}")
    return [*out, *notes(result, screen), "", f"Open it:  {clean(_open_it(result))}"]


def _open_it(result: Report) -> str:
    name = result["output"]
    return FORMATS[result["format"]].open_it.format(shlex.quote(name) if result["format"] == "torch-snapshot" else name)
