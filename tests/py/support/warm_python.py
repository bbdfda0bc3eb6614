"""Run Python programs in forks of one process that has imported torch and modscope already.

Importing torch takes most of the time of a small program. A fork starts with its modules, so what a program allocates
and prints is as in a process of its own, with these differences: torch and torch._dynamo are imported before the
program's first line, and the interpreter is not finalized at the end. Programs for which these matter are started as
processes of their own.

The process is a fork of pytest's own, made by tests/py/conftest.py before the first test (``prepare``), so it costs
nothing.

``modscope run`` and ``modscope predict`` replace their process with Python (execve). In a fork the new program begins
in the same process instead, with its environment and our sitecustomize, as Python begins it. The processes of
``modscope`` that commands and torchrun start (subprocess.Popen) are forks, too."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import io
import json
import multiprocessing.process
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import IO, Any, NoReturn

_StartedProcess = subprocess.Popen
_exit = os._exit  # before a recording replaces it
_TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PATH: list[str] = []  # a new Python's sys.path
_IMPORTED = (
    *("_native", "_predict.text", "_record.record", "_record.run", "_virtual.device.device"),
    *("_cli.predict", "_predict.in_script", "_predict.recording"),
)
_filters_at_import = list(warnings.filters)
_server: socket.socket | None = None
"""Requests are sent here. The process ends when all copies of this end are closed, at the latest when pytest ends."""

# ---- for tests ----


def prepare() -> None:
    """Fork the process that runs the programs. conftest.py calls this once it has imported torch."""
    # the thread that forks is the main thread of the child, without pytest's frames
    forking = threading.Thread(target=_fork_server)
    forking.start()
    forking.join()


def _fork_server() -> None:
    global _server
    _server, theirs = _socket_pair()
    with warnings.catch_warnings():
        # Python warns of forks of several threads. The other one here is the main thread, which waits for this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid != 0:
        theirs.close()
        return
    _server.close()
    try:
        _be_server(theirs)
    finally:
        _exit(1)


def run(
    words: list[str], folder: str | pathlib.Path | None = None, seconds: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What ``python WORDS`` does: its exit status and output. ``environment``: variables besides those of this
    process."""
    process = start(words, folder, **environment)
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def import_first(*names: str) -> None:
    """Import modules that the programs of some tests need, in the process that forks them."""
    _ask({"imports": names}, [])[1].close()


def start(
    words: list[str], folder: str | pathlib.Path | None = None, text: bool = True, **environment: str
) -> subprocess.Popen[Any]:
    pipe = subprocess.PIPE
    env = {**os.environ, **environment}
    return Popen([sys.executable, *words], True, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=text)


def run_ranks(
    words: list[str], folder: pathlib.Path, world: int, seconds: float = 600, **environment: str
) -> list[str]:
    """What each of ``world`` processes prints, which are started at once, with RANK, LOCAL_RANK and WORLD_SIZE. All
    must end with status 0: when one does not, the others are killed, as they may wait for it."""
    ranks = [
        start(
            words,
            folder,
            **{
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                **environment,
            },
        )
        for rank in range(world)
    ]
    outputs = ["" for _ in ranks]
    errors = ["" for _ in ranks]

    def read(rank: int) -> None:
        outputs[rank], errors[rank] = ranks[rank].communicate()
        if ranks[rank].returncode != 0:
            for other in ranks:
                other.kill()

    readers = [threading.Thread(target=read, args=(rank,)) for rank in range(world)]
    for reader in readers:
        reader.start()
    end = time.monotonic() + seconds
    for reader in readers:
        reader.join(max(0, end - time.monotonic()))
    in_time = not any(reader.is_alive() for reader in readers)
    for process in ranks:
        process.kill()
    for reader in readers:
        reader.join()
    assert in_time, f"the ranks did not end in {seconds} seconds: {errors}"
    assert [process.returncode for process in ranks] == [0] * world, (outputs, errors)
    return outputs


_COMMAND = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
words = ["-m", "modscope", *sys.argv[1:]]
request = {{"words": words, "folder": os.getcwd(), "environment": dict(os.environ), "session": False}}
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
sys.exit(os.waitstatus_to_exitcode(int(server.recv(100))) % 256)
"""


@contextlib.contextmanager
def command(folder: pathlib.Path) -> Iterator[str]:
    """A folder for PATH in which ``modscope`` is a fork, too, for scripts of a shell."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address = f"\0modscope-{os.getpid()}-{folder}"
    server.bind(address[:100])
    server.listen()

    def answer(asking: socket.socket) -> None:
        with asking:
            text, files, _, _ = socket.recv_fds(asking, 1 << 20, 3)
            _, reply = _ask(json.loads(text), files)
            for file in files:
                os.close(file)
            with reply:
                asking.send(reply.readline())

    def serve() -> None:
        with contextlib.suppress(OSError):  # it is shut down
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    folder.mkdir()
    (folder / "modscope").write_text(_COMMAND.format(python=sys.executable, address=address[:100]))
    (folder / "modscope").chmod(0o700)
    yield str(folder)
    server.shutdown(socket.SHUT_RDWR)
    serving.join()
    server.close()


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # a request is one packet
    return ours, theirs


def _ask(request: dict[str, Any], files: list[int]) -> tuple[int, IO[bytes]]:
    """Have a program started, with these files as stdin, stdout and stderr. Returns its pid, and a pipe which gets a
    line with what waitpid() tells when it has ended."""
    assert _server is not None, "tests/py/conftest.py calls prepare()"
    theirs, ours = os.pipe()[::-1]
    socket.send_fds(_server, [json.dumps(request).encode()], [*files, theirs])
    os.close(theirs)
    reply = open(ours, "rb", buffering=0)
    return int(reply.readline()), reply


def _is_modscope(words: list[str]) -> bool:
    """Whether they start ``python -m modscope``, with no options of Python that _begin does not know."""
    first = 1
    while words[first] in ("-u", "-W"):
        first += 1 + (words[first] == "-W")
    return words[0] == sys.executable and words[first] == "-m" and words[first + 1].startswith("modscope")


class Popen(_StartedProcess[Any]):
    """A ``subprocess.Popen`` that forks processes of ``modscope``, or any Python (``forks_all``). Put in the place of
    ``subprocess.Popen`` where a command is to run that starts some."""

    _reply: IO[bytes] | None = None
    _forks_all = False

    def __init__(self, args: Any, forks_all: bool = False, **more: Any) -> None:
        self._forks_all = forks_all
        super().__init__(args, **more)

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *rest: Any
    ) -> None:
        if not self._forks_all and not _is_modscope(list(args)):
            return super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)  # type: ignore[misc, no-any-return]
        pipes, start_new_session = rest[3:9], rest[14]
        streams = [pipe if pipe != -1 else number for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        sys.stdout.flush(), sys.stderr.flush()
        request = {
            "words": list(args[1:]),
            "folder": os.fspath(cwd or os.getcwd()),
            "environment": dict(env or os.environ),
            "session": bool(start_new_session),
        }
        self.pid, self._reply = _ask(request, streams)
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
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


# ---- the process that forks ----


def _be_server(tests: socket.socket) -> NoReturn:
    """As in a new process of Python that has imported torch, and nothing of pytest's or of the tests."""
    global _server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(_TESTS) and name != __name__:
            del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "AssertionRewritingHook"]
    _PATH[:] = [folder for folder in sys.path if folder not in ("", os.getcwd()) and not folder.startswith(_TESTS)]
    added = [one for one in warnings.filters if one not in _filters_at_import]
    importlib.reload(warnings)  # pytest collects warnings while it imports conftest.py
    warnings.filters[:0] = added  # type: ignore[attr-defined]
    _server, programs = _socket_pair()
    request = _serve(tests, programs)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = _streams()  # type: ignore[misc]
    os.execve = _execve  # type: ignore[assignment]
    subprocess.Popen = Popen  # type: ignore[assignment, misc]
    torchrun = sys.modules.get("torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler")
    if torchrun is not None:
        torchrun.Popen = Popen  # type: ignore[attr-defined]
    os.chdir(request["folder"])
    # where a spawned process looks for the script
    multiprocessing.process.ORIGINAL_DIR = request["folder"]  # type: ignore[attr-defined]
    status = _run(request["words"], request["environment"])
    threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    _exit(status & 0xFF)


def _serve(tests: socket.socket, programs: socket.socket) -> dict[str, Any]:
    """In a fork: what to run. The process itself ends with the requests of the tests."""
    imported = False
    replies: dict[int, IO[bytes]] = {}  # by pid
    ended, woken = socket.socketpair()
    for end in (ended, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None), signal.set_wakeup_fd(woken.fileno())
    while True:
        ready = select.select([ended, tests, programs], [], [])[0][0]
        if ready is ended:
            ended.recv(1 << 10)
            _tell_what_ended(replies)
            continue
        text, files, _, _ = socket.recv_fds(ready, 1 << 20, 4)
        if not text:
            _exit(0)
        if not imported:
            imported = True
            for name in _IMPORTED:
                importlib.import_module(f"modscope.{name}")
            # Each fork would write to all objects of the imports, and so copy them: where it searches objects, and where
            # it ends with what torch registered.
            gc.freeze()
            for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
                finalizer.atexit = False
        request: dict[str, Any] = json.loads(text)
        if "imports" in request:
            for name in request["imports"]:
                importlib.import_module(name)
            gc.freeze()
            with open(files.pop(), "wb") as reply:
                reply.write(b"0\n")
            continue
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1), signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (tests, programs, ended, woken, *replies.values()):
                end.close()
            *streams, reply = files
            os.close(reply)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                if stream > 2:
                    os.close(stream)
            return request
        replies[pid] = open(files.pop(), "wb", buffering=0)
        replies[pid].write(b"%d\n" % pid)
        for file in files:
            os.close(file)


def _tell_what_ended(replies: dict[int, IO[bytes]]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with replies.pop(ended[0]) as reply, contextlib.suppress(BrokenPipeError):
                reply.write(b"%d\n" % ended[1])


def _streams() -> tuple[io.TextIOWrapper, io.TextIOWrapper, io.TextIOWrapper]:
    """As Python opens them."""

    def stream(number: int, mode: str, errors: str) -> io.TextIOWrapper:
        name = ("<stdin>", "<stdout>", "<stderr>")[number]
        raw = io.FileIO(number, mode, closefd=False)
        raw.name = name
        buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        text = io.TextIOWrapper(
            buffer, "utf-8", errors, None if mode == "r" else "\n", line_buffering=number == 2 or raw.isatty()
        )
        text.mode = mode  # type: ignore[misc]
        return text

    return stream(0, "r", "strict"), stream(1, "w", "strict"), stream(2, "w", "backslashreplace")


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
    while words[0] in ("-u", "-W"):
        if words[0] == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
            words = words[1:]
            continue
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
