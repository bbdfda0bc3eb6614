"""Run Python programs in forks of one process that has imported torch and modscope already.

Importing torch takes most of the time of a small program. A fork starts with its modules, so what a program allocates and
prints is as in a process of its own, with these differences: torch is imported before the program's first line, and the
interpreter is not finalized at the end. Programs for which these matter, and those that are sent signals, are started as
processes of their own.

``modscope run`` and ``modscope predict`` replace their process with Python (execve). In a fork the new program begins in
the same process instead, with its environment and our sitecustomize, as Python begins it. The processes of ``modscope``
that commands start (subprocess.Popen) are forks, too.

This file is also the program of that process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
from types import ModuleType
from typing import IO, Any, NoReturn

_StartedProcess = subprocess.Popen

# ---- for tests ----


def run(words: list[str], folder: str | pathlib.Path | None = None, seconds: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    """What ``python WORDS`` does: its exit status and output. ``environment``: variables besides those of this process."""
    with open(os.devnull, "rb") as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = [file.fileno() for file in (stdin, out, err)]
        pid, reply = _ask(_server(), words, os.fspath(folder or os.getcwd()), {**os.environ, **environment}, files)
        with reply:
            if not select.select([reply], [], [], seconds)[0]:
                os.kill(pid, 9)
                reply.readline()
                raise subprocess.TimeoutExpired(words, seconds)
            status = os.waitstatus_to_exitcode(int(reply.readline()))
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, status, out.read().decode(), err.read().decode())


def _ask(server: socket.socket, words: list[str], folder: str, environment: dict[str, str], files: list[int]) -> tuple[int, IO[bytes]]:
    """Have a program started, with these files as stdin, stdout and stderr. Returns its pid, and a pipe which gets a line
    with what waitpid() tells when it has ended."""
    theirs, ours = os.pipe()[::-1]
    request = json.dumps({"words": words, "folder": folder, "environment": environment})
    socket.send_fds(server, [request.encode()], [*files, theirs])
    os.close(theirs)
    reply = open(ours, "rb", buffering=0)
    return int(reply.readline()), reply


@functools.cache
def _server() -> socket.socket:
    """The process ends when this one closes its socket, at the latest when it ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # a request is one packet
    with theirs:
        _StartedProcess([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return ours


def _is_modscope(words: list[str]) -> bool:
    """Whether they start ``python -m modscope``, with no options of Python that _begin does not know."""
    first = 1
    while words[first : first + 1] == ["-W"]:
        first += 2
    return words[0] == sys.executable and words[first : first + 2] == ["-m", "modscope"]


class Popen(_StartedProcess[Any]):
    """A ``subprocess.Popen`` that forks processes of ``modscope``. Put in its place where a command is to run that starts some."""

    _reply: IO[bytes] | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *rest: Any) -> None:
        if not _is_modscope(list(args)):
            return super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)  # type: ignore[misc, no-any-return]
        pipes = rest[3:9]
        streams = [pipe if pipe != -1 else number for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        sys.stdout.flush(), sys.stderr.flush()
        self.pid, self._reply = _ask(_server(), list(args[1:]), cwd or os.getcwd(), dict(env or os.environ), streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._reply is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._reply], [], [], 0)[0]:
            return 0, 0
        return self.pid, int(self._reply.readline())

    def _internal_poll(self, *words: Any, **more: Any) -> int | None:
        if self._reply is None:
            return super()._internal_poll(*words, **more)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


# ---- the process that forks ----


def _serve(tests: socket.socket, programs: socket.socket) -> dict[str, Any]:
    """In a fork: what to run. The process itself ends with the requests of the tests."""
    while True:
        text, files, _, _ = socket.recv_fds(select.select([tests, programs], [], [])[0][0], 1 << 20, 4)
        if not text:
            os._exit(0)
        if os.fork() == 0:  # It waits for the program, so that several may run at once.
            *streams, reply = files
            pid = os.fork()
            if pid == 0:
                tests.close(), programs.close(), os.close(reply)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                request: dict[str, Any] = json.loads(text)
                return request
            for stream in streams:
                os.close(stream)
            os.write(reply, b"%d\n" % pid)
            os.write(reply, b"%d\n" % os.waitpid(pid, 0)[1])
            os._exit(0)
        for file in files:
            os.close(file)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


class _Execve(BaseException):
    """Raised where a program replaces its process with this Python."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.words, self.environment = words, environment


def _execve(path: str, arguments: list[str], environment: dict[str, str]) -> NoReturn:
    assert path == sys.executable, path
    raise _Execve(arguments[1:], environment)


def _begin(words: list[str], environment: dict[str, str]) -> None:
    """Run a program as Python does that is started with these words."""
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv = [sys.executable, *words]
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *_PATH]
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        pass
    while words[0] == "-W":
        sys.warnoptions.append(words[1])
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    module = ModuleType("__main__")
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    if words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        code = compile(words[1], "<string>", "exec")
    elif words[0] == "-m":
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(words[1])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{words[1]}.__main__")
        assert spec is not None and spec.origin is not None, words[1]
        sys.argv = [spec.origin, *words[2:]]
        module.__spec__, module.__package__, module.__file__ = spec, spec.parent, spec.origin
        code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        sys.argv, module.__file__ = words, words[0]
        code = compile(pathlib.Path(words[0]).read_bytes(), words[0], "exec")
    exec(code, module.__dict__)


def _status_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _run(words: list[str], environment: dict[str, str]) -> int:
    """The exit status."""
    while True:
        try:
            _begin(words, environment)
            return 0
        except _Execve as replaced:
            words, environment = replaced.words, replaced.environment
        except SystemExit as error:
            return _status_of(error)
        except BaseException as error:
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            sys.excepthook(type(error), error, error.__traceback__)
            return 1


if __name__ == "__main__":
    import atexit
    import importlib.util
    import multiprocessing.process
    import threading
    import warnings

    import torch
    import torch._dynamo  # The first optimizer would import it.

    import modscope._native
    import modscope._predict_text
    import modscope._record
    import modscope._virtual.device  # noqa: F401

    _PATH = sys.path[1:]
    _exit = os._exit  # before a recording replaces it
    _programs, _theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _programs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    _request = _serve(socket.socket(fileno=int(sys.argv[1])), _theirs)
    os.execve = _execve  # type: ignore[assignment]
    _server = lambda: _programs  # noqa: E731
    subprocess.Popen = Popen  # type: ignore[assignment, misc]
    os.chdir(_request["folder"])
    multiprocessing.process.ORIGINAL_DIR = _request["folder"]  # type: ignore[attr-defined]  # where a spawned process looks for the script
    _status = _run(_request["words"], _request["environment"])
    threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    _exit(_status & 0xFF)
