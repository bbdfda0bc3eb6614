"""The file of a capture: its name, and creating it without overwriting another."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import NamedTuple

from modscope._read.own_files import CAPTURE, describe_existing, is_replaceable
from modscope._record.rank_identity import attempt_in_environment, rank_in_environment

# The program's own files get the lowest free descriptors, as without modscope; and if it closed one of 0 to 2, the
# capture must not take its place.
_LOWEST_FD = 100


class Name(NamedTuple):
    """The name of a run's captures: ``root.suffix``, or with the process id ``root.4242.suffix``."""

    root: str
    suffix: str
    has_rank: bool = False
    """Whether the rank is part of the root."""

    def plain(self) -> str:
        return self.root + self.suffix

    def numbered(self) -> str:
        return f"{self.root}.{os.getpid()}{self.suffix}"


def name_for(output: str | None, stem: str) -> Name:
    """The name that the user asked for with ``output``, or one made from the program's name ``stem``. If there are
    several ranks, the rank is part of it, and if the launcher started the job again, how often."""
    place = rank_in_environment()
    if place is None:
        return Name(*_split(output, stem))
    return name_of_rank(output, stem, place[0], attempt_in_environment())


def name_of_rank(output: str | None, stem: str, rank: int, attempt: int = 0) -> Name:
    """The name of the captures of a rank. ``output`` and ``stem``: as name_for has them."""
    root, suffix = _split(output, stem)
    return Name(f"{root}.rank{rank}{f'.attempt{attempt}' if attempt else ''}", suffix, True)


def _split(output: str | None, stem: str) -> tuple[str, str]:
    return os.path.splitext(output) if output else (f"modscope-{stem}", ".msc")


class NewFile(NamedTuple):
    """A capture's file before the recording has begun. If it replaces an older file, it has another name until then."""

    path: str
    part: str
    """Its name until ``publish``; the same as ``path`` if there was no older file."""
    fd: int

    def with_absolute_names(self) -> NewFile:
        return self._replace(path=os.path.abspath(self.path), part=os.path.abspath(self.part))

    def publish(self) -> None:
        """Give it its name. A process that has the older file open keeps that."""
        if self.part == self.path:
            return
        try:
            _check_replaceable(self.path)
            os.replace(self.part, self.path)
        except OSError as error:
            os.unlink(self.part)
            raise type(error)(_sentence(self.path, error, "")) from None

    def discard(self) -> None:
        """Remove it if it is empty. An older file stays as it was."""
        for name in (self.part, self.path):
            remove_empty(name, self.fd)

    def remove(self) -> None:
        """Remove it, also if something was written to it."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self.fd), os.lstat(self.path)):
                os.unlink(self.path)


def create(path: str) -> int:
    """Create an empty file; its descriptor. FileExistsError or another OSError says in a sentence why it cannot be."""
    return prepare(path, False).fd


def prepare(path: str, overwrite: bool, option: str = "overwrite=True") -> NewFile:
    """Create a capture's file; with ``overwrite`` an older capture is replaced when the new one is published. A link
    is replaced itself, never the file that it leads to. ``option`` is how the user asks for ``overwrite``."""
    part = path
    try:
        if overwrite and os.path.lexists(path):
            _check_replaceable(path)
            part = f"{path}.{os.getpid()}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return NewFile(path, part, move_high(os.open(part, flags, 0o666)))
    except OSError as error:
        raise type(error)(_sentence(path, error, option)) from None


def prepare_for_run(name: Name, is_asked_for: bool, overwrite: bool, option: str) -> tuple[str, NewFile]:
    """The file of a run, and its name. A name that the user did not ask for has the process id in it, but that of a
    rank only if a file without it exists already."""
    if not is_asked_for and name.has_rank:
        with contextlib.suppress(FileExistsError):
            return name.plain(), prepare(name.plain(), overwrite, option)
    path = name.plain() if is_asked_for else name.numbered()
    return path, prepare(path, overwrite, option)


def _check_replaceable(path: str) -> None:
    if not is_replaceable(path, CAPTURE):
        raise FileExistsError


def move_high(fd: int) -> int:
    """Close ``fd``, and return a descriptor of the same file that is out of the program's way."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    except OSError:  # the process may not have so many open files
        return fd
    os.close(fd)
    return high


def _sentence(path: str, error: OSError, option: str) -> str:
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return f"{path} is a folder: a capture needs a file's name"
    if os.path.exists(path) and not os.path.isfile(path):
        return f"{path} is a device or a pipe: a capture needs a file"
    if isinstance(error, FileExistsError):
        return describe_existing(path, CAPTURE, option)
    if isinstance(error, FileNotFoundError) and not os.path.isdir(folder):
        return f"There is no folder {folder} for the capture: make it first"
    if isinstance(error, PermissionError) and not os.path.exists(path):
        return f"The folder {folder} cannot be written: {error.strerror}"
    return f"{path} cannot be written: {error.strerror}"


def unwritable(path: str, error: OSError) -> OSError:
    """The error as a sentence with the file's name."""
    return type(error)(f"{path} cannot be written: {error.strerror}")


def describe_loss(path: str, created: os.stat_result) -> str | None:
    """What happened to a file that is no longer under its name; None if it is still there."""
    try:
        return None if os.path.samestat(created, os.lstat(path)) else "was replaced by another file"
    except FileNotFoundError:
        return "was deleted or moved"
    except OSError as error:
        return f"cannot be found ({error.strerror})"


def remove_empty(path: str, fd: int) -> None:
    """Remove the file if it is empty and still the one that was created."""
    with contextlib.suppress(OSError):
        created, current = os.fstat(fd), os.lstat(path)
        if created.st_size == 0 and os.path.samestat(created, current):
            os.unlink(path)
