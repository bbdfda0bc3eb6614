"""A file that a command writes: new, whole or not at all, and never in the place of another unless that is wanted."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import IO


@contextlib.contextmanager
def create(path: str, overwrite: bool, *sources: str) -> Iterator[IO[bytes]]:
    """A file to write to, at its name once all went well; "-" is stdout. OSError says in a sentence why not.

    ``sources``: what is read meanwhile, which it must not become."""
    if path == "-":
        if sys.stdout is None:
            raise OSError("There is no stdout to write to: give a file's name")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif _is_stream(path):
        with open(path, "wb") as stream:
            yield stream
    else:
        _refuse_to_harm(path, overwrite, sources)
        with _replacing(os.path.realpath(path)) as file:
            yield file


def _is_stream(path: str) -> bool:
    """A device, a pipe: it is written to as it is."""
    with contextlib.suppress(OSError):
        kind = os.stat(path).st_mode
        return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))
    return False


def _refuse_to_harm(path: str, overwrite: bool, sources: Sequence[str]) -> None:
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or path.endswith("/"):
        raise OSError(f"{path} is a folder: give a file's name")
    if not os.path.isdir(folder):
        raise OSError(f"There is no folder {folder} to write to")
    if not os.path.exists(path):
        return
    if any(os.path.exists(source) and os.path.samefile(path, source) for source in sources):
        raise OSError(f"{path} is the capture itself: choose another name")
    if not overwrite:
        raise OSError(f"{path} exists already: choose another name, or overwrite it (-f)")


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[IO[bytes]]:
    part = f"{path}.{os.getpid()}.part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with open(fd, "wb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
