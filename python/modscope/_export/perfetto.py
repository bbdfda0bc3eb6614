"""Perfetto's trace: counters of what is held, slices of modules and phases, steps, peaks and failed allocations."""

from __future__ import annotations

from modscope._export import Asked, Put
from modscope._export.common import write_events
from modscope._load import Capture


def write(capture: Capture, format: str, put: Put, asked: Asked) -> None:
    write_events(capture, format, put, asked)
