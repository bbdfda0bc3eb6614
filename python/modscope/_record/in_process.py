"""The recording inside the script's process that ``modscope run`` starts.

It begins when the script has imported torch, and ends with the script, when one line about the capture is printed. The
script must not notice it. It patches only these, and no longer than needed: sys.meta_path (until torch is imported),
os._exit, the functions that start programs (_record/child_processes.py), and after torch is imported sys.excepthook,
for --steps torch's function that runs a backward, and, in C, how a SystemExit is deallocated and, while it has its
default action, SIGTERM.

Python processes that the script starts are recorded in the same way, each to its own capture. They print nothing."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from modscope._record import capture_file, child_processes
from modscope._record.settings import VARIABLE, Settings
from modscope._record.torch_import import TorchFinder

if TYPE_CHECKING:
    from modscope._plan.in_script import PlanForRun
    from modscope._record.record import Recording, RecordingResult

_SEARCHES = 4  # backwards after which it is looked for an optimizer, which takes time


def enter() -> None:
    """Called before the script's first line. Does nothing unless ``modscope run`` started this process."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return
    settings = Settings.of_text(text).in_this_process()
    if settings.pythonpath is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = settings.pythonpath
    if not settings.is_started:
        for fd in settings.descriptors():
            os.set_inheritable(fd, False)
    if settings.prediction:
        from modscope._predict import recording as _predict_recording

        _predict_recording.enter(settings)
    else:
        RunRecording(settings).enter()


class RunRecording:
    """What happens from the script's start to its end, in the script's process, in a process that it started, or in a
    forked child that is followed."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._options = settings, settings.options
        self._file = settings.new_file()  # None: no capture is written
        self._shown = settings.shown  # its name for the user; "" if no capture is written
        self._list = settings.capture_list()
        self._pass_on = child_processes.PassOn(VARIABLE, settings.for_started)
        self._is_fork_server = settings.is_started and child_processes.is_fork_server()
        self._pid = os.getpid()  # the process that is recorded
        self._recording: Recording | None = None
        self._plan: PlanForRun | None = None
        self._created: os.stat_result | None = None  # identifies the capture's file
        self._is_child = settings.is_started  # a process that the script started, or a followed child
        self._steps = self._optimizer_steps = 0
        self._has_optimizer = False
        self._searches = _SEARCHES
        self._stopped = False  # by --steps
        self._finished = False
        self._finishing = _thread.RLock()  # held while the capture is completed: other threads end the process after it
        self._end: dict[str, str] = {}  # how the script ended
        self._status = 0
        """Instead of the script's own exit status; 0: that is kept."""
        self._original_exit = os._exit
        self._original_excepthook: Callable[..., object] = sys.excepthook
        self._uncaught_error: BaseException | None = None

    def enter(self) -> None:
        atexit.register(self._at_exit)  # exit functions run in reverse order: the first one runs last
        os._exit = self._exit
        with contextlib.suppress(Exception):  # then the processes that it starts are not recorded
            self._pass_on.install()
        if "torch" in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, TorchFinder(self._begin))

    # ---- after torch is imported ----

    def _begin(self) -> None:
        if self._in_fork():
            if not self._follow():
                return
        elif self._is_child and not self._create_file():
            return
        self._prepare()
        if not self._start():
            return
        self._original_excepthook, sys.excepthook = sys.excepthook, self._excepthook
        self._install_plan()
        if self._options.steps:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(self._optimizer_stepped)
            self._watch_backward()
        if self._follows_forks():
            os.register_at_fork(after_in_child=lambda: self._follow() and self._start())

    def _install_plan(self) -> None:
        if self._options.plan:
            from modscope._plan import in_script

            self._plan = in_script.install(self._options.plan, self._print)

    # What a prediction does in another way (_predict/recording.py).

    def _is_enough(self) -> bool:
        """Whether the script has taken as many steps as were asked for."""
        return self._steps >= self._options.steps

    def _prepare(self) -> None:
        """Do what is needed before the recording begins."""

    def _more_info(self) -> dict[str, str]:
        """What the capture says of its run besides."""
        return {}

    def _began(self) -> None:
        """Do what is needed when the recording has begun."""

    def _optimizer_step_ended(self) -> None:
        """Do what is needed after an optimizer step."""

    def _step_ended(self) -> None:
        """Do what is needed after a training step."""

    def _start(self) -> bool:
        try:
            from modscope._torch import check_torch

            check_torch()
            import threading

            from modscope import _native
            from modscope._record import record as _record

            arguments = sys.orig_argv[len(sys.orig_argv) - self._settings.arguments :]
            info = _record.default_info(self._options.program, arguments)
            recording = _record.Recording(
                self._file.fd if self._file else None, {**info, **self._more_info()}, stacks=self._options.stacks
            )
            recording.start(self._shown, self._file.publish if self._file else None)
            self._began()
            atexit.unregister(_native.restore)  # _at_exit restores them later
            _native.watch_exit_status(threading.main_thread().ident or 0)
        except Exception as error:
            self._finished = True
            self._discard()
            self._print(f"recording could not begin, so the script runs without a capture: {_text(error)}")
            self._list_this(error=_text(error))
            return False
        self._recording = recording
        if self._file:
            with contextlib.suppress(OSError):
                self._created = os.fstat(self._file.fd)
        self._watch_sigterm(recording)
        self._list_this()
        self._leave_workers_alone()
        return True

    def _watch_sigterm(self, recording: Recording) -> None:
        from modscope._record.last_line import closing_after_sigterm

        before, after = closing_after_sigterm(self._shown)
        if self._options.quiet or not self._can_print():
            before = ""
        recording.watch_sigterm(before, after)

    def _optimizer_stepped(self, optimizer: object, args: object, kwargs: object) -> None:
        import torch
        from modscope import _native

        if torch.compiler.is_compiling() or self._in_fork() or self._finished:
            return
        self._has_optimizer = True
        self._optimizer_steps += 1
        self._optimizer_step_ended()
        if _native.optimizers_lack_order():
            self._steps = self._optimizer_steps - 1
        if _native.optimizer_ends_step(optimizer):
            self._count_step(optimizer)

    def _watch_backward(self) -> None:
        """In a program without an optimizer, a backward ends a step. One inside another backward does not."""
        import torch

        engine: Any = torch.autograd
        run = engine._engine_run_backward

        @functools.wraps(run)
        def run_backward(*args: Any, **options: Any) -> Any:
            is_inside = torch._C._current_graph_task_id() != -1
            result = run(*args, **options)
            if not is_inside and not self._has_optimizer and not self._in_fork() and not self._finished:
                self._backward_ended()
            return result

        engine._engine_run_backward = run_backward

    def _backward_ended(self) -> None:
        if self._searches:
            from modscope._torch.global_hooks import list_optimized

            self._searches -= 1
            self._has_optimizer = bool(list_optimized())
        if not self._has_optimizer:
            self._optimizer_step_ended()
            self._count_step(None)

    def _count_step(self, optimizer: object) -> None:
        self._steps += 1
        self._step_ended()
        if self._is_enough():
            self._stop(optimizer)

    def _stop(self, optimizer: object) -> NoReturn:
        import threading

        from modscope import _native

        self._stopped = True
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        _native.end_running_step(optimizer)  # from Python 3.12 on it would end after its hooks, of which this is one
        self._leave()  # SystemExit would end only this thread, and other threads may wait for it

    def _leave(self) -> NoReturn:
        self._stopped = True
        flush()
        os._exit(0)

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._uncaught_error = error
        if not self._in_fork():
            with contextlib.suppress(Exception):
                from modscope._torch import oom_report

                oom_report.add_note(error)
                if self._original_excepthook is sys.__excepthook__ and sys.stderr is sys.__stderr__:
                    with oom_report.without_note(error):  # the report is on stderr already
                        self._original_excepthook(kind, error, trace)
                        return
        self._original_excepthook(kind, error, trace)

    # ---- other processes ----

    def _in_fork(self) -> bool:
        """Whether this is a forked child that is not recorded (yet)."""
        return os.getpid() != self._pid

    def _follows_forks(self) -> bool:
        return bool(self._settings.children) or self._is_fork_server

    def _follow(self) -> bool:
        """Record this forked child to a capture of its own. False if it is not to be recorded, or if its
        file cannot be created."""
        if not self._follows_forks():
            return False
        self._pid, self._is_child = os.getpid(), True
        self._recording, self._steps, self._stopped, self._finished = None, 0, False, False
        self._finishing = _thread.RLock()  # a thread that the child does not have may hold the other one
        return self._create_file()

    def _create_file(self) -> bool:
        """The capture of a process that the script started, or of a followed child. False if it cannot be created."""
        self._file, self._shown = None, ""
        try:
            if self._settings.is_started:
                new = self._settings.new_started_file()
                if new:
                    self._shown, self._file = new
            else:
                root, suffix = self._settings.children
                self._shown = capture_file.Name(root, suffix).numbered()
                self._file = capture_file.prepare(self._shown, False)
        except OSError as error:
            self._finished = True
            self._list_this(error=_text(error))
            return False
        return True

    def _leave_workers_alone(self) -> None:
        """A worker of a DataLoader is no rank, and has no capture. A process of multiprocessing learns what it is to do
        only after its imports, torch included. One of a fork server then calls the functions that are registered here;
        a spawned one calls none, so that it is asked again at its end."""
        if not self._settings.is_started:
            return
        self._stop_if_worker()
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None and not self._finished:
            util.register_after_fork(self, RunRecording._stop_if_worker)

    def _stop_if_worker(self) -> None:
        if self._recording is None or self._finished or self._in_fork() or not child_processes.is_loader_worker():
            return
        self._finished = True
        with contextlib.suppress(Exception):
            self._recording.stop("stopped")
        self._drop()

    def _list_this(self, **more: Any) -> None:
        """Tell the script's process about the capture of this one."""
        if self._list and self._is_child:
            self._list.add(
                child_processes.StartedProcess(self._pid, self._shown, self._file.path if self._file else "", **more)
            )

    def _drop(self) -> None:
        """Remove the capture, which has nothing to tell."""
        if self._file:
            self._file.remove()
        self._list_this(dropped=True)

    # ---- the end ----

    def _exit(self, status: int) -> NoReturn:
        how = {"how": "stopped", "by": self._stopped_by()} if self._stopped else {"how": "finished"}
        self._finish(**how, status=str(status))
        self._original_exit(self._status or status)

    def _stopped_by(self) -> str:
        """The option that stopped the script."""
        return f"--steps {self._options.steps}"

    def _at_exit(self) -> None:
        if self._in_fork():
            return
        flush()
        error = self._uncaught_error if sys.excepthook == self._excepthook else getattr(sys, "last_value", None)
        if self._stopped:
            self._finish("stopped", status="0", by=self._stopped_by())
        elif error is None:
            self._finish("finished", **self._exit_status())
        else:
            how = "interrupted" if isinstance(error, KeyboardInterrupt) else "exception"
            self._finish(how, error=_describe(error))
        if self._recording is not None:
            from modscope import _native

            _native.restore()
        if self._status:
            flush()
            self._original_exit(self._status)  # an exit function cannot change the status otherwise

    def _exit_status(self) -> dict[str, str]:
        """The status, if the script ended by SystemExit."""
        if self._recording is None:
            return {}
        from modscope import _native

        status = _native.take_exit_status()
        return {} if status is None else {"status": str(status)}

    def _finish(self, how: str, **end: str) -> None:
        if self._in_fork():
            return
        with self._finishing:
            self._finish_once(how, end)

    def _finish_once(self, how: str, end: dict[str, str]) -> None:
        if self._settings.is_started:
            self._stop_if_worker()
        if self._finished:
            return
        self._finished, self._end = True, {"ended": how, **end}
        try:
            if self._plan is not None:
                self._plan.end()
            if self._recording is None:
                self._discard()
                what = (
                    "imported torch in a way that modscope did not notice"
                    if "torch" in sys.modules
                    else "did not import torch"
                )
                self._end_without_capture(what)
            else:
                self._end_recording(self._recording, how, end)
        except BaseException as error:  # also KeyboardInterrupt: the script has ended already
            self._print(f"the capture could not be completed: {_describe(error)}")

    def _end_recording(self, recording: Recording, how: str, end: dict[str, str]) -> None:
        from modscope._record.last_line import describe_peak

        outcome = recording.stop(how, **end)
        if outcome.bytes == 0:
            self._discard()
        elif not (outcome.peaks or outcome.lost or outcome.error or recording.stopped_early):
            self._drop()
            self._end_without_capture("allocated no PyTorch memory")
            return
        loss = capture_file.describe_loss(self._file.path, self._created) if self._file and self._created else None
        self._list_this(peak=describe_peak(outcome.peaks))
        self._tell(outcome, loss, how, end)

    def _tell(self, outcome: RecordingResult, loss: str | None, how: str, end: dict[str, str]) -> None:
        from modscope._record.last_line import figures_of, last_line

        path = self._file.path if self._file and not loss else None
        self._write_figures(figures_of(path, outcome, self._end, self._started_processes()))
        if not self._options.quiet or outcome.lost or outcome.error or loss:
            never = self._options.steps and not self._steps and how == "finished"
            why = (
                "--steps did not stop the script, which took no optimizer step or only compiled ones; " if never else ""
            )
            self._print(why + last_line(self._shown, outcome, how, loss, self._started_processes()))

    def _end_without_capture(self, what: str) -> None:
        """``what`` the program did, so that there is nothing to record in its own process."""
        from modscope._record.last_line import figures_of, last_line_of_launcher

        others = self._started_processes()
        if not self._settings.prediction:  # which has nothing to say of such a program
            self._write_figures(figures_of(None, None, self._end, others))
        if others and self._options.quiet and not any(other.error for other in others):
            return
        self._print(last_line_of_launcher(self._options.program, what, others, bool(self._pass_on.started)))

    def _started_processes(self) -> list[child_processes.StartedProcess]:
        if self._is_child or self._list is None:
            return []
        return [other for other in self._list.read() if other.exists or other.error]

    def _write_figures(self, figures: Mapping[str, Any]) -> None:
        if not self._options.json or self._is_child:
            return
        from modscope._show.output_file import document_of, write_document

        command = "predict" if self._settings.prediction else "run"
        try:
            write_document(document_of(command, figures), self._options.json)
        except BrokenPipeError:
            pass  # whoever read them has gone
        except OSError as error:
            self._print(f"the figures could not be written: {error.strerror or error}")

    def _discard(self) -> None:
        if self._file:
            self._file.discard()

    def _can_print(self) -> bool:
        return not self._is_child and sys.__stderr__ is not None and not sys.__stderr__.closed

    def _print(self, *sentences: str) -> None:
        if not self._can_print() or not sentences:
            return
        from modscope._show.terminal import Screen, as_lines

        lines = "".join(f"{line}\n" for line in as_lines(sentences, Screen.of(sys.__stderr__)))
        with contextlib.suppress(OSError):
            os.write(2, lines.encode(errors="backslashreplace"))


def flush() -> None:
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
