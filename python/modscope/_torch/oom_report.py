"""The out-of-memory report as a note of the exception that the failed allocation raised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from modscope import _native
from modscope._read import cells as _cells

_BY = "requested by "
_BEFORE = "; the largest before was "


def text_of(error: BaseException) -> str:
    """The exception's message, encodable as UTF-8; empty if the exception cannot be converted to text."""
    try:
        return str(error).encode("utf-8", "replace").decode()
    except BaseException:  # the program's own __str__ may raise anything
        return ""


def _is_of_failure(error: BaseException, requested: int) -> bool:
    """Whether the allocation of so many bytes raised this exception."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    # The CPU allocator raises a RuntimeError with this text.
    return isinstance(error, RuntimeError) and f"tried to allocate {requested} bytes" in text_of(error)


def _shown(report: str) -> str:
    """The report as a note, with the cells of a notebook by their numbers."""
    return _cells.show_names(report.rstrip("\n"), _native.stack_files())


def requested_by() -> str:
    """The line that requested what the latest failed allocation could not have; "" if it is not known."""
    lines = _shown(_native.out_of_memory()[1]).splitlines()
    return next((line.strip().removeprefix(_BY) for line in lines if line.strip().startswith(_BY)), "")


def compared_inputs() -> str:
    """How the inputs of the step of the latest failed allocation compare with those before: "step 8 had 2 x 4,096
    tokens; the largest before was 2 x 2,912"; "" if they do not differ, or are not known."""
    lines = (line.strip() for line in _shown(_native.out_of_memory()[1]).splitlines())
    return next((line for line in lines if line.startswith("step ") and _BEFORE in line), "")


def add_note(error: BaseException) -> None:
    """Add the latest report to the exception of its failed allocation, unless an exception has that report already."""
    _, report, requested, pending, _ = _native.out_of_memory()
    has_report = any(str(note).startswith("[modscope] out of memory") for note in getattr(error, "__notes__", ()))
    if pending and not has_report and _is_of_failure(error, requested):
        error.add_note(_shown(report))
        _native.oom_report_added()


@contextlib.contextmanager
def without_note(error: BaseException) -> Iterator[None]:
    """Hide the note, if its report was already printed to stderr when the allocation failed."""
    _, report, _, _, printed = _native.out_of_memory()
    notes = getattr(error, "__notes__", None)
    if notes is None or not printed:
        yield
        return
    error.__notes__ = [note for note in notes if note != _shown(report)]
    try:
        yield
    finally:
        error.__notes__ = notes
