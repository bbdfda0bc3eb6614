"""The file that a command writes. It appears when it is complete, and replaces another only if that was asked for, or
if both hold figures as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from modscope._show.terminal import leave_unwritten

_LONGEST_INDENTED = 1_000_000  # characters of JSON


@contextlib.contextmanager
def create(path: str, overwrite: bool, *sources: str) -> Iterator[IO[bytes]]:
    """A file to write to, which gets its name when the block ends without an exception; "-" is stdout. OSError says in
    a sentence why it cannot be written. ``sources`` are the captures, which it must not replace."""
    try:
        with _open(path, overwrite, sources) as file:
            yield file
            file.flush()
    except OSError as error:
        if error.filename or not error.strerror:  # of another file, or a sentence
            raise
        if path == "-":
            leave_unwritten(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise OSError(f"{'The output' if path == '-' else path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _open(path: str, overwrite: bool, sources: Sequence[str]) -> Iterator[IO[bytes]]:
    if path == "-":
        if sys.stdout is None:
            raise OSError("There is no stdout to write to: give the name of a file")
        yield sys.stdout.buffer
    elif _is_stream(path):
        with open(path, "wb") as stream:
            yield stream
    else:
        _check_path(path, overwrite, sources)
        with _write_then_rename(path, overwrite) as file:
            yield file


def check(path: str, overwrite: bool, *sources: str) -> None:
    """Raise what ``create`` would raise now, before something that takes long."""
    if path != "-" and not _is_stream(path):
        _check_path(path, overwrite, sources)


def write_document(document: Mapping[str, Any], to: str | int, overwrite: bool) -> None:
    """Write what --json asks for to the file ``to``, or to this descriptor. OSError says in a sentence why it cannot be
    written."""
    text = as_text(document)
    if isinstance(to, str):
        with create(to, overwrite or holds_figures(to)) as file:
            file.write(f"{text}\n".encode())
        return
    with open(to, "w", encoding="utf-8", closefd=False) as stream:
        stream.write(f"{text}\n")


def as_text(document: Mapping[str, Any]) -> str:
    """As JSON, indented for people, unless it is so long that nobody reads it: deep trees would be mostly spaces."""
    text = json.dumps(document)
    return json.dumps(document, indent=2) if len(text) <= _LONGEST_INDENTED else text


def holds_figures(path: str) -> bool:
    """Whether a file is what an earlier --json wrote, which a later one replaces without being asked. It is read as far
    as needed."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            with open(path, "rb") as file:
                return re.match(rb'\{\s*"command": "', file.read(100)) is not None
    return False


def _is_stream(path: str) -> bool:
    """Whether it is a device or a pipe, which is written to directly. A link to one is not, because somebody else may
    have made it, unless it is one of the system's own, such as /dev/stdout."""
    of_system = os.path.abspath(path).startswith(("/dev/", "/proc/"))
    with contextlib.suppress(OSError):
        kind = os.stat(path, follow_symlinks=of_system).st_mode
        return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind))
    return False


def _check_path(path: str, overwrite: bool, sources: Sequence[str]) -> None:
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or path.endswith("/"):
        raise OSError(f"{path} is a folder: give the name of a file")
    if not os.path.isdir(folder):
        raise OSError(f"There is no folder {folder}: make it first")
    if not os.path.lexists(path):
        return
    if os.path.exists(path) and any(os.path.exists(source) and os.path.samefile(path, source) for source in sources):
        raise OSError(f"{path} is the capture itself: choose another name")
    if not overwrite:
        raise OSError(_exists(path))


@contextlib.contextmanager
def _write_then_rename(path: str, overwrite: bool) -> Iterator[IO[bytes]]:
    """A link at ``path`` is replaced itself, never the file that it leads to."""
    part = f"{path}.{os.getpid()}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(part, flags, 0o666)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with open(fd, "wb") as file:
            yield file
        _rename(part, path, overwrite)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _rename(part: str, path: str, overwrite: bool) -> None:
    """Give the complete file its name. A file that appeared under it meanwhile stays, unless ``overwrite``."""
    if not overwrite:
        try:
            os.link(part, path)
        except FileExistsError:
            raise OSError(_exists(path)) from None
        except OSError:  # this file system has no hard links
            if os.path.lexists(path):
                raise OSError(_exists(path)) from None
        else:
            os.unlink(part)
            return
    os.replace(part, path)


def _exists(path: str) -> str:
    return f"{path} exists already: choose another name, or overwrite it (-f)"
