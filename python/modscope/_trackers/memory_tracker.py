"""``MemoryTracker``: how much memory was in use after each operator, and in which module it ran."""

from __future__ import annotations

import heapq
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode, _get_current_dispatch_mode_stack

import torch
from modscope import _native
from modscope._torch.devices import number_device
from modscope._torch.dispatch import LogMode, active_fake_mode, is_fake
from modscope._trackers import traces
from modscope._trackers.mem_tracker import MemTracker, on_other_source
from modscope._trackers.module_tracker import ModTracker

__all__ = ["MemoryTracker"]

_FIGURES = ("allocated_bytes", "active_bytes", "reserved_bytes")
_RULE = "-" * 48


class _OperatorMode(LogMode):
    """The mode of a MemoryTracker. It knows its thread, from whose stack alone it can be removed."""

    def __init__(self, log: _native.OperatorLog) -> None:
        super().__init__(log)
        self.thread = threading.get_ident()


class _Monitoring(_native.Context):
    """What is active between ``start_monitor`` and ``stop``, and what it has recorded."""

    _not_entered = "MemoryTracker: monitoring has ended already."
    _entering_lock = None

    def __init__(self, root: torch.nn.Module, device: torch.device, uses_ledger: bool) -> None:
        stats = None if uses_ledger else _statistics_of(device)
        self.device = device
        self.stats = traces.Stats()
        self._root = weakref.ref(root)
        self._memory = MemTracker(stacks=0) if stats is None else None
        self._tracker = ModTracker()
        self.log = _native.OperatorLog(
            root=root,
            name_in=_name_inside(root),
            stats=stats,
            device=number_device(device) if stats is None else device,
            ignored=torch.ops.aten.detach.default,
        )
        self._mode: _OperatorMode | None = None
        self._memory_entered = self._tracker_entered = False

    def _begin(self) -> None:
        root = self._root()
        if self._memory is not None and root is not None:
            self._memory.track_external(root)
            self._memory.__enter__()
            self._memory_entered = True
            on_other_source(self._memory, self._leave_memory)
        self._tracker.register_user_hooks(self.log.call_begins, self.log.call_ends)
        self._tracker.__enter__()
        self._tracker_entered = True
        self.stats.allocated_at_start = self.log.figures()[0]
        _pop_unused_modes()
        self._mode = _OperatorMode(self.log)
        self._mode.__enter__()
        _active.append(self)
        self.log.recording = True

    def _end(self, *exception: object) -> None:
        self.log.recording = False

    def _leave(self) -> None:
        """Undo everything that entering did. May be called again."""
        self.log.recording = False
        if self in _active:
            _active.remove(self)
        if self._mode is not None:
            _remove_mode(self._mode)
            self._mode = None
        if self._tracker_entered:
            self._tracker_entered = False
            self._tracker.__exit__()
        self._leave_memory()

    def _leave_memory(self) -> None:
        if self._memory_entered and self._memory is not None:
            self._memory_entered = False
            self._memory.__exit__()
            self._memory = None  # its ledger is not needed any more

    def is_active(self) -> bool:
        return self._entered > 0

    def read(self) -> traces.Stats:
        """The statistics that were recorded so far."""
        stats = self.stats
        stats.op_index = self.log.read(
            stats.op_index, stats.memories_allocated, stats.memories_active, stats.memories_reserved
        )
        stats.markers = self.log.markers
        return stats

    def has_mode(self, mode: object) -> bool:
        return self._mode is mode

    def use_mode(self, mode: _OperatorMode) -> None:
        self._mode = mode
        mode.use(self.log)


_active: list[_Monitoring] = []


def _user_of(mode: object) -> _Monitoring | None:
    return next((monitoring for monitoring in _active if monitoring.has_mode(mode)), None)


def _pop_unused_modes() -> None:
    while isinstance(top := _get_current_dispatch_mode(), _OperatorMode) and _user_of(top) is None:
        top.__exit__(None, None, None)


def _remove_mode(mode: _OperatorMode) -> None:
    """Remove a mode that is not used any more from this thread's stack. If the top is another mode of this class, that
    one is removed, and who used it uses this one. Under another class's mode, or in another thread, a mode cannot be
    removed: it stays, does nothing, and is removed when monitoring begins or ends next time."""
    if threading.get_ident() == mode.thread and any(mode is other for other in _get_current_dispatch_mode_stack()):
        user = _user_of(_get_current_dispatch_mode())
        if user is not None:
            user.use_mode(mode)
    _pop_unused_modes()


# ---- what is measured ----


def _name_inside(root: torch.nn.Module) -> Callable[[torch.nn.Module | None, str], str]:
    """A function that gives a module's name as ``root.named_modules()`` has it, and the fqn of one that is not
    inside."""
    names = {id(module): (weakref.ref(module), name) for name, module in root.named_modules()}
    held = weakref.ref(root)

    def search(module: torch.nn.Module | None) -> str | None:
        now = held()
        return None if now is None else next((name for name, other in now.named_modules() if other is module), None)

    def name_in(module: torch.nn.Module | None, fqn: str) -> str:
        ref, name = names.get(id(module), (lambda: None, ""))
        found = name if module is not None and ref() is module else search(module)  # it may have been added since
        return fqn if found is None else found

    return name_in


def _device_of(root: torch.nn.Module) -> torch.device:
    """The device of the module's parameters and buffers: the accelerator, if one has some of them."""
    found = [tensor.device for tensor in (*root.parameters(), *root.buffers()) if tensor.device.type != "meta"]
    accelerators = [device for device in found if device.type != "cpu"]
    if accelerators or found:
        return (accelerators or found)[0]
    # is_available() would initialize the driver, and no forked child could use it then.
    return torch.device("cuda" if torch.cuda.is_initialized() else "cpu")


def _is_counted_by_ledger(root: torch.nn.Module, device: torch.device) -> bool:
    """Memory for which no allocator has statistics: the CPU's, and that of fake tensors."""
    fake = active_fake_mode() is not None or any(map(is_fake, (*root.parameters(), *root.buffers())))
    return device.type in ("cpu", "meta") or fake


def _statistics_of(device: torch.device) -> Callable[[torch.device], Any] | None:
    """A function that reads the statistics of the device's allocator; None if it has no such function."""
    module = torch.get_device_module(device.type)
    nested = getattr(module, "memory_stats_as_nested_dict", None)
    flat = getattr(module, "memory_stats", None)
    if nested is not None or flat is None:
        return nested

    def nest(device: torch.device) -> dict[str, Any]:
        stats = flat(device)
        return {name: {"all": {"current": stats.get(f"{name}.all.current", 0)}} for name in _FIGURES}

    return nest


def _retries_of(device: torch.device) -> int:
    stats = getattr(torch.get_device_module(device.type), "memory_stats", None)
    return int(stats(device).get("num_alloc_retries", 0)) if stats is not None else 0


# ---- the tracker ----


class MemoryTracker:
    """Records how much memory was in use after each operator, and in which module the operator ran.

    A drop-in for ``torch.distributed._tools.memory_tracker.MemoryTracker``::

        tracker = MemoryTracker()
        tracker.start_monitor(net)
        net(input).sum().backward()
        tracker.stop()
        tracker.summary()
        tracker.show_traces()

    An operator is called ``MODULE.forward.OPERATOR_N`` or ``MODULE.backward.OPERATOR_N``: MODULE as in
    ``root.named_modules()``, N counts the operators of this name. ``device`` is the device whose memory is read, by
    default that of the root module's parameters.
    """

    def __init__(self, device: torch.device | str | int | None = None) -> None:
        self._asked = None if device is None else torch.device(device)
        self._monitoring: _Monitoring | None = None  # the latest one, also after its end
        self._stats = traces.Stats()  # what was loaded, if there was no monitoring since
        self._num_alloc_retries = 0

    def __repr__(self) -> str:
        return (
            f"<MemoryTracker, {'' if self._is_monitoring() else 'not '}monitoring, {self._op_index} operators recorded>"
        )

    def _is_monitoring(self) -> bool:
        return self._monitoring is not None and self._monitoring.is_active()

    # ---- recording ----

    def start_monitor(self, root_module: torch.nn.Module) -> None:
        """Record from now on, in this thread and in autograd's threads that work for it. What was recorded before is
        forgotten. AssertionError if this tracker is monitoring already."""
        if not isinstance(root_module, torch.nn.Module):
            raise TypeError(f"start_monitor takes the root module, an nn.Module, not {type(root_module).__name__}")
        if self._is_monitoring():
            raise AssertionError("this MemoryTracker is monitoring already: call stop() first")
        device = self._asked or _device_of(root_module)
        if str(device) == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        before = self._monitoring
        # It is assigned first: what a signal handler raises after __enter__ must not lose an active one.
        self._monitoring = monitoring = _Monitoring(root_module, device, _is_counted_by_ledger(root_module, device))
        try:
            monitoring.__enter__()
        except BaseException:
            if not monitoring.is_active():
                self._monitoring = before
            raise
        self._num_alloc_retries = 0

    def stop(self) -> None:
        """End the recording. AssertionError if this tracker is not monitoring."""
        monitoring = self._monitoring
        if monitoring is None or not monitoring.is_active():
            raise AssertionError("this MemoryTracker is not monitoring: call start_monitor(root_module) first")
        monitoring.__exit__()
        self._num_alloc_retries = _retries_of(monitoring.device)

    # ---- figures ----

    def _read(self) -> traces.Stats:
        """What was recorded so far, or loaded."""
        stats = self._monitoring.read() if self._monitoring is not None else self._stats
        stats.num_alloc_retries = self._num_alloc_retries
        return stats

    @property
    def memories_allocated(self) -> dict[int, tuple[str, float]]:
        """The name of each operator, by number, and the MiB that tensors and workspaces took after it."""
        return self._read().memories_allocated

    @property
    def memories_active(self) -> dict[int, tuple[str, float]]:
        """``memories_allocated`` with the memory that was freed but is still used by a stream."""
        return self._read().memories_active

    @property
    def memories_reserved(self) -> dict[int, tuple[str, float]]:
        """``memories_active`` with the memory that the allocator keeps for later. On the CPU all three are equal."""
        return self._read().memories_reserved

    @property
    def lost(self) -> int:
        """How many operators could not be recorded because memory ran out."""
        return self._monitoring.log.lost if self._monitoring is not None else 0

    # ---- torch's private names, for the programs that read them ----

    @property
    def _markers(self) -> dict[str, int]:
        return defaultdict(int, self._read().markers)

    @property
    def _op_index(self) -> int:
        return self._read().op_index

    @_op_index.setter
    def _op_index(self, count: int) -> None:
        self._read().op_index = count  # for a tracker whose rows are filled by hand

    @property
    def _operator_names(self) -> dict[str, int]:
        monitoring = self._monitoring
        return defaultdict(int, self._stats.operator_counts() if monitoring is None else monitoring.log.counts())

    @property
    def _cur_module_name(self) -> str:
        """Where this thread is; after the recording, where the last operator ran."""
        monitoring = self._monitoring
        if monitoring is not None and monitoring.is_active():
            return monitoring.log.position()
        return self._read().last_position()

    @property
    def _hooks(self) -> list[object]:
        """A list that is not empty while monitoring, as in torch's tracker. There are no hooks on modules."""
        return [self._monitoring] if self._is_monitoring() else []

    # ---- files ----

    def save_stats(self, path: str | os.PathLike[str]) -> None:
        """Write what was recorded to a file, which ``load`` of this class and of torch's reads."""
        traces.write(path, self._read())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a file that ``save_stats`` of this class or of torch's wrote. Only plain data is read from it:
        ValueError for any other file. AssertionError while this tracker is monitoring."""
        if self._is_monitoring():
            raise AssertionError("this MemoryTracker is monitoring: call stop() before load()")
        stats = traces.read(path)
        self._monitoring, self._stats, self._num_alloc_retries = None, stats, stats.num_alloc_retries

    # ---- text and pictures ----

    def summary(self, top: int = 20) -> None:
        """Print the ``top`` operators after which most memory was allocated, compared with the operator before."""
        if isinstance(top, bool) or not isinstance(top, int):
            raise TypeError(f"top must be an int, not {type(top).__name__}")
        if top < 0:
            raise ValueError(f"top must be 0 or more, not {top}")
        print(_RULE)
        print(f"The number of alloc retries are: {self._num_alloc_retries}")
        if self.lost:
            print(f"{self.lost} operators could not be recorded because memory ran out.")
        print(f"Top {top} ops that generates memory are:")
        for name, growth in heapq.nlargest(top, self._read().growth(), key=lambda row: row[1]):
            print(f"{name}: {growth}MB")
        print(_RULE)

    def show_traces(self, path: str | os.PathLike[str] = "") -> None:
        """Draw the figures over the operators: with matplotlib, as figures that ``plt.show()`` or a notebook shows;
        without it, as a file whose name is printed. With a ``path``, that file is loaded first."""
        if os.fspath(path) != "":
            self.load(path)
        traces.draw(self._read())
