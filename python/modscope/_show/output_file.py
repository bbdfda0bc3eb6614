"""The file that a command writes. It appears when it is complete. It replaces another only if both are of one kind
(_read/own_files.py), and if that was asked for or both hold figures as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import IO, Any

from modscope._read.own_files import FileKind, describe_existing, figures_of, is_replaceable
from modscope._show.terminal import leave_unwritten

SCHEMA = 1
"""The version of what --json prints: another number, where a key is gone or means something else (_cli/schema.txt)."""
_LONGEST_INDENTED = 1_000_000  # characters of JSON


@contextlib.contextmanager
def create(path: str, kind: FileKind, overwrite: bool) -> Iterator[IO[bytes]]:
    """A file to write to, which gets its name when the block ends without an exception; "-" is stdout. OSError says in
    a sentence why it cannot be written. With ``overwrite`` it replaces an older file of its kind."""
    try:
        with _open(path, kind, overwrite) as file:
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
def _open(path: str, kind: FileKind, overwrite: bool) -> Iterator[IO[bytes]]:
    if path == "-":
        if sys.stdout is None:
            raise OSError("There is no stdout to write to: give the name of a file")
        yield sys.stdout.buffer
    elif _is_stream(path):
        with open(path, "wb") as stream:
            yield stream
    else:
        _check_path(path, kind, overwrite)
        with _write_then_rename(path, kind, overwrite) as file:
            yield file


def check(path: str, kind: FileKind, overwrite: bool) -> None:
    """Raise what ``create`` would raise now, before something that takes long."""
    if path != "-" and not _is_stream(path):
        _check_path(path, kind, overwrite)


def document_of(command: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """The object that --json of a command prints."""
    return {"command": command, "schema": SCHEMA, **figures}


def write_document(document: Mapping[str, Any], to: str | int) -> None:
    """Write what --json asks for to the file ``to``, which replaces older figures of the command, or to this
    descriptor. OSError says in a sentence why it cannot be written."""
    text = as_text(document)
    if isinstance(to, str):
        with create(to, figures_of(document["command"]), True) as file:
            file.write(f"{text}\n".encode())
        return
    with open(to, "w", encoding="utf-8", closefd=False) as stream:
        stream.write(f"{text}\n")


def as_text(document: Mapping[str, Any]) -> str:
    """As JSON, indented for people, unless it is so long that nobody reads it: deep trees would be mostly spaces."""
    text = json.dumps(document)
    return json.dumps(document, indent=2) if len(text) <= _LONGEST_INDENTED else text


def make_room(path: str, command: str) -> None:
    """Remove what an earlier --json of the command wrote, before anything takes long: a command that fails must not
    leave older figures. OSError says in a sentence why ``path`` cannot be written, or holds something else."""
    check(path, figures_of(command), True)
    if os.path.lexists(path) and not _is_stream(path):
        os.unlink(path)


def _is_stream(path: str) -> bool:
    """Whether it is a device or a pipe, which is written to directly. A link to one is not, because somebody else may
    have made it, unless it is one of the system's own, such as /dev/stdout."""
    of_system = os.path.abspath(path).startswith(("/dev/", "/proc/"))
    with contextlib.suppress(OSError):
        kind = os.stat(path, follow_symlinks=of_system).st_mode
        return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind))
    return False


def _check_path(path: str, kind: FileKind, overwrite: bool) -> None:
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or path.endswith("/"):
        raise OSError(f"{path} is a folder: give the name of a file")
    if not os.path.isdir(folder):
        raise OSError(f"There is no folder {folder}: make it first")
    _check_existing(path, kind, overwrite)


def _check_existing(path: str, kind: FileKind, overwrite: bool) -> None:
    if os.path.lexists(path) and not (overwrite and _may_replace(path, kind)):
        raise OSError(describe_existing(path, kind, "-f"))


def _may_replace(path: str, kind: FileKind) -> bool:
    try:
        return is_replaceable(path, kind)
    except OSError:
        return False


@contextlib.contextmanager
def _write_then_rename(path: str, kind: FileKind, overwrite: bool) -> Iterator[IO[bytes]]:
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
        _rename(part, path, kind, overwrite)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _rename(part: str, path: str, kind: FileKind, overwrite: bool) -> None:
    """Give the complete file its name. A file that appeared under it meanwhile stays, unless it may be replaced."""
    if not overwrite:
        try:
            os.link(part, path)
        except OSError:  # the name is taken, or this file system has no hard links
            pass
        else:
            os.unlink(part)
            return
    _check_existing(path, kind, overwrite)
    os.replace(part, path)
