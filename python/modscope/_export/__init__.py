"""A capture in formats that other programs read. A format's module has a function ``write``. Events
are written by modscope._capture, in C; names and moments are made here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from modscope._read.load import Capture

Put = Callable[[bytes], object]


class ExportPart(NamedTuple):
    """Which part of a capture is to be written."""

    at: str | None = None
    """A moment, or None for what the format shows by default."""
    device: str | None = None


class Format(NamedTuple):
    module: str
    extensions: tuple[str, ...]
    """Names of files that end so are of this format, unless another is asked for."""
    is_text: bool
    """Whether a terminal can show the format."""
    has_moments: bool
    """Whether the format can show one moment."""
    open_it: str
    """Which program opens it, or how; {} is the file."""


FORMATS = {
    "perfetto": Format("traces", (".pftrace", ".perfetto-trace"), False, False, "https://ui.perfetto.dev"),
    "speedscope": Format("speedscope", (".speedscope.json",), True, True, "https://www.speedscope.app"),
    "torch-snapshot": Format(
        "traces",
        (".pickle",),
        False,
        True,
        "https://pytorch.org/memory_viz, or python -m torch.cuda._memory_viz trace_plot {}",
    ),
    "csv": Format("tables", (".csv",), True, True, "pandas.read_csv({!r})"),
    "json": Format("tables", (".json", ".jsonl"), True, True, "pandas.read_json({!r}, lines=True)"),
}


def format_of_file(name: str) -> str | None:
    """The format that the file's extension stands for, or None. Of .speedscope.json and .json the longer one counts."""
    found = [
        (len(end), format) for format, each in FORMATS.items() for end in each.extensions if name.lower().endswith(end)
    ]
    return max(found)[1] if found else None


def describe_extensions() -> str:
    """All formats with their extensions: "perfetto (.pftrace, .perfetto-trace), speedscope (.speedscope.json), ..."."""
    return ", ".join(f"{format} ({', '.join(each.extensions)})" for format, each in FORMATS.items())


def write(capture: Capture, format: str, put: Put, part: ExportPart = ExportPart()) -> None:
    """Pass the capture in this format to ``put``, piece by piece. CaptureError if it does not have what is asked
    for."""
    module = importlib.import_module(f"modscope._export.{FORMATS[format].module}")
    module.write(capture, format, put, part)
