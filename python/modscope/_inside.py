"""Inside the script that ``modscope run`` runs: wait until it has imported torch, record, and tell how it went.

The script must not notice. What is put in its way, and no longer than needed: a finder of torch, os._exit, and,
once torch is there, sys.excepthook.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from modscope import _files

if TYPE_CHECKING:
    from modscope._record import Recording

_VARIABLE = "MODSCOPE_RUN"


class Settings(NamedTuple):
    """What ``modscope run`` hands over, through the environment."""

    program: str
    arguments: int
    """How many the program has. They may be more than the environment can carry."""
    shown: str
    """The capture as the user calls it; "" if there is to be none."""
    path: str
    fd: int
    children: list[str]
    """Root and suffix of forked children's captures; empty if they are not followed."""
    steps: int
    """After how many optimizer steps to stop; 0: never."""
    quiet: bool
    pythonpath: str | None
    """PYTHONPATH as it was."""

    def to_environment(self) -> dict[str, str]:
        return {_VARIABLE: json.dumps(self)}


def enter() -> None:
    """Before the script runs."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return
    settings = Settings(*json.loads(text))
    if settings.pythonpath is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = settings.pythonpath
    if settings.fd >= 0:
        os.set_inheritable(settings.fd, False)
    Run(settings).enter()


class _Finder:
    """Finds torch where it would be found anyway, and tells when it has been loaded."""

    def __init__(self, loaded: Callable[[], None]) -> None:
        self._loaded = loaded

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._watch(spec)
                    return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        """Importing says in the spec when it begins and ends. A loader of ours would lie on the stack meanwhile, and
        what runs when the spec is read may swallow a Ctrl-C: so only setting is watched."""
        plain = type(spec)
        finder = self

        def set_attribute(spec: Any, name: str, value: object) -> None:
            object.__setattr__(spec, name, value)
            if name == "_initializing" and not value:
                object.__setattr__(spec, "__class__", plain)
                finder._done()

        spec.__class__ = type(plain.__name__, (plain,), {"__setattr__": set_attribute})

    def _done(self) -> None:
        if "torch" in sys.modules and self in sys.meta_path:  # else it could not be imported
            sys.meta_path.remove(self)
            self._loaded()


class Run:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._path, self._fd = settings.path, settings.fd
        self._pid = os.getpid()  # whose all this is
        self._recording: Recording | None = None
        self._child = False  # whether it is a followed child's
        self._steps = 0
        self._stopped = False
        self._over = False
        self._exit_now = os._exit
        self._show: Callable[..., object] = sys.excepthook
        self._error: BaseException | None = None  # that nobody caught

    def enter(self) -> None:
        atexit.register(self._at_exit)  # first, so it comes last
        os._exit = self._exit
        if "torch" in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, _Finder(self._begin))

    # ---- torch is there ----

    def _begin(self) -> None:
        if self._in_a_fork() and not self._follow():
            return
        if not self._start():
            return
        self._show, sys.excepthook = sys.excepthook, self._uncaught
        if self._settings.steps:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(self._stepped)
        if self._settings.children:
            os.register_at_fork(after_in_child=lambda: self._follow() and self._start())

    def _start(self) -> bool:
        try:
            from modscope._torch_version import check_torch

            check_torch()
            from modscope import _native, _record

            arguments = sys.orig_argv[len(sys.orig_argv) - self._settings.arguments :]
            info = _record.default_info(self._settings.program, arguments)
            recording = _record.Recording(self._fd if self._fd >= 0 else None, info)
            recording.start()
            atexit.unregister(_native.put_back)  # it would be too early: see _at_exit
        except Exception as error:
            self._over = True
            self._discard()
            self._say(f"the script runs on unwatched, without a capture: {_text(error)}")
            return False
        self._recording = recording
        return True

    def _stepped(self, optimizer: object, args: object, kwargs: object) -> None:
        import torch

        if torch.compiler.is_compiling() or self._in_a_fork():
            return
        self._steps += 1
        if self._steps >= self._settings.steps:
            self._stop()

    def _stop(self) -> NoReturn:
        import threading

        self._stopped = True
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        _flush()  # SystemExit would end this thread only, and others may wait for it
        os._exit(0)

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._error = error
        if not self._in_a_fork():
            with contextlib.suppress(Exception):
                from modscope import _story

                _story.add_note(error)
                if self._show is sys.__excepthook__ and sys.stderr is sys.__stderr__:
                    with _story.untold(error):  # it stands on stderr already
                        self._show(kind, error, trace)
                        return
        self._show(kind, error, trace)

    # ---- forked children ----

    def _in_a_fork(self) -> bool:
        """Whether this is a child that is not followed, or not yet."""
        return os.getpid() != self._pid

    def _follow(self) -> bool:
        """In a forked child: all this is its own from now on, with a capture of its own. False if that cannot be."""
        if not self._settings.children:
            return False
        self._pid, self._child = os.getpid(), True
        self._recording, self._steps, self._stopped, self._over = None, 0, False, False
        self._path, self._fd = _files.Name(*self._settings.children).numbered(), -1
        with contextlib.suppress(OSError):
            self._fd = _files.create(self._path)
        return self._fd >= 0

    # ---- the end ----

    def _exit(self, status: int) -> NoReturn:
        self._finish("stopped" if self._stopped else "finished", status=str(status))
        self._exit_now(status)

    def _at_exit(self) -> None:
        if self._in_a_fork():
            return
        _flush()
        error = self._error if sys.excepthook == self._uncaught else getattr(sys, "last_value", None)
        if self._stopped:
            self._finish("stopped", status="0")
        elif error is None:
            self._finish("finished")
        else:
            how = "interrupted" if isinstance(error, KeyboardInterrupt) else "exception"
            self._finish(how, error=_words(error))
        if self._recording is not None:
            from modscope import _native

            _native.put_back()

    def _finish(self, how: str, **end: str) -> None:
        if self._over or self._in_a_fork():
            return
        self._over = True
        try:
            if self._recording is None:
                self._discard()
                how = "imported torch in a way that was not seen" if "torch" in sys.modules else "did not import torch"
                self._say(f"{self._settings.program} {how}: there is no capture.")
            else:
                from modscope._closing import closing

                outcome = self._recording.stop(how, **end)
                if outcome.bytes == 0:
                    self._discard()
                if not self._settings.quiet or outcome.lost or outcome.error:
                    self._say(closing(self._settings.shown, outcome, how))
        except BaseException as error:  # Ctrl-C too: the script's own end is told already
            self._say(f"the capture could not be finished: {_words(error)}")

    def _discard(self) -> None:
        if self._fd >= 0:
            _files.remove_empty(self._path, self._fd)

    def _say(self, text: str) -> None:
        if self._child or sys.__stderr__ is None or sys.__stderr__.closed:
            return
        line = " ".join(["[modscope]", *text.splitlines()])
        with contextlib.suppress(OSError):
            os.write(2, f"{line}\n".encode(errors="backslashreplace"))


def _flush() -> None:
    """What the script has written comes before our line."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _words(error: BaseException) -> str:
    return ": ".join(filter(None, [type(error).__name__, _text(error)]))


def _text(error: BaseException) -> str:
    try:
        return str(error).strip()
    except BaseException:  # it is the program's own, and may do anything
        return ""
