"""The story of an allocation that failed, as a note of the exception that tells of it."""

from __future__ import annotations

from modscope import _native


def add_note(error: BaseException) -> None:
    """Add the latest story, if this is the exception of that failure and does not have it yet."""
    if not (isinstance(error, (RuntimeError, MemoryError)) and "memory" in str(error)):
        return
    failures, story = _native.out_of_memory()
    if failures and story.rstrip("\n") not in getattr(error, "__notes__", ()):
        error.add_note(story.rstrip("\n"))
    _native.story_told()
