"""``record``: write the events of a ``MemTracker`` to a capture file while the program runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from modscope import _native
from modscope._read import cells
from modscope._read.types import Peak
from modscope._record import capture_file
from modscope._record.rank_identity import describe_in_environment, describe_in_torch
from modscope._torch import collectives, lines, oom_report
from modscope._trackers import mem_tracker
from modscope._virtual.device.environment import allocator_settings

__all__ = ["record"]


# From 3.12 on Python warns of a fork in a process with several threads. Ours must not be the one that makes them
# several.
os.register_at_fork(before=_native.pause_captures, after_in_parent=_native.resume_captures)


class RecordingResult(NamedTuple):
    """The figures of a recording that has ended."""

    bytes: int
    events: int
    lost: int
    """How many events the writer had no room for. If not 0, every figure read from the file is a lower bound."""
    error: str | None
    """Why the file could not be written completely; None if it was."""
    peaks: dict[str, Peak]
    """The peak of each device."""
    out_of_memory: int
    """How many allocations failed during the recording."""
    inputs: str = ""
    """How the inputs of the step whose allocation failed compare with those before; "" if they do not differ."""


def default_info(program: str, arguments: list[str]) -> dict[str, str]:
    """What a capture says about its run."""
    return {
        "program": program,
        "arguments": "\n".join(arguments),
        "pid": str(os.getpid()),
        **describe_in_environment(),
        "began": f"{time.time():.3f}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "modscope": _native.version,
        "allocator": allocator_settings() or "",
    }


def _gpu_facts() -> dict[str, str]:
    """What the GPU is, for the capture's end; empty: the program used none."""
    if not torch.cuda.is_initialized():
        return {}
    # the GPU has failed, or torch does not tell it
    with contextlib.suppress(RuntimeError, AssertionError, AttributeError):
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "gpu_title": str(gpu.name),
            "gpu_memory": str(gpu.total_memory),
            "gpu_capability": f"{gpu.major}.{gpu.minor}",
            "gpu_processors": str(gpu.multi_processor_count),
            "gpu_threads": str(gpu.max_threads_per_multi_processor),
            "retries": str(torch.cuda.memory_stats().get("num_alloc_retries", 0)),
        }
    return {}


def _memory_limit() -> dict[str, str]:
    """The fraction of the GPU's memory that torch.cuda.set_per_process_memory_fraction left to the program, for the
    capture's end; empty: there is no limit, or this version of torch does not tell it."""
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    if read is None or not torch.cuda.is_initialized():
        return {}
    with contextlib.suppress(RuntimeError):  # the GPU has failed
        fraction = float(read())
        return {"memory_fraction": repr(fraction)} if fraction < 1 else {}
    return {}


def _find_root_modules() -> list[torch.nn.Module]:
    """All living modules that are not an attribute of another module."""
    modules = _native.living_instances(torch.nn.Module)
    children = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return [module for module in modules if id(module) not in children]


def _encodable(pairs: dict[str, str]) -> dict[str, str]:
    """Replace what cannot be encoded as UTF-8."""
    return {key: value.encode("utf-8", "replace").decode() for key, value in pairs.items()}


def _sum_of_unowned(ledger: _native.Ledger) -> tuple[int, int]:
    """The bytes that have no owner, and all bytes."""
    rows = ledger.modules()
    return sum(sum(sums) for _, fqn, sums in rows if fqn == "Global"), sum(sum(sums) for _, _, sums in rows)


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()  # the recordings that have begun, and not ended


def name_uncalled_modules() -> None:
    """Make modules known to the recordings that are neither called nor built by their classes, as a copy of a model.
    C calls this now and then, because the copy may be gone when the recording ends."""
    for recording in list(_recordings):
        recording.note_rank()
        recording.name_uncalled_modules(at_end=False)


class Recording:
    """Counts memory from ``start`` to ``stop``, and writes the events to the file ``fd``, if there is one.

    ``owners_of_uncalled``: look for modules that were never called, if much of the memory has no owner.
    ``yields``: stop when the program enters a MemTracker with another source, instead of having it fail.
    ``stacks``: how many of the program's own frames are kept for each block.
    """

    def __init__(
        self,
        fd: int | None,
        info: dict[str, str] | None = None,
        source: str = "auto",
        owners_of_uncalled: bool = True,
        yields: bool = True,
        stacks: int = lines.DEFAULT,
    ) -> None:
        self._fd = fd
        self._info = info or {}
        self._owners_of_uncalled = owners_of_uncalled
        self._tracker = mem_tracker.MemTracker(source, stacks)
        mem_tracker.without_modules(self._tracker)
        if yields:
            mem_tracker.on_other_source(self._tracker, self._stop_for_other_source)
        self._capture: _native.CaptureWriter | None = None
        self._outcome: RecordingResult | None = None
        self.stopped_early = False
        """The program entered a MemTracker with another source."""
        self._failures_before = 0
        self._rank: dict[str, str] = {}  # as torch.distributed knows it, where the environment did not say so
        self._unowned_before = 0  # bytes without an owner when uncalled modules were last looked for

    def start(self, path: str = "", publish: Callable[[], None] | None = None) -> None:
        """Begin to count and to write. ``publish`` is called when the file has its first bytes. OSError says in a
        sentence that the file, whose name is ``path``, takes none."""
        self._failures_before = _native.out_of_memory()[0]
        if self._fd is not None:
            collectives.prepare()
        self._tracker.__enter__()
        ledger = mem_tracker.ledger_of(self._tracker)
        assert ledger is not None
        try:
            ledger.seek()
            if self._fd is not None:
                info = _encodable({"source": self._tracker.source, **self._info})
                try:
                    self._capture = _native.CaptureWriter(ledger, self._fd, info)
                except OSError as error:
                    raise capture_file.unwritable(path, error) from None
            if publish is not None:
                publish()
            _recordings.add(self)
        except BaseException:
            self._end_capture({"how": "stopped"})
            self._tracker.__exit__()
            raise

    def watch_sigterm(self, before: str, after: str) -> None:
        """Complete the file also when SIGTERM ends the program, and print ``before``, the file's size and ``after``."""
        if self._capture is not None:
            self._capture.watch_sigterm(*_encodable({before: after}).popitem())

    def _stop_for_other_source(self) -> None:
        self.stopped_early = True
        self.stop("stopped", error="the program entered a MemTracker with another source")

    @property
    def peak(self) -> dict[torch.device, Peak]:
        """The most bytes that each device held, and when."""
        return self._tracker.peak

    def stop(self, how: str = "finished", **end: str) -> RecordingResult:
        """Stop counting and complete the file. Returns the same outcome when it is called again."""
        if self._outcome is not None:
            return self._outcome
        figures: tuple[int, int, int, str | None] = (0, 0, 0, None)
        inputs = ""
        try:
            _recordings.discard(self)
            self.note_rank()
            if _native.out_of_memory()[0] > self._failures_before:
                inputs = oom_report.compared_inputs()
                said = {"requested_by": oom_report.requested_by(), "inputs": inputs}
                end |= {key: line for key, line in said.items() if line}
            end |= (
                self._rank
                | self._find_owners()
                | _memory_limit()
                | _gpu_facts()
                | cells.describe(_native.stack_files())
            )
        finally:  # also after an interrupt
            try:
                figures = self._end_capture({"how": how, **end})
            finally:
                if mem_tracker.is_active(self._tracker):
                    self._tracker.__exit__()
        peaks = {str(device): peak for device, peak in self._tracker.peak.items()}
        self._outcome = RecordingResult(*figures, peaks, _native.out_of_memory()[0] - self._failures_before, inputs)
        return self._outcome

    def note_rank(self) -> None:
        """Ask torch.distributed for the rank, now and then: a program may destroy its process group before it ends."""
        found = describe_in_torch()
        if found and found != self._rank and any(self._info.get(key) != value for key, value in found.items()):
            self._rank = found
            if self._capture is not None:
                self._capture.tell_rank(found["rank"], found["world"])

    def name_uncalled_modules(self, at_end: bool) -> None:
        """Make modules known that were not called, if a twentieth of the memory has no owner; while the program runs,
        if so much has come since the latest search. Finding all modules is slow in a large program."""
        ledger = mem_tracker.ledger_of(self._tracker)
        if ledger is None or not self._owners_of_uncalled:
            return
        unowned, total = _sum_of_unowned(ledger)
        self._unowned_before = min(self._unowned_before, unowned)  # what was found is owned now
        if (unowned if at_end else unowned - self._unowned_before) * 20 <= total:
            return
        self._unowned_before = unowned
        for module in _find_root_modules():
            if ledger.held([*module.parameters(), *module.buffers()]):  # allocated during the recording
                mem_tracker.name_module(self._tracker, module)

    def _find_owners(self) -> dict[str, str]:
        """Claim what modules hold, also those that were never called. Returns the error, if there is one."""
        try:
            self.name_uncalled_modules(at_end=True)
            mem_tracker.refresh(self._tracker)
        except Exception as error:
            return {"error": f"modscope: {type(error).__name__}: {oom_report.text_of(error)}"}
        return {}

    def _end_capture(self, end: dict[str, str]) -> tuple[int, int, int, str | None]:
        if self._capture is None:
            return (0, 0, 0, None)
        events, lost, size, error = self._capture.end(_encodable(end))
        return (size, events, lost, error)


class record(contextlib.ContextDecorator, _native.Context):
    """Write a capture file: which module owns each byte of memory, from here to the end::

        with modscope.record("step.msc"):
            train_step(x)

        @modscope.record("step.msc")    # each call: step.msc, then step.2.msc, ...
        def train_step(x): ...

    Read the file with ``modscope.load`` or ``modscope summary step.msc``. If the file exists, a FileExistsError is
    raised, unless ``overwrite``. ``stacks`` is how many of the program's own Python frames are kept for each block (0:
    none). Recordings may be nested, in one another and in ``modscope run``."""

    _not_entered = "this recording has not begun. Enter it first, with a with statement."
    _entering_lock = None

    def __init__(
        self, path: str | os.PathLike[str], overwrite: bool = False, source: str = "auto", stacks: int = lines.DEFAULT
    ) -> None:
        self.path = os.fspath(path)
        if not isinstance(self.path, str) or not self.path:
            raise TypeError("record needs the name of a file, such as record('run.msc')")
        self._overwrite = overwrite
        self._source = source
        self._stacks = lines.checked(stacks)
        self._calls = itertools.count(1)
        self._recording: Recording | None = None
        self.outcome: RecordingResult | None = None
        """The figures of the recording, after its end."""

    def _recreate_cm(self) -> record:
        """Each call of a decorated function writes its own capture."""
        number = next(self._calls)  # atomic: a lock could be held by another thread during a fork
        root, suffix = os.path.splitext(self.path)
        path = self.path if number == 1 else f"{root}.{number}{suffix}"
        return record(path, self._overwrite, self._source, self._stacks)

    # ---- entering and leaving: __enter__ and __exit__ are _native.Context's, and call these methods ----

    def _begin_again(self) -> None:
        raise RuntimeError(f"this recording to {self.path} has begun already. Use another record(...).")

    def _begin(self) -> None:
        file = capture_file.prepare(self.path, self._overwrite)
        try:
            program = getattr(sys.modules.get("__main__"), "__file__", None) or "python"
            # The program itself asked for this recording: another source is its mistake, and must not end it silently.
            recording = Recording(
                file.fd, default_info(program, sys.argv[1:]), self._source, yields=False, stacks=self._stacks
            )
            recording.start(self.path, file.publish)
        except BaseException:
            file.discard()
            raise
        finally:
            os.close(file.fd)
        self._recording = recording

    def _end(self, kind: Any = None, error: BaseException | None = None, traceback: Any = None) -> None:
        recording = self._recording
        assert recording is not None
        if error is None:
            self.outcome = recording.stop()
        else:
            oom_report.add_note(error)
            self.outcome = recording.stop("exception", error=f"{type(error).__name__}: {oom_report.text_of(error)}")

    def _leave(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:  # if it has ended, this does nothing
            recording.stop("stopped")
