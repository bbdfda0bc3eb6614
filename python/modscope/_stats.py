"""``MemTracker.memory_tracking``: what was held around each module's calls. Read from the ledger on demand."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from modscope import _native
from modscope._categories import TOTAL, State
from modscope._snapshots import ModuleStats, Snapshot, snapshot_of

# By the module's id: a reference to the module, and a function that returns its stats.
StatsByModule = dict[int, tuple["weakref.ref[torch.nn.Module]", Callable[[], ModuleStats]]]


class StatsView(Mapping[torch.nn.Module, ModuleStats]):
    """A live view of the stats of each module that was called. It keeps no module alive."""

    def __init__(self, read: Callable[[], StatsByModule], clear: Callable[[], None]) -> None:
        self._read, self._clear = read, clear

    def __getitem__(self, module: torch.nn.Module) -> ModuleStats:
        ref, stats = self._read().get(id(module), (None, None))
        if ref is None or stats is None or ref() is not module:
            raise KeyError(module)
        return stats()

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter([module for ref, _ in self._read().values() if (module := ref()) is not None])

    def __len__(self) -> int:
        return sum(ref() is not None for ref, _ in self._read().values())

    def __contains__(self, module: object) -> bool:
        ref, _ = self._read().get(id(module), (None, None))
        return ref is not None and ref() is module

    def __deepcopy__(self, memo: dict[int, Any]) -> MutableMapping[Any, Any]:
        """The stats as they are now, for the same modules. The copy keeps no module alive either."""
        copied = WeakIdKeyDictionary()
        for module, stats in self.items():
            copied[module] = copy.deepcopy(stats, memo)
        return copied

    def clear(self) -> None:
        self._clear()

    def __repr__(self) -> str:
        return f"<memory of {len(self)} modules>"


class LazyStats:
    """A module's stats, computed when they are first asked for."""

    def __init__(self, ledger: _native.Ledger, module: weakref.ref[torch.nn.Module], calls: list[Any]) -> None:
        self._ledger, self._module, self._calls = ledger, module, calls
        self._stats: ModuleStats | None = None

    def __call__(self) -> ModuleStats:
        if self._stats is None:
            self._stats = self._compute()
        return self._stats

    def _compute(self) -> ModuleStats:
        fqn, _, input_mem, output_mem = max(self._calls, key=lambda call: max(snapshot[1] for snapshot in call[1]))
        by_state: dict[State, list[tuple[int, Snapshot]]] = {}
        for _, call_snapshots, _, _ in self._calls:
            for state, time, raw in call_snapshots:
                by_state.setdefault(State(state), []).append((time, snapshot_of(raw)))
        snapshots = {
            state: [snapshot for _, snapshot in sorted(taken, key=lambda item: item[0])]
            for state, taken in by_state.items()
        }
        peaks = snapshots.get(State.PEAK_BW) or snapshots.get(State.PEAK_FW) or [{}]
        module = self._module()
        return ModuleStats(
            mod_fqn=fqn,
            parameter_mem=self._ledger.held(list(module.parameters())) if module is not None else 0,
            buffer_mem=self._ledger.held(list(module.buffers())) if module is not None else 0,
            input_mem=input_mem,
            output_mem=output_mem,
            local_peak={device: sums[TOTAL] for device, sums in peaks[-1].items()},
            snapshots=snapshots,
        )
