"""What was held around each module's calls, made from the ledger when it is asked for."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from modscope import _native
from modscope._snapshots import ModuleStats, Snapshot, snapshot_of
from modscope._categories import TOTAL, State

# By the module's id: how to find the module, if it still lives, and how to make its stats.
Known = dict[int, tuple["weakref.ref[torch.nn.Module]", Callable[[], ModuleStats]]]


class Tracking(Mapping[torch.nn.Module, ModuleStats]):
    """What is known of each module that was called, by the module itself. Keeps none of them alive."""

    def __init__(self, known: Callable[[], Known], forget: Callable[[], None]) -> None:
        self._known, self._forget = known, forget

    def __getitem__(self, module: torch.nn.Module) -> ModuleStats:
        ref, stats = self._known().get(id(module), (None, None))
        if ref is None or stats is None or ref() is not module:
            raise KeyError(module)
        return stats()

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter([module for ref, _ in self._known().values() if (module := ref()) is not None])

    def __len__(self) -> int:
        return sum(ref() is not None for ref, _ in self._known().values())

    def __contains__(self, module: object) -> bool:
        ref, _ = self._known().get(id(module), (None, None))
        return ref is not None and ref() is module

    def __deepcopy__(self, memo: dict[int, Any]) -> MutableMapping[Any, Any]:
        """The stats as they are now, for the same modules, which it does not keep alive either."""
        copied = WeakIdKeyDictionary()
        for module, stats in self.items():
            copied[module] = copy.deepcopy(stats, memo)
        return copied

    def clear(self) -> None:
        self._forget()

    def __repr__(self) -> str:
        return f"<memory of {len(self)} modules>"


class Lazily:
    """Makes a module's stats when they are asked for."""

    def __init__(self, ledger: _native.Ledger, module: weakref.ref[torch.nn.Module], calls: list[Any]) -> None:
        self._ledger, self._module, self._calls = ledger, module, calls
        self._made: ModuleStats | None = None

    def __call__(self) -> ModuleStats:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> ModuleStats:
        latest = max(self._calls, key=lambda call: max(moment[1] for moment in call[1]))
        by_state: dict[State, list[tuple[int, Snapshot]]] = {}
        for _, moments, _, _ in self._calls:
            for name, when, raw in moments:
                by_state.setdefault(State(name), []).append((when, snapshot_of(raw)))
        snapshots = {
            state: [snapshot for _, snapshot in sorted(taken, key=lambda item: item[0])]
            for state, taken in by_state.items()
        }
        peaks = snapshots.get(State.PEAK_BW) or snapshots.get(State.PEAK_FW) or [{}]
        module = self._module()
        return ModuleStats(
            mod_fqn=latest[0],
            parameter_mem=self._ledger.held(list(module.parameters())) if module is not None else 0,
            buffer_mem=self._ledger.held(list(module.buffers())) if module is not None else 0,
            input_mem=latest[2],
            output_mem=latest[3],
            local_peak={device: sums[TOTAL] for device, sums in peaks[-1].items()},
            snapshots=snapshots,
        )
