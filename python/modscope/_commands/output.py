"""The file that a command writes. It appears when it is complete, and replaces another only if that was asked for."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import IO


@contextlib.contextmanager
def create(path: str, overwrite: bool, *sources: str) -> Iterator[IO[bytes]]:
    """A file to write to, which gets its name when the block ends without an exception; "-" is stdout. OSError says in
    a sentence why it cannot be written. ``sources`` are the captures, which it must not replace."""
    if path == "-":
        if sys.stdout is None:
            raise OSError("There is no stdout to write to: give the name of a file")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif _is_stream(path):
        with open(path, "wb") as stream:
            yield stream
    else:
        _check_path(path, overwrite, sources)
        with _write_then_rename(os.path.realpath(path)) as file:
            yield file


def _is_stream(path: str) -> bool:
    """Whether it is a device or a pipe, which is written to directly."""
    with contextlib.suppress(OSError):
        kind = os.stat(path).st_mode
        return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))
    return False


def _check_path(path: str, overwrite: bool, sources: Sequence[str]) -> None:
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or path.endswith("/"):
        raise OSError(f"{path} is a folder: give the name of a file")
    if not os.path.isdir(folder):
        raise OSError(f"There is no folder {folder}: make it first")
    if not os.path.exists(path):
        return
    if any(os.path.exists(source) and os.path.samefile(path, source) for source in sources):
        raise OSError(f"{path} is the capture itself: choose another name")
    if not overwrite:
        raise OSError(f"{path} exists already: choose another name, or overwrite it (-f)")


@contextlib.contextmanager
def _write_then_rename(path: str) -> Iterator[IO[bytes]]:
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
