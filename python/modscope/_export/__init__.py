"""A capture in formats that other programs read (docs/export.md). Each is in a module of its own, with ``write``.
What is told event by event is written by modscope._capture; here are names and moments. Needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from modscope._load import Capture

Put = Callable[[bytes], object]


class Asked(NamedTuple):
    """What is to be written of a capture."""

    at: str | None = None
    """A moment, or None: what the format is by itself."""
    device: str | None = None
    progress: Callable[[float], object] | None = None


class Format(NamedTuple):
    module: str
    text: bool
    """Whether a terminal can show it."""
    moments: bool
    """Whether it can be of one moment."""
    open_it: str
    """Where people look at it, or how; {} is the file."""


FORMATS = {
    "perfetto": Format("perfetto", False, False, "https://ui.perfetto.dev"),
    "speedscope": Format("speedscope", True, True, "https://www.speedscope.app"),
    "torch-snapshot": Format(
        "torch_snapshot", False, True, "https://pytorch.org/memory_viz, or python -m torch.cuda._memory_viz trace_plot {}"
    ),
    "csv": Format("tables", True, True, "pandas.read_csv({!r})"),
    "json": Format("tables", True, True, "pandas.read_json({!r}, lines=True)"),
}


def write(capture: Capture, format: str, put: Put, asked: Asked = Asked()) -> None:
    """Give the capture in this format to ``put``, bit by bit. CaptureError if it does not have what is asked for."""
    module = importlib.import_module(f"modscope._export.{FORMATS[format].module}")
    module.write(capture, format, put, asked)
