"""The story of an allocation that failed, as a note of the exception that tells of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from modscope import _native



def text_of(error: BaseException) -> str:
    """What it says, if it can be asked, as UTF-8 takes it."""
    try:
        return str(error).encode("utf-8", "replace").decode()
    except BaseException:  # it is the program's own, and may do anything
        return ""


def _tells_of(error: BaseException, asked: int) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    # The CPU's allocator says how much it could not give.
    return isinstance(error, RuntimeError) and f"tried to allocate {asked} bytes" in text_of(error)


def add_note(error: BaseException) -> None:
    """Add the latest story, if this is the exception of that failure and no other had it before."""
    _, story, asked, untold, _ = _native.out_of_memory()
    has_one = any(str(note).startswith("[modscope] out of memory") for note in getattr(error, "__notes__", ()))
    if untold and not has_one and _tells_of(error, asked):
        error.add_note(story.rstrip("\n"))
        _native.story_told()


@contextlib.contextmanager
def untold(error: BaseException) -> Iterator[None]:
    """Without the note, if its story was shown on stderr when the allocation failed."""
    _, story, _, _, shown = _native.out_of_memory()
    notes = getattr(error, "__notes__", None)
    if notes is None or not shown:
        yield
        return
    error.__notes__ = [note for note in notes if note != story.rstrip("\n")]
    try:
        yield
    finally:
        error.__notes__ = notes
