"""``MemTracker``: which module and which category holds each byte."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from modscope import _display, _native, _places, _story, _text
from modscope._dispatch import Dispatch, fake_mode, is_fake
from modscope._figures import (
    ModuleSnapshot,
    ModuleStats,
    RawModules,
    Snapshot,
    by_module,
    devices,
    number_device,
    snapshot_of,
)
from modscope._peak import Peak
from modscope._stats import Known, Lazily, Tracking
from modscope._categories import Category, Raw, sums_of

__all__ = ["MemTracker"]

_SOURCES = ("auto", "allocator", "dispatcher")


def _census() -> dict[int, int] | None:
    """Sizes of the blocks that the CUDA allocator has handed out, by address."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    sizes = {}
    for segment in torch.cuda.memory_snapshot():
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                sizes[at] = block["size"]
            at += block["size"]
    return sizes


# ---- what is shared by all that are active ----


class _PeakFigures(NamedTuple):
    raw: Raw
    peak: Peak


class _Frozen(NamedTuple):
    """The figures of a tracker that left while others went on."""

    now: list[Raw]
    outside: list[Raw]
    modules: RawModules
    stats: Known
    lost: int


class _Shared:
    ledger: _native.Ledger | None = None
    dispatcher = False
    trackers: list[MemTracker] = []


_lock = threading.RLock()


def _forked() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


def _peaks_of(viewer: _native.Viewer) -> dict[torch.device, _PeakFigures]:
    peaks = {}
    for device, (raw, step, phase, module, owner) in zip(devices(), viewer.peaks()):
        peaks[device] = _PeakFigures(raw, Peak(sum(raw), step, phase, module, owner))
    return peaks


def _check_type(type: str) -> None:
    if type not in ("current", "peak"):
        raise ValueError(f"Invalid type {type!r}: say 'current' or 'peak'")


class MemTracker:
    """Tells who holds each byte of memory: which module, which category, now and at the peak.

    A context manager, and a drop-in for ``torch.distributed._tools.mem_tracker.MemTracker``::

        mt = MemTracker()
        mt.track_external(model, optimizer, batch)
        with mt:
            for x in loader:
                step(x)
        mt.display_snapshot("peak", units="MiB", tabulate=True)
        mt.display_modulewise_snapshots(depth=3, units="MiB")

    ``source`` is where blocks come from: ``"allocator"`` (torch's own, exact), ``"dispatcher"``
    (storages that operators return: fake tensors, other platforms), or ``"auto"``: the dispatcher
    under a ``FakeTensorMode`` or for fake tensors, else the allocator where it can be watched.
    """

    def __init__(self, source: str = "auto") -> None:
        if not isinstance(source, str):
            raise TypeError(f"source must be a str, not {type(source).__name__}")
        if source not in _SOURCES:
            raise ValueError(f"source must be one of {', '.join(map(repr, _SOURCES))}, not {source!r}")
        self._asked = source
        self._chosen: str | None = None
        self._depth = 0
        self._tracker = _native.Tracker()
        self._ledger: _native.Ledger | None = None
        self._viewer: _native.Viewer | None = None
        self._frozen: _Frozen | None = None
        self._past: dict[torch.device, tuple[_PeakFigures, RawModules]] = {}
        self._tensors: dict[int, weakref.ref[torch.Tensor]] = {}  # by id
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._fake_given = False
        self._stats_since = 0
        self._stats_cache: tuple[int, Known] | None = None
        self._mode: Dispatch | None = None
        self._named = False  # whether _tracker is entered
        self._give_way: Callable[[], None] | None = None  # leaves for one that needs another source

    def __repr__(self) -> str:
        state = "active" if self._depth else "not active"
        peaks = {device: figures.peak.bytes for device, figures in self._peaks().items()}
        held = ", ".join(f"{_text.size_in(most, 'MiB')} on {device}" for device, most in peaks.items() if most)
        return f"<MemTracker, {state}, source {self.source!r}, peak {held or 'none'}>"

    def _repr_html_(self) -> str:
        from modscope import _notebook

        return _notebook.of_tracker(self, active=self._depth > 0)

    # ---- what to watch ----

    @property
    def source(self) -> str:
        """"allocator" or "dispatcher"; before the first entering, what was asked for."""
        return self._chosen or self._asked

    def track_external(self, *external: Any) -> None:
        """Count what modules, optimizers and tensors made outside hold; containers of them, and None, too.

        Parameters, buffers, gradients and optimizer state are known as such, other tensors are ``Other``.
        """
        leaves = tree_leaves(external)
        for leaf in leaves:
            if leaf is not None and not isinstance(leaf, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)):
                raise TypeError(
                    f"Object of type {type(leaf)} is not supported for tracking. "
                    "Only modules, optimizers and tensors, and containers of them, are supported."
                )
        for leaf in leaves:
            if isinstance(leaf, torch.nn.Module):
                self._tracker._get_mod_name(leaf)
                self._note_fake([*leaf.parameters(), *leaf.buffers()])
            elif isinstance(leaf, torch.optim.Optimizer):
                self._optimizers[id(leaf)] = weakref.ref(leaf)
            elif leaf is not None:
                self._tensors[id(leaf)] = weakref.ref(leaf)
                self._note_fake([leaf])
        with _lock:
            self._claim()

    def _note_fake(self, tensors: list[torch.Tensor]) -> None:
        fake = [tensor for tensor in tensors if is_fake(tensor)]
        for tensor in fake:
            number_device(tensor.device)  # refuses what cannot be run
        self._fake_given |= bool(fake)

    # ---- entering and leaving ----

    def _choose(self) -> bool:
        """Whether the dispatcher is to be the source."""
        _places.prepare()
        why = _places.tensors_known()
        if why:
            raise RuntimeError(f"modscope cannot read this torch's tensors ({why}): update modscope")
        cannot = _places.blocks_known()
        if self._asked == "allocator" and cannot:
            raise RuntimeError(
                f"the allocator cannot be watched here: {cannot}. Use MemTracker(source='dispatcher') or 'auto'; "
                "`python -m modscope doctor` tells more"
            )
        if self._asked != "auto":
            return self._asked == "dispatcher"
        if _Shared.trackers and _Shared.dispatcher:
            return True
        return bool(cannot) or self._fake_given or fake_mode() is not None

    def _begin(self) -> None:
        dispatcher = self._choose()
        try:
            self._named = True
            self._tracker.__enter__()
            joined = self._join(dispatcher)
            self._claim()
            if self._viewer is None:
                assert self._ledger is not None
                self._viewer = _native.Viewer(self._ledger)
                if joined:  # what was called before is not this tracker's
                    self._stats_since = self._ledger.time()
            if not _places.nodes_known():
                self._tracker._register_user_hooks(None, None, self._pre_bw, self._post_bw)
            if dispatcher:
                self._mode = Dispatch()
                self._mode.__enter__()
        except BaseException:
            self._leave()
            raise

    def _join(self, dispatcher: bool) -> bool:
        """Take part in the ledger that goes on, or begin one; whether there was one."""
        name = self._name(dispatcher)
        if _Shared.trackers and _Shared.dispatcher != dispatcher:
            giving = [tracker._give_way for tracker in _Shared.trackers]
            for give_way in giving if all(giving) else ():
                assert give_way is not None
                give_way()
        joined = bool(_Shared.trackers)
        if joined and _Shared.dispatcher != dispatcher:
            active = self._name(_Shared.dispatcher)
            raise RuntimeError(
                f"a MemTracker with source {active!r} is active: leave it first, or use MemTracker(source={active!r})"
            )
        ledger = _Shared.ledger
        if not joined or ledger is None:
            own = self._ledger if self._frozen is None and self._chosen == name else None
            ledger = own or _native.Ledger()
            census = None if dispatcher else _census()
            _Shared.ledger, _Shared.dispatcher = ledger, dispatcher  # first: it can then be ended
            ledger.begin(dispatcher, census)
        _Shared.trackers.append(self)
        if self._ledger is not ledger:
            self._keep_past()
            self._stats_since = 0
        self._ledger, self._frozen, self._chosen = ledger, None, name
        self._stats_cache = None
        return joined

    @staticmethod
    def _name(dispatcher: bool) -> str:
        return "dispatcher" if dispatcher else "allocator"

    def _keep_past(self) -> None:
        """The ledger goes on, or is another one now: what was the peak stays one."""
        if self._viewer is None:
            return
        modules = self._viewer.modules()
        for device, figures in _peaks_of(self._viewer).items():
            if device not in self._past or figures.peak.bytes > self._past[device][0].peak.bytes:
                self._past[device] = (figures, modules)
        self._viewer = None

    def _pre_bw(self, module: torch.nn.Module | None, grads: Any) -> None:
        if module is not None and self._ledger is not None:
            self._ledger.backward(self._tracker, module, True)

    def _post_bw(self, module: torch.nn.Module | None, grads: Any) -> None:
        if module is not None and self._ledger is not None:
            self._ledger.backward(self._tracker, module, False)

    def _end(self) -> None:
        try:
            self._claim()
            if len(_Shared.trackers) > 1:
                self._freeze()
        finally:  # whatever becomes of the figures, the stretch ends
            self._leave()

    def _freeze(self) -> None:
        """The ledger goes on without this tracker: keep what it tells now."""
        ledger = self._ledger
        assert ledger is not None
        stats: Known = {key: (ref, stats().copy) for key, (ref, stats) in self._stats().items()}
        self._frozen = _Frozen(ledger.now(), ledger.outside(), ledger.modules(), stats, ledger.lost())
        self._keep_past()

    def _leave(self) -> None:
        """Give everything back. May be called again."""
        if self._mode is not None:
            self._mode.leave()
            self._mode = None
        if self in _Shared.trackers:
            _Shared.trackers.remove(self)
        if not _Shared.trackers and _Shared.ledger is not None:
            _Shared.ledger.end()
            _Shared.ledger = None
        if not _places.nodes_known():
            self._tracker._clear_user_hooks()
        if self._named:
            with contextlib.suppress(RuntimeError):  # it was interrupted before it was entered
                self._tracker.__exit__()
            self._named = False

    def __enter__(self) -> MemTracker:
        with _lock:
            self._depth += 1  # first: an interrupt may come at any point, and it must be possible to leave
            try:
                if self._depth == 1:
                    self._begin()
            except BaseException:
                self._depth -= 1
                raise
        return self

    def __exit__(self, *args: object) -> None:
        with _lock:
            if self._depth == 0:
                raise RuntimeError("this tracker is not active: enter it first, with a with statement")
            if self._depth == 1:
                if len(args) > 1 and isinstance(args[1], BaseException):
                    _story.add_note(args[1])
                try:
                    self._end()
                except BaseException:
                    self._leave()  # once more, should an interrupt have come while leaving
                    raise
                finally:
                    self._depth = 0
            else:
                self._depth -= 1

    def _claim(self) -> None:
        """Read off the objects themselves which blocks they hold."""
        if self not in _Shared.trackers or self._ledger is None:
            return
        tensors: list[torch.Tensor] = []
        optimizers: list[torch.optim.Optimizer] = []
        for tracker in _Shared.trackers:
            tracker._tensors = {key: ref for key, ref in tracker._tensors.items() if ref() is not None}
            tensors += [t for ref in tracker._tensors.values() if (t := ref()) is not None]
            optimizers += [o for given in tracker._optimizers.values() if (o := given()) is not None]
        self._ledger.claim(tensors, optimizers)

    def _up_to_date(self) -> None:
        with _lock:
            if self._ledger is None and (self._tensors or self._optimizers or self._tracker._known_modules()):
                with self:  # what was given counts from the beginning
                    pass
            self._claim()

    # ---- figures ----

    def get_tracker_snapshot(self, type: str = "current") -> Snapshot:
        """Bytes by device and category, now or at the peak. ValueError for another type."""
        _check_type(type)
        self._up_to_date()
        if type == "peak":
            held = {device: sums_of(raw) for device, (raw, _) in self._peaks().items() if any(raw)}
            return self._with_cpu(held)
        raw = self._frozen.now if self._frozen else self._ledger.now() if self._ledger else []
        snapshot = self._with_cpu(snapshot_of(raw))
        for device, figures in self._peaks().items():  # a device that holds nothing now is there all the same
            if figures.peak.bytes and device not in snapshot:
                snapshot[device] = sums_of((0,) * len(Category))
        return snapshot

    def _with_cpu(self, snapshot: Snapshot) -> Snapshot:
        """Once it was entered, the CPU is there, whatever it holds."""
        if self._ledger is not None:
            snapshot.setdefault(torch.device("cpu"), sums_of((0,) * len(Category)))
        return snapshot

    def get_module_snapshot(self, type: str = "current", children: bool = False) -> ModuleSnapshot:
        """Who holds what, now or at the peak: bytes by device, fqn and category.

        A module's own bytes, or with ``children=True`` all of its subtree's. ``"Global"`` holds
        what was made outside any module.
        """
        _check_type(type)
        self._up_to_date()
        if type == "current":
            raw = self._frozen.modules if self._frozen else self._ledger.modules() if self._ledger else []
            return by_module(raw, children)
        live = self._viewer.modules() if self._viewer else []
        by_device: RawModules = []
        numbers = {device: number for number, device in enumerate(devices())}
        for device, figures in self._peaks().items():
            past = self._past.get(device)
            source = past[1] if past and past[0] is figures else live
            by_device += [row for row in source if row[0] == numbers[device]]
        return by_module(by_device, children)

    def _peaks(self) -> dict[torch.device, _PeakFigures]:
        peaks = _peaks_of(self._viewer) if self._viewer else {}
        for device, (figures, _) in self._past.items():
            if device not in peaks or figures.peak.bytes > peaks[device].peak.bytes:
                peaks[device] = figures
        return peaks

    @property
    def peak(self) -> dict[torch.device, Peak]:
        """For each device, how much it held at most, and when that was."""
        self._up_to_date()
        return {device: figures.peak for device, figures in self._peaks().items() if figures.peak.bytes}

    @property
    def outside(self) -> Snapshot:
        """What known objects hold that torch's allocator did not make: numpy, mmap, shared memory."""
        self._up_to_date()
        raw = self._frozen.outside if self._frozen else self._ledger.outside() if self._ledger else []
        return snapshot_of(raw)

    @property
    def lost(self) -> int:
        """How many events could not be kept for want of memory. If not 0, all figures are "at least"."""
        return self._frozen.lost if self._frozen else self._ledger.lost() if self._ledger else 0

    def reset_peak(self) -> None:
        """Let the peak start anew, from what is held now."""
        with _lock:
            self._claim()
            self._past.clear()
            if self._viewer is not None:
                self._viewer.reset()

    # ---- modules ----

    @property
    def memory_tracking(self) -> Mapping[torch.nn.Module, ModuleStats]:
        """Stats of each module called, of the latest call of its root module, as they are when asked."""
        return Tracking(self._stats, self.reset_mod_stats)

    def reset_mod_stats(self) -> None:
        """Forget the stats of all modules, until they are called again."""
        with _lock:
            self._stats_since = self._ledger.time() if self._ledger else 0
            self._stats_cache = None
            if self._frozen is not None:
                self._frozen = self._frozen._replace(stats={})

    def _stats(self) -> Known:
        """In the order of the modules' names."""
        with _lock:
            if self._frozen is not None:
                return self._frozen.stats
            if self._ledger is None:
                return {}
            time = self._ledger.time()
            if self._stats_cache is None or self._stats_cache[0] != time:
                self._claim()
                self._stats_cache = (self._ledger.time(), self._read_stats(self._ledger))
            return self._stats_cache[1]

    def _read_stats(self, ledger: _native.Ledger) -> Known:
        calls: dict[int, list[Any]] = {}
        modules: dict[int, torch.nn.Module] = {}
        for module, fqn, moments, given, result in ledger.stats(self._tracker):
            moments = [moment for moment in moments if moment[1] >= self._stats_since]
            if moments:
                modules[id(module)] = module
                calls.setdefault(id(module), []).append((fqn, moments, given, result))
        rows = sorted(calls.items(), key=lambda item: _text.natural_key(item[1][-1][0]))
        return {key: (ref := weakref.ref(modules[key]), Lazily(ledger, ref, found)) for key, found in rows}

    # ---- text ----

    def _print(self, text: str) -> None:
        if self.lost:
            print(f"At least (memory ran out {self.lost} times while this was counted):")
        print(text)

    def display_snapshot(self, type: str = "current", units: str = "B", tabulate: bool = False) -> None:
        """Print bytes by device and category. Units: B, KiB, MiB, GiB."""
        _text.bytes_per(units)
        self._print(_display.snapshot_text(self.get_tracker_snapshot(type), units, tabulate))

    def display_modulewise_snapshots(self, depth: int = 2, units: str = "B", tabulate: bool = False) -> None:
        """Print what was held around the calls of each module down to ``depth``."""
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
                self._print(_display.states_text(stats.snapshots, units, tabulate))
