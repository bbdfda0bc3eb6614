"""Run Python programs in forks of one process that has imported torch and modscope already.

Importing torch takes most of the time of a small program. A fork starts with its modules, so what a program allocates and
prints is as in a process of its own, with these differences: torch is imported before the program's first line, and the
interpreter is not finalized at the end. Programs for which these matter, and those that are sent signals, are started as
processes of their own.

``modscope run`` and ``modscope predict`` replace their process with Python (execve). In a fork the new program begins in
the same process instead, with its environment and our sitecustomize, as Python begins it.

This file is also the program of that process.
"""

from __future__ import annotations

import array
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from types import ModuleType
from typing import Any, NoReturn

# ---- for tests ----


def run(words: list[str], folder: str | pathlib.Path | None = None, seconds: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    """What ``python WORDS`` does: its exit status and output. ``environment``: variables besides those of this process."""
    server = _server()
    request = {"words": words, "folder": os.fspath(folder or os.getcwd()), "environment": {**os.environ, **environment}}
    with open(os.devnull, "rb") as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = array.array("i", [file.fileno() for file in (stdin, out, err)])
        server.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        pid = json.loads(server.recv(100))
        server.settimeout(seconds)
        try:
            status = json.loads(server.recv(100))
        except TimeoutError:
            os.kill(pid, 9)
            server.settimeout(None)
            server.recv(100)
            raise subprocess.TimeoutExpired(words, seconds) from None
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, status, out.read().decode(), err.read().decode())


@functools.cache
def _server() -> socket.socket:
    """The process ends when this one closes its socket, at the latest when it ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # a request is one packet
    with theirs:
        subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return ours


# ---- the process that forks ----


def _serve(requests: socket.socket) -> dict[str, Any]:
    """In a fork: what to run. The process itself ends with the requests."""
    while True:
        text, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not text:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            requests.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
            os.closerange(files[0], files[-1] + 1)
            request: dict[str, Any] = json.loads(text)
            return request
        for file in files:
            os.close(file)
        requests.send(json.dumps(pid).encode())
        requests.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


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
    with socket.socket(fileno=int(sys.argv[1])) as _requests:
        _request = _serve(_requests)
    os.execve = _execve  # type: ignore[assignment]
    os.chdir(_request["folder"])
    multiprocessing.process.ORIGINAL_DIR = _request["folder"]  # type: ignore[attr-defined]  # where a spawned process looks for the script
    _status = _run(_request["words"], _request["environment"])
    threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    _exit(_status & 0xFF)
