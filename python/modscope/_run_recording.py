"""The recording inside the script's process that ``modscope run`` starts.

It begins when the script has imported torch, and ends with the script, when one line about the capture is printed.
The script must not notice it. It patches only these, and no longer than needed: sys.meta_path (until torch is
imported), os._exit, and after torch is imported sys.excepthook and, in C, how a SystemExit is deallocated.
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
    """What ``modscope run`` passes to the script's process, in an environment variable."""

    program: str
    arguments: int
    """How many arguments the program has. The arguments themselves may be too long for the environment."""
    shown: str
    """The capture's path as the user gave it; "" if no capture is written."""
    file: list[Any]
    """The capture's file, as _files.NewFile has it; empty if no capture is written."""
    children: list[str]
    """Root and suffix of forked children's captures; empty if they are not followed."""
    steps: int
    """The script is stopped after so many optimizer steps; 0: never."""
    quiet: bool
    pythonpath: str | None
    """PYTHONPATH before ``modscope run`` added its folder; None if it was not set."""

    def new_file(self) -> _files.NewFile | None:
        return _files.NewFile(*self.file) if self.file else None

    def to_environment(self) -> dict[str, str]:
        return {_VARIABLE: json.dumps(self)}


def enter() -> None:
    """Called before the script's first line. Does nothing unless ``modscope run`` started this process."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return
    settings = Settings(*json.loads(text))
    if settings.pythonpath is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = settings.pythonpath
    file = settings.new_file()
    if file:
        os.set_inheritable(file.fd, False)
    RunRecording(settings).enter()


class _Finder:
    """Finds torch where the other finders find it, and calls ``on_import`` when it has been imported."""

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._notice_import(spec)
                    return spec
        return None

    def _notice_import(self, spec: ModuleSpec) -> None:
        """The import system sets ``spec._initializing`` to False when the import ends. This is noticed by a subclass
        that overrides ``__setattr__``. A loader of our own would be on the stack during the import, and code that
        runs when the spec is read could swallow a KeyboardInterrupt."""
        plain = type(spec)
        finder = self

        def set_attribute(spec: Any, name: str, value: object) -> None:
            object.__setattr__(spec, name, value)
            if name == "_initializing" and not value:
                object.__setattr__(spec, "__class__", plain)
                finder._imported()

        spec.__class__ = type(plain.__name__, (plain,), {"__setattr__": set_attribute})

    def _imported(self) -> None:
        if "torch" in sys.modules and self in sys.meta_path:  # else the import failed
            sys.meta_path.remove(self)
            self._on_import()


class RunRecording:
    """From the script's start to its end, in the script's process or in a forked child that is followed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._file = settings.new_file()  # None: no capture is written
        self._pid = os.getpid()  # the process that is recorded
        self._recording: Recording | None = None
        self._created: os.stat_result | None = None  # identifies the capture's file
        self._is_child = False  # a followed child
        self._steps = 0
        self._stopped = False  # by --steps
        self._finished = False
        self._original_exit = os._exit
        self._original_excepthook: Callable[..., object] = sys.excepthook
        self._uncaught_error: BaseException | None = None

    def enter(self) -> None:
        atexit.register(self._at_exit)  # exit functions run in reverse order: the first one runs last
        os._exit = self._exit
        if "torch" in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, _Finder(self._begin))

    # ---- after torch is imported ----

    def _begin(self) -> None:
        if self._in_fork() and not self._follow():
            return
        if not self._start():
            return
        self._original_excepthook, sys.excepthook = sys.excepthook, self._excepthook
        if self._settings.steps:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(self._count_step)
        if self._settings.children:
            os.register_at_fork(after_in_child=lambda: self._follow() and self._start())

    def _start(self) -> bool:
        try:
            from modscope._torch_version import check_torch

            check_torch()
            import threading

            from modscope import _native, _record

            arguments = sys.orig_argv[len(sys.orig_argv) - self._settings.arguments :]
            info = _record.default_info(self._settings.program, arguments)
            recording = _record.Recording(self._file.fd if self._file else None, info)
            recording.start(self._file.publish if self._file else None)
            atexit.unregister(_native.restore)  # _at_exit restores them later
            _native.watch_exit_status(threading.main_thread().ident or 0)
        except Exception as error:
            self._finished = True
            self._discard()
            self._print(f"recording could not begin, so the script runs without a capture: {_text(error)}")
            return False
        self._recording = recording
        if self._file:
            with contextlib.suppress(OSError):
                self._created = os.fstat(self._file.fd)
        return True

    def _count_step(self, optimizer: object, args: object, kwargs: object) -> None:
        import torch

        if torch.compiler.is_compiling() or self._in_fork():
            return
        self._steps += 1
        if self._steps >= self._settings.steps:
            self._stop()

    def _stop(self) -> NoReturn:
        import threading

        self._stopped = True
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        _flush()  # SystemExit would end only this thread, and other threads may wait for it
        os._exit(0)

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._uncaught_error = error
        if not self._in_fork():
            with contextlib.suppress(Exception):
                from modscope import _oom_report

                _oom_report.add_note(error)
                if self._original_excepthook is sys.__excepthook__ and sys.stderr is sys.__stderr__:
                    with _oom_report.without_note(error):  # the report is on stderr already
                        self._original_excepthook(kind, error, trace)
                        return
        self._original_excepthook(kind, error, trace)

    # ---- forked children ----

    def _in_fork(self) -> bool:
        """Whether this is a forked child that is not recorded (yet)."""
        return os.getpid() != self._pid

    def _follow(self) -> bool:
        """In a forked child: record this process, to its own capture. False if it is not to be recorded, or if its
        file cannot be created."""
        if not self._settings.children:
            return False
        self._pid, self._is_child = os.getpid(), True
        self._recording, self._steps, self._stopped, self._finished = None, 0, False, False
        self._file = None
        with contextlib.suppress(OSError):
            self._file = _files.prepare(_files.Name(*self._settings.children).numbered(), False)
        return self._file is not None

    # ---- the end ----

    def _exit(self, status: int) -> NoReturn:
        self._finish("stopped" if self._stopped else "finished", status=str(status))
        self._original_exit(status)

    def _at_exit(self) -> None:
        if self._in_fork():
            return
        _flush()
        error = self._uncaught_error if sys.excepthook == self._excepthook else getattr(sys, "last_value", None)
        if self._stopped:
            self._finish("stopped", status="0")
        elif error is None:
            self._finish("finished", **self._exit_status())
        else:
            how = "interrupted" if isinstance(error, KeyboardInterrupt) else "exception"
            self._finish(how, error=_describe(error))
        if self._recording is not None:
            from modscope import _native

            _native.restore()

    def _exit_status(self) -> dict[str, str]:
        """The status, if the script ended by SystemExit."""
        if self._recording is None:
            return {}
        from modscope import _native

        status = _native.take_exit_status()
        return {} if status is None else {"status": str(status)}

    def _finish(self, how: str, **end: str) -> None:
        if self._finished or self._in_fork():
            return
        self._finished = True
        try:
            if self._recording is None:
                self._discard()
                how = "imported torch in a way that modscope did not notice" if "torch" in sys.modules else "did not import torch"
                self._print(f"{self._settings.program} {how}, so no capture was written.")
            else:
                from modscope._closing import closing

                outcome = self._recording.stop(how, **end)
                if outcome.bytes == 0:
                    self._discard()
                loss = _files.describe_loss(self._file.path, self._created) if self._file and self._created else None
                if not self._settings.quiet or outcome.lost or outcome.error or loss:
                    never = self._settings.steps and not self._steps and how == "finished"
                    why = "the script took no optimizer step, so --steps did not stop it; " if never else ""
                    self._print(why + closing(self._settings.shown, outcome, how, loss))
        except BaseException as error:  # also KeyboardInterrupt: the script has ended already
            self._print(f"the capture could not be completed: {_describe(error)}")

    def _discard(self) -> None:
        if self._file:
            self._file.discard()

    def _print(self, text: str) -> None:
        if self._is_child or sys.__stderr__ is None or sys.__stderr__.closed:
            return
        line = " ".join(["[modscope]", *text.splitlines()])
        with contextlib.suppress(OSError):
            os.write(2, f"{line}\n".encode(errors="backslashreplace"))


def _flush() -> None:
    """Write the script's own output before our line."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _describe(error: BaseException) -> str:
    return ": ".join(filter(None, [type(error).__name__, _text(error)]))


def _text(error: BaseException) -> str:
    try:
        return str(error).strip()
    except BaseException:  # the program's own __str__ may raise anything
        return ""
