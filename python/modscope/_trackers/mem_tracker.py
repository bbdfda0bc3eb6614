"""``MemTracker``: which module and which category holds each byte.

The functions at the end of the file are for the other modules of the package.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from modscope import _native
from modscope._read import text as _text
from modscope._read.categories import KINDS, Category, Raw, Sums, kinds_of, sums_of
from modscope._read.types import Peak
from modscope._torch import generated, interception, lines, oom_report
from modscope._torch.devices import devices, list_cuda_blocks, number_device
from modscope._torch.dispatch import DispatcherSource, active_fake_mode, is_fake
from modscope._trackers.module_tracker import NamingTracker
from modscope._trackers.snapshots import (
    LazyStats,
    ModuleSnapshot,
    ModuleStats,
    PeakHistory,
    RawModules,
    StatsByModule,
    StatsView,
    SumsByDevice,
    by_module,
    snapshot_of,
    snapshot_text,
    states_text,
)
from modscope._trackers.trackable import GivenTensor, find_trackable

__all__ = ["MemTracker"]

_SOURCES = ("auto", "allocator", "dispatcher")


class _LastFigures(NamedTuple):
    """The figures of a tracker at its exit, where other trackers went on counting with the same ledger."""

    now: list[Raw]
    outside: list[Raw]
    modules: RawModules
    stats: StatsByModule
    lost: int
    kinds: list[Raw]
    module_kinds: RawModules


class _Shared:
    """What all active trackers share: one ledger with one source."""

    ledger: _native.Ledger | None = None
    dispatcher = False
    trackers: list[MemTracker] = []


_lock = threading.RLock()  # guards _Shared and every tracker's entering, leaving and claiming


def _renew_lock() -> None:
    """Make a new lock in a forked child: a thread that the child does not have may have held the old one."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _keep_stacks() -> None:
    """Keep as many frames as the active trackers want, and watch what is compiled."""
    lines.keep(max((tracker._stacks for tracker in _Shared.trackers), default=0))
    generated.watch(bool(_Shared.trackers) and not _Shared.dispatcher)


def _keep_call_snapshots() -> None:
    """Keep snapshots of calls if one of the active trackers wants them."""
    if _Shared.ledger is not None and _Shared.trackers:
        _Shared.ledger.keep_call_snapshots(any(tracker._wants_modules for tracker in _Shared.trackers))


def _source_name(dispatcher: bool) -> str:
    return "dispatcher" if dispatcher else "allocator"


def _check_type(type: str) -> None:
    if type not in ("current", "peak"):
        raise ValueError(f"Invalid type {type!r}: use 'current' or 'peak'")


class MemTracker(_native.Context):
    """Attributes each byte of memory to a module and a category, now and at the peak.

    A context manager, and a drop-in for ``torch.distributed._tools.mem_tracker.MemTracker``::

        mt = MemTracker()
        mt.track_external(model, optimizer, batch)
        with mt:
            for x in loader:
                step(x)
        mt.display_snapshot("peak", units="MiB", tabulate=True)
        mt.display_modulewise_snapshots(depth=3, units="MiB")

    ``source`` is where block events come from: ``"allocator"`` (torch's own allocators, exact), ``"dispatcher"``
    (the storages of tensors that operators return: for fake tensors and other platforms), or ``"auto"``: the
    dispatcher under a ``FakeTensorMode`` or for fake tensors, else the allocator where it can be intercepted.

    ``stacks`` is how many of the program's own Python frames are kept for each block, 0 to 64: with 1, each block knows
    the line that made it. Of several active trackers the greatest number counts.
    """

    _not_entered = "this tracker is not active. Enter it first, with a with statement."

    def __init__(self, source: str = "auto", stacks: int = lines.DEFAULT) -> None:
        if not isinstance(source, str):
            raise TypeError(f"source must be a str, not {type(source).__name__}")
        if source not in _SOURCES:
            raise ValueError(f"source must be one of {', '.join(map(repr, _SOURCES))}, not {source!r}")
        self._asked = source
        self._stacks = lines.checked(stacks)
        self._chosen: str | None = None
        self._tracker = NamingTracker()
        self._tracker_entered = False
        self._ledger: _native.Ledger | None = None
        self._peak_history = PeakHistory()
        self._last: _LastFigures | None = None
        self._tensors: dict[int, GivenTensor] = {}  # by GivenTensor.key
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}  # given, by id
        self._inputs: dict[int, GivenTensor] = {}  # given as inputs, by GivenTensor.key
        self._fake_given = False
        self._wants_modules = True  # else only the figures of devices are kept
        self._stats_since = 0  # calls before this ledger time are not in the stats
        self._stats_cache: tuple[int, StatsByModule] | None = None  # the ledger time, and the stats then
        self._dispatcher: DispatcherSource | None = None
        self._leave_for_other_source: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "active" if self._entered else "not active"
        peaks = {device: figures.peak.bytes for device, figures in self._peak_history.by_device().items()}
        held = ", ".join(f"{_text.size_in(most, 'MiB')} on {device}" for device, most in peaks.items() if most)
        return f"<MemTracker, {state}, source {self.source!r}, peak {held or 'none'}>"

    def _repr_html_(self) -> str:
        from modscope._show import notebook

        return notebook.of_tracker(self, active=self._entered > 0)

    # ---- what to count ----

    @property
    def source(self) -> str:
        """Where blocks are seen: "allocator" or "dispatcher". Before the tracker is first entered, it is the
        constructor's argument."""
        return self._chosen or self._asked

    def track_external(self, *external: Any) -> None:
        """Count what these modules, optimizers and tensors hold, though they were created before the tracker was
        entered. Containers of them (a state dict) and None are accepted too; what else is in a container is ignored.
        TypeError for an object with nothing in it that can be tracked.

        Parameters, buffers, gradients and optimizer state have their own categories; other tensors are ``Other``.
        """
        for leaf in find_trackable(external):
            if isinstance(leaf, torch.nn.Module):
                self._tracker.name_module(leaf)
                self._note_fake([*leaf.parameters(), *leaf.buffers()])
            elif isinstance(leaf, torch.optim.Optimizer):
                self._optimizers[id(leaf)] = weakref.ref(leaf)
            else:
                given = GivenTensor(leaf)
                self._tensors[given.key] = given
                self._note_fake([leaf])
        with _lock:
            self._claim()

    def _add_inputs(self, tensors: list[torch.Tensor]) -> None:
        self._inputs.update({given.key: given for given in map(GivenTensor, tensors)})
        self._note_fake(tensors)
        with _lock:
            self._claim()

    def _note_fake(self, tensors: list[torch.Tensor]) -> None:
        fake = [tensor for tensor in tensors if is_fake(tensor)]
        for tensor in fake:
            number_device(tensor.device)  # raises if autograd would abort
        self._fake_given |= bool(fake)

    # ---- entering and leaving: __enter__ and __exit__ are _native.Context's, and call these methods ----

    @property
    def _entering_lock(self) -> Any:
        return _lock

    def _choose_dispatcher(self) -> bool:
        """Whether the dispatcher is to be the source. RuntimeError if the source that was asked for cannot be used."""
        interception.prepare()
        why = interception.why_no_tensors()
        if why:
            raise RuntimeError(f"modscope cannot read the tensors of this torch ({why}). Update modscope.")
        why = interception.why_no_blocks()
        if self._asked == "allocator" and why:
            raise RuntimeError(
                f"torch's allocators cannot be intercepted here: {why}. Use MemTracker(source='dispatcher') or 'auto'. "
                "`python -m modscope doctor` says more."
            )
        if self._asked != "auto":
            return self._asked == "dispatcher"
        if _Shared.trackers and _Shared.dispatcher:
            return True
        return bool(why) or self._fake_given or active_fake_mode() is not None

    def _begin(self) -> None:
        dispatcher = self._choose_dispatcher()
        self._tracker.__enter__()
        self._tracker_entered = True
        joined = self._join(dispatcher)
        _keep_stacks()
        _keep_call_snapshots()
        self._claim()
        assert self._ledger is not None
        if self._peak_history.begin(self._ledger, by_module=self._wants_modules) and joined:
            self._stats_since = self._ledger.time()  # earlier calls belong to the trackers that were active then
        if not interception.nodes_verified():
            self._tracker.register_user_hooks(None, None, self._pre_backward, self._post_backward)
        if dispatcher:
            source = DispatcherSource()
            source.__enter__()
            self._dispatcher = source

    def _join(self, dispatcher: bool) -> bool:
        """Use the ledger of the active trackers, or begin a new one. Returns whether there was one."""
        if _Shared.trackers and _Shared.dispatcher != dispatcher:
            self._ask_others_to_leave()
        joined = bool(_Shared.trackers)
        if joined and _Shared.dispatcher != dispatcher:
            active = _source_name(_Shared.dispatcher)
            raise RuntimeError(
                f"A MemTracker with source {active!r} is active. Leave it first, or use MemTracker(source={active!r})."
            )
        name = _source_name(dispatcher)
        ledger = _Shared.ledger
        if not joined or ledger is None:
            own = self._ledger if self._last is None and self._chosen == name else None
            ledger = own or _native.Ledger()
            cuda_blocks = None if dispatcher else list_cuda_blocks()
            _Shared.ledger, _Shared.dispatcher = ledger, dispatcher  # set first, so that _leave ends the ledger
            ledger.begin(dispatcher, cuda_blocks)
        _Shared.trackers.append(self)
        if self._ledger is not ledger:
            self._peak_history.end()
            self._stats_since = 0
        self._ledger, self._last, self._chosen = ledger, None, name
        self._stats_cache = None
        return joined

    @staticmethod
    def _ask_others_to_leave() -> None:
        """Trackers of modscope's own leave, so that the program's tracker can have another source. If one of the
        active trackers is the program's, all stay."""
        leave = [tracker._leave_for_other_source for tracker in _Shared.trackers]
        for leave_one in leave if all(leave) else ():
            assert leave_one is not None
            leave_one()

    def _pre_backward(self, module: torch.nn.Module | None, grads: Any) -> None:
        if module is not None and self._ledger is not None:
            self._ledger.backward(self._tracker, module, True)

    def _post_backward(self, module: torch.nn.Module | None, grads: Any) -> None:
        if module is not None and self._ledger is not None:
            self._ledger.backward(self._tracker, module, False)

    def _end(self, *exception: object) -> None:
        if len(exception) > 1 and isinstance(exception[1], BaseException):
            oom_report.add_note(exception[1])
        self._claim()
        if len(_Shared.trackers) > 1:
            self._keep_figures()

    def _keep_figures(self) -> None:
        """The ledger goes on counting for other trackers: keep this tracker's figures as they are now."""
        ledger = self._ledger
        assert ledger is not None
        stats: StatsByModule = {key: (ref, stats().copy) for key, (ref, stats) in self._stats().items()}
        self._last = _LastFigures(
            ledger.now(),
            ledger.outside(),
            ledger.modules(),
            stats,
            ledger.lost(),
            ledger.kinds(),
            ledger.module_kinds(),
        )
        self._peak_history.end()

    def _leave(self) -> None:
        """Undo everything that entering did. May be called again."""
        if self._dispatcher is not None:
            self._dispatcher.leave()
            self._dispatcher = None
        if self in _Shared.trackers:
            _Shared.trackers.remove(self)
            _keep_stacks()
            _keep_call_snapshots()
        if not _Shared.trackers and _Shared.ledger is not None:
            _Shared.ledger.end()
            _Shared.ledger = None
        if not interception.nodes_verified():
            self._tracker.clear_user_hooks()
        if self._tracker_entered:
            self._tracker_entered = False
            self._tracker.__exit__()

    def _claim(self) -> None:
        """Claim the blocks that known objects hold now."""
        if self not in _Shared.trackers or self._ledger is None:
            return
        tensors: list[torch.Tensor] = []
        optimizers: list[torch.optim.Optimizer] = []
        inputs: list[torch.Tensor] = []
        for tracker in _Shared.trackers:
            held = {key: tensor for key, given in tracker._tensors.items() if (tensor := given.get()) is not None}
            tracker._tensors = {key: tracker._tensors[key] for key in held}
            tensors += held.values()
            optimizers += [o for given in tracker._optimizers.values() if (o := given()) is not None]
            inputs += [tensor for given in tracker._inputs.values() if (tensor := given.get()) is not None]
        self._ledger.claim(tensors, optimizers, inputs)

    def _refresh(self) -> None:
        """Bring the figures up to date. What was given to a tracker counts even before it is first entered."""
        with _lock:
            if self._ledger is None and (self._tensors or self._optimizers or self._tracker.modules):
                with self:
                    pass
            self._claim()

    # ---- figures ----

    def get_tracker_snapshot(self, type: str = "current") -> SumsByDevice:
        """Bytes by device and category, now or at the peak. ValueError for another type."""
        _check_type(type)
        self._refresh()
        if type == "peak":
            held = {device: sums_of(at.raw) for device, at in self._peak_history.by_device().items() if any(at.raw)}
            return self._with_cpu(held)
        raw = self._last.now if self._last else self._ledger.now() if self._ledger else []
        snapshot = self._with_cpu(snapshot_of(raw))
        for device, figures in self._peak_history.by_device().items():  # also devices that hold nothing now
            if figures.peak.bytes and device not in snapshot:
                snapshot[device] = sums_of((0,) * len(Category))
        return snapshot

    def _with_cpu(self, snapshot: SumsByDevice) -> SumsByDevice:
        """A snapshot of a tracker that was ever entered has the CPU, even if it holds nothing."""
        if self._ledger is not None:
            snapshot.setdefault(torch.device("cpu"), sums_of((0,) * len(Category)))
        return snapshot

    def get_module_snapshot(self, type: str = "current", children: bool = False) -> ModuleSnapshot:
        """Bytes by device, fqn and category, now or at the peak.

        A module's own bytes, or with ``children=True`` those of its subtree. ``"Global"`` owns what was allocated
        outside any module.
        """
        _check_type(type)
        self._refresh()
        if type == "current":
            raw = self._last.modules if self._last else self._ledger.modules() if self._ledger else []
            return by_module(raw, children)
        return by_module(self._peak_history.modules(), children)

    def get_kind_snapshot(self, type: str = "current") -> SumsByDevice:
        """Bytes by device and kind (``Kind``), now or at the peak: what FSDP2 or DDP holds, within the categories.
        Kinds that hold nothing are left out. They are parts of ``get_tracker_snapshot``'s figures, so they have no
        total."""
        figures = peak_figures(self, type)
        return {device: kinds for device, (_, raw) in figures.items() if (kinds := kinds_of(raw))}

    def get_module_kinds(self, type: str = "current") -> ModuleSnapshot:
        """Bytes by device, fqn and kind, now or at the peak: a module's own bytes."""
        _check_type(type)
        self._refresh()
        if type == "peak":
            rows = self._peak_history.module_kinds()
        else:
            rows = self._last.module_kinds if self._last else self._ledger.module_kinds() if self._ledger else []
        numbered = devices()
        found: dict[torch.device, dict[str, Sums]] = {}
        for number, fqn, raw in rows:
            kinds = found.setdefault(numbered[number], {}).setdefault(fqn, {})
            for kind, value in kinds_of(raw).items():
                kinds[kind] = kinds.get(kind, 0) + value
        return found

    @property
    def peak(self) -> dict[torch.device, Peak]:
        """The most bytes that each device held, and when."""
        self._refresh()
        return {
            device: figures.peak for device, figures in self._peak_history.by_device().items() if figures.peak.bytes
        }

    @property
    def outside(self) -> SumsByDevice:
        """Memory that known objects hold and that is not from torch's allocators: numpy, mmap, shared memory."""
        self._refresh()
        raw = self._last.outside if self._last else self._ledger.outside() if self._ledger else []
        return snapshot_of(raw)

    @property
    def lost(self) -> int:
        """How many events were lost because memory ran out. If not 0, every figure is a lower bound."""
        return self._last.lost if self._last else self._ledger.lost() if self._ledger else 0

    def reset_peak(self) -> None:
        """Forget the peak, and begin a new one with what is held now."""
        with _lock:
            self._claim()
            self._peak_history.reset()

    # ---- modules ----

    @property
    def memory_tracking(self) -> Mapping[torch.nn.Module, ModuleStats]:
        """A live view of what was held around each module's calls, in the latest call of its root module."""
        return StatsView(self._stats, self.reset_mod_stats)

    def reset_mod_stats(self) -> None:
        """Forget the stats of every module until it is called again."""
        with _lock:
            self._stats_since = self._ledger.time() if self._ledger else 0
            self._stats_cache = None
            if self._last is not None:
                self._last = self._last._replace(stats={})

    def _stats(self) -> StatsByModule:
        """The stats of all modules, sorted by the modules' names."""
        with _lock:
            if self._last is not None:
                return self._last.stats
            if self._ledger is None:
                return {}
            time = self._ledger.time()
            if self._stats_cache is None or self._stats_cache[0] != time:
                self._claim()
                self._stats_cache = (self._ledger.time(), self._read_stats(self._ledger))
            return self._stats_cache[1]

    def _read_stats(self, ledger: _native.Ledger) -> StatsByModule:
        calls: dict[int, list[Any]] = {}
        modules: dict[int, torch.nn.Module] = {}
        for module, fqn, snapshots, given, result in ledger.stats(self._tracker):
            snapshots = [snapshot for snapshot in snapshots if snapshot[1] >= self._stats_since]
            if snapshots:
                modules[id(module)] = module
                calls.setdefault(id(module), []).append((fqn, snapshots, given, result))
        rows = sorted(calls.items(), key=lambda item: _text.natural_key(item[1][-1][0]))
        return {key: (ref := weakref.ref(modules[key]), LazyStats(ledger, ref, found)) for key, found in rows}

    def _is_entered(self) -> bool:
        return self._entered > 0

    # ---- text ----

    def _print(self, text: str) -> None:
        if self.lost:
            print(f"At least ({self.lost} events were lost because memory ran out):")
        print(text)

    def display_snapshot(self, type: str = "current", units: str = "B", tabulate: bool = False) -> None:
        """Print the bytes by device and category. ``units``: "B", "KiB", "MiB" or "GiB"."""
        _text.bytes_per(units)
        self._print(snapshot_text(self.get_tracker_snapshot(type), units, tabulate))

    def display_modulewise_snapshots(self, depth: int = 2, units: str = "B", tabulate: bool = False) -> None:
        """Print what was held around the calls of each module whose name has at most ``depth`` parts."""
        _text.bytes_per(units)
        if isinstance(depth, bool) or not isinstance(depth, int):
            raise TypeError(f"depth must be an int, not {type(depth).__name__}")
        if depth < 0:
            raise ValueError(f"depth must be 0 or more, not {depth}")
        if not self.memory_tracking:
            self._print("No module was called.")
        for stats in self.memory_tracking.values():
            if stats.mod_fqn.count(".") < depth:
                print(f"Module:  {stats.mod_fqn}")
                self._print(states_text(stats.snapshots, units, tabulate))


# ---- for the other modules of the package ----


def is_active(tracker: MemTracker) -> bool:
    return tracker._is_entered()


def active_trackers() -> list[MemTracker]:
    return list(_Shared.trackers)


def ledger_of(tracker: MemTracker) -> _native.Ledger | None:
    """The ledger that the tracker counts with; None if it was never entered."""
    return tracker._ledger


def peak_figures(tracker: MemTracker, type: str) -> dict[torch.device, tuple[Raw, Raw]]:
    """Bytes by category and by kind of each device, now or at the peak. The CPU is there even if it holds nothing, and
    so is each device that ever held something."""
    _check_type(type)
    tracker._refresh()
    peaks = tracker._peak_history.by_device()
    if type == "peak":
        found = {device: (at.raw, at.kinds) for device, at in peaks.items() if any(at.raw)}
    else:
        last, ledger = tracker._last, tracker._ledger
        now = (last.now, last.kinds) if last else (ledger.now(), ledger.kinds()) if ledger else ([], [])
        found = {
            device: (raw, kinds)
            for device, raw, kinds in zip(devices(), *now)
            if any(raw) or (device in peaks and peaks[device].peak.bytes)
        }
    if tracker._ledger is not None:
        found.setdefault(torch.device("cpu"), ((0,) * len(Category), (0,) * (len(KINDS) + 1)))
    return found


def refresh(tracker: MemTracker) -> None:
    """Claim what known objects hold now, so that figures read next are up to date."""
    tracker._refresh()


def name_module(tracker: MemTracker, module: torch.nn.Module) -> str:
    """Make a module known that was not called, and return its fqn."""
    return tracker._tracker.name_module(module)


def without_modules(tracker: MemTracker) -> None:
    """Nobody will read the tracker's ``memory_tracking``, nor what modules held at its peak: calls and blocks cost less
    if no other tracker keeps them."""
    tracker._wants_modules = False


def on_other_source(tracker: MemTracker, leave: Callable[[], None]) -> None:
    """Before the program enters a MemTracker with another source, ``leave`` is called; it must exit this tracker."""
    tracker._leave_for_other_source = leave
