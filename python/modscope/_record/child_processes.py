"""Processes that a script under ``modscope run`` starts: ranks of a launcher, spawned workers.

Each Python among them gets the settings of the recording in its environment, and removes them before its first line,
so that neither the script nor what it starts finds them there. What these processes record is listed in a file in
memory, which the script's process reads at its end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from modscope._record import capture_file

START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start")
"""The folder in which our sitecustomize is."""


_PYTHON = re.compile(rb"python[0-9.]*")

# ---- passing the settings on ----


def _reads_environment(options: Sequence[bytes]) -> bool:
    """Whether a Python with these words after its name imports our sitecustomize: not with -I, -E or -S."""
    words = iter(options)
    for word in words:
        if not word.startswith(b"-") or word == b"-":
            break  # the script
        if word.startswith(b"--"):
            continue
        flags, with_argument, rest = re.fullmatch(rb"-([^cmWX]*)([cmWX]?)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
        if re.search(rb"[IES]", flags):
            return False
        if with_argument in (b"c", b"m"):
            break
        if with_argument and not rest:
            next(words, None)
    return True


def _is_python(path: bytes, arguments: Sequence[bytes]) -> bool:
    """Whether the program is a Python that imports our sitecustomize."""
    if _PYTHON.fullmatch(os.path.basename(os.path.realpath(path))):
        return _reads_environment(arguments[1:])
    with open(path, "rb") as file:  # a script, such as torchrun
        head = file.read(512)
    if not head.startswith(b"#!") or b"python" not in head:
        return False
    words = head.splitlines()[0].split()
    options = itertools.dropwhile(lambda word: not _PYTHON.fullmatch(os.path.basename(word)), words)
    return _reads_environment([*options][1:])


def _starts_python(executables: Sequence[Any], arguments: Sequence[Any]) -> bool:
    """Whether a program is Python. ``executables``: where it is looked for, in this order. ``arguments``: its name and
    what follows."""
    for path in map(os.fsencode, executables):
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return _is_python(path, [os.fsencode(word) for word in arguments])
    return False


def _environment_in_c() -> dict[bytes, bytes]:
    """The environment that a child inherits. It may have variables that os.environ does not know."""
    import ctypes

    strings = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: dict[bytes, bytes] = {}
    for string in itertools.takewhile(lambda string: string is not None, map(strings.__getitem__, itertools.count())):
        name, _, value = string.partition(b"=")
        found[name] = value
    return found


class PassOn:
    """Gives a variable to each Python that this process starts. It replaces the functions that start programs."""

    def __init__(self, variable: str, value: Callable[[str | None], str]) -> None:
        """``value`` gets the PYTHONPATH of the new process, and returns the variable's value."""
        self._variable = variable
        self._value = value
        self.started = 0
        """How many programs this process started."""

    def install(self) -> None:
        import _posixsubprocess

        fork_exec: Any = self._wrap_fork_exec(_posixsubprocess.fork_exec)
        subprocess = sys.modules.get("subprocess")  # it imports the function by its name
        if getattr(subprocess, "_fork_exec", None) is _posixsubprocess.fork_exec:
            setattr(subprocess, "_fork_exec", fork_exec)
        _posixsubprocess.fork_exec = fork_exec
        for name in ("posix_spawn", "posix_spawnp"):
            if hasattr(os, name):
                setattr(os, name, self._wrap_posix_spawn(getattr(os, name)))

    def _wrap_fork_exec(self, original: Any) -> Any:
        def fork_exec(
            args: Any, executables: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *rest: Any
        ) -> Any:
            return original(
                args, executables, close_fds, pass_fds, cwd, self._for_fork_exec(executables, args, env), *rest
            )

        return fork_exec

    def _wrap_posix_spawn(self, original: Any) -> Any:
        def posix_spawn(path: Any, argv: Any, env: Any, /, **options: Any) -> Any:
            return original(path, argv, self._for_posix_spawn(path, argv, env), **options)

        return posix_spawn

    def _for_fork_exec(self, executables: Any, args: Any, env: Any) -> Any:
        """``env``: a list of b"name=value", or None for this process's own environment."""
        with contextlib.suppress(Exception):  # the program is then started as without modscope
            self.started += 1
            if _starts_python(executables, args):
                pairs = _environment_in_c() if env is None else dict(string.split(b"=", 1) for string in env)
                return [name + b"=" + value for name, value in self._add(pairs).items()]
        return env

    def _for_posix_spawn(self, path: Any, argv: Any, env: Any) -> Any:
        """``env``: a dict, or from Python 3.13 on None for this process's own environment."""
        with contextlib.suppress(Exception):
            self.started += 1
            if _starts_python([path], argv):
                if env is None:
                    return self._add(_environment_in_c())
                return self._add({os.fsencode(name): os.fsencode(value) for name, value in env.items()})
        return env

    def _add(self, pairs: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        previous = pairs.get(b"PYTHONPATH")
        value = self._value(None if previous is None else os.fsdecode(previous))
        path = os.pathsep.encode().join(filter(None, [os.fsencode(START), previous]))
        return {**pairs, os.fsencode(self._variable): os.fsencode(value), b"PYTHONPATH": path}


# ---- the list of captures ----


class StartedProcess(NamedTuple):
    """A process that the script started, and its capture."""

    pid: int
    name: str
    """The capture's path, as the user sees it; "" if none is written."""
    path: str
    """The absolute path of the capture."""
    peak: str = ""
    """Its peak in words; "" while it runs, or if it was killed."""
    error: str = ""
    """Why the process could not be recorded; "" if it was."""
    dropped: bool = False
    """It is not worth a capture, and has none."""

    @property
    def exists(self) -> bool:
        return os.path.exists(self.path) if self.path else bool(self.peak)


_LIST = "modscope-captures"


class CaptureList(NamedTuple):
    """A file in memory that belongs to the script's process; others open it through /proc. It vanishes with the
    process."""

    pid: int
    fd: int

    def _name(self) -> str:
        return f"/proc/{self.pid}/fd/{self.fd}"

    def _is_there(self) -> bool:
        """The script may have closed it, or may have ended."""
        return os.readlink(self._name()).startswith(f"/memfd:{_LIST}")

    def add(self, entry: StartedProcess) -> None:
        with contextlib.suppress(OSError):
            if self._is_there():
                fd = os.open(self._name(), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                try:
                    os.write(fd, json.dumps(entry).encode() + b"\n")
                finally:
                    os.close(fd)

    def read(self) -> list[StartedProcess]:
        """The latest entry of each process, in the order in which they began."""
        found: dict[tuple[int, str], StartedProcess] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            if self._is_there():
                for line in os.pread(self.fd, os.fstat(self.fd).st_size, 0).splitlines():
                    entry = StartedProcess(*json.loads(line))
                    found[entry.pid, entry.path] = entry
        return [entry for entry in found.values() if not entry.dropped]


def new_list() -> CaptureList | None:
    """A list for this process. None where the system has no files in memory: captures are then written, but not
    listed."""
    try:
        fd = os.memfd_create(_LIST, 0)
    except (OSError, AttributeError):
        return None
    return CaptureList(os.getpid(), capture_file.move_high(fd))


# ---- which process this is ----


def program_of_this_process() -> tuple[str, int] | None:
    """The script or module that Python runs, and how many arguments it has. None for ``python -c``, which
    multiprocessing uses, and for Python without a script."""
    words = sys.argv
    if not words or words[0] in ("", "-", "-c"):
        return None
    first = len(sys.orig_argv) - len(words)
    return (sys.orig_argv[first] if words[0] == "-m" else words[0]), len(words) - 1


def is_fork_server() -> bool:
    """Whether this process only forks others, for multiprocessing."""
    return sys.orig_argv[1:2] != ["-m"] and any("multiprocessing.forkserver" in word for word in sys.orig_argv)


def is_loader_worker() -> bool:
    """Whether this is a worker of a DataLoader."""
    process: Any = sys.modules.get("multiprocessing.process")
    target = getattr(getattr(process, "_current_process", None), "_target", None)
    return getattr(target, "__module__", "") == "torch.utils.data._utils.worker"
