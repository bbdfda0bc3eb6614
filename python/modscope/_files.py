"""The capture's file: what it is called, and making it without harm to another."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from typing import NamedTuple

# Above the numbers that a program gets for its own files, and never 0 to 2, should one of these be closed.
_LOWEST_FD = 100


class Name(NamedTuple):
    """A run's captures: ``root.suffix``, or with the process's number ``root.4242.suffix``."""

    root: str
    suffix: str

    def plain(self) -> str:
        return self.root + self.suffix

    def numbered(self) -> str:
        return f"{self.root}.{os.getpid()}{self.suffix}"


def name_for(output: str | None, stem: str) -> Name:
    """Of the capture that goes to ``output``, or of one of a program called ``stem``; several ranks have one each."""
    root, suffix = os.path.splitext(output) if output else (f"modscope-{stem}", ".msc")
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world.isdecimal() and int(world) > 1:
        root += f".rank{int(rank)}"
    return Name(root, suffix)


def create(path: str, overwrite: bool = False) -> int:
    """A descriptor of a new, empty file. FileExistsError or another OSError says in a sentence why there is none."""
    try:
        return _out_of_the_way(_open(path, overwrite))
    except OSError as error:
        raise type(error)(_sentence(path, error)) from None


def _open(path: str, overwrite: bool) -> int:
    """One that is overwritten is replaced: whoever still writes or reads the old one is not disturbed."""
    if not overwrite:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISREG(os.stat(path).st_mode):
            os.unlink(path)
    return _open(path, False)


def _out_of_the_way(fd: int) -> int:
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    except OSError:  # so many are not allowed here
        return fd
    os.close(fd)
    return high


def _sentence(path: str, error: OSError) -> str:
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return f"{path} is a folder: a capture needs a file's name"
    if os.path.exists(path) and not os.path.isfile(path):
        return f"{path} is a device or a pipe: a capture needs a file"
    if isinstance(error, FileExistsError):
        return f"{path} exists already: choose another name, or overwrite it (-f, or overwrite=True)"
    if isinstance(error, FileNotFoundError) and not os.path.isdir(folder):
        return f"there is no folder {folder} for the capture"
    if isinstance(error, PermissionError) and not os.path.exists(path):
        return f"the folder {folder} cannot be written: {error.strerror}"
    return f"{path} cannot be written: {error.strerror}"


def remove_empty(path: str, fd: int) -> None:
    """Remove the file that nothing was written to, if it is still the one that was made."""
    with contextlib.suppress(OSError):
        made, there = os.fstat(fd), os.lstat(path)
        if made.st_size == 0 and os.path.samestat(made, there):
            os.unlink(path)
