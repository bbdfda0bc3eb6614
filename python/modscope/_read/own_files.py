"""Which files modscope wrote, told by how they begin. ``-f`` and ``overwrite=True`` replace only a file of the kind
that is about to be written."""

from __future__ import annotations

import os
import re
import stat
import zlib
from typing import NamedTuple

_BEGINNING = 4096  # bytes that are read
_GZIP = b"\x1f\x8b"


class FileKind(NamedTuple):
    """A kind of file that a command writes."""

    name: str
    """With its article, for messages."""
    begins: re.Pattern[bytes]


CAPTURE = FileKind("a capture", re.compile(rb"MODSCOPE"))
PAGE = FileKind(
    "a page that modscope wrote", re.compile(rb'<!doctype html>.*<meta name="generator" content="modscope ', re.S)
)
PLAN = FileKind("a plan that modscope wrote", re.compile(rb'\{\s*"kind":\s*"modscope plan"'))
ROW = FileKind("a row of modscope predict --share", re.compile(rb'\{\s*"kind":\s*"modscope row"'))
TABLE = FileKind("a table of modscope calibrate", re.compile(rb'\{"format":\d+,"gpu":'))
EXPORT = FileKind(
    "a file of modscope export",
    re.compile(
        rb'\n.P\x01h\x012|\{"\$schema":"[^"]*","exporter":"modscope@|\x80\x04\}\(\x8c\x0ddevice_traces\x94'
        rb'|event,time,kind,thread,device,|moment,time,step,device,module,|\{"(event|moment)":\d+,"time":',
        re.S,
    ),
)
"""Perfetto's trace, speedscope's file, torch's snapshot, and the rows of CSV and JSON."""


def figures_of(command: str) -> FileKind:
    """What --json=OUT of a command writes."""
    begins = rb'\{\s*"command": "%s"[,}]' % re.escape(command.encode())
    return FileKind(f"what modscope {command} --json wrote", re.compile(begins))


def is_replaceable(path: str, kind: FileKind) -> bool:
    """Whether nothing is lost if a file of this kind takes the name ``path``: the name is free, or has an empty file or
    one of this kind. A link is judged by the file that it leads to; one to a folder is not replaced, and one to a
    device may be. OSError if the file cannot be read."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return True
    if not stat.S_ISREG(mode):
        return os.path.islink(path) and not stat.S_ISDIR(mode)
    beginning = _read_beginning(path)
    return not beginning or kind.begins.match(beginning) is not None


def describe_existing(path: str, kind: FileKind, option: str) -> str:
    """Why a file of this kind is not written to ``path``, which exists. ``option`` is how the user may replace it."""
    try:
        if is_replaceable(path, kind):
            return f"{path} exists already: choose another name, or overwrite it ({option})"
    except OSError as error:
        return f"{path} exists already, and cannot be read ({error.strerror}): choose another name"
    return f"{path} exists already: choose another name. It is not {kind.name}, so it is not replaced"


def _read_beginning(path: str) -> bytes:
    with open(path, "rb") as file:
        beginning = file.read(_BEGINNING)
    if not beginning.startswith(_GZIP):
        return beginning
    try:
        return zlib.decompressobj(wbits=31).decompress(beginning, _BEGINNING)
    except zlib.error:
        return beginning
