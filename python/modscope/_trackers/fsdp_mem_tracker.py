"""``FSDPMemTracker``: a ``MemTracker`` for models that FSDP2 shards, with the categories and states of PyTorch's
own."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

import torch
from modscope import _native
from modscope._read import text
from modscope._read.categories import CATEGORIES, KINDS, TOTAL, Category, Kind, Raw, Sums
from modscope._torch.devices import devices
from modscope._trackers.mem_tracker import MemTracker, peak_figures
from modscope._trackers.snapshots import SumsByDevice

__all__ = ["FSDPMemTracker"]


class FSDPCategory(enum.StrEnum):
    """What bytes are held for, in the words of PyTorch's ``FSDPMemTracker``."""

    SHARDED_PARAM = "Sharded Param"
    UNSHARDED_PARAM = "Unsharded Param"
    BUFFER = "Buffer"
    SHARDED_GRAD = "Sharded Grad"
    UNSHARDED_GRAD = "Unsharded Grad"
    ACT = "Activation"
    TEMP = "Temp"
    ALL_GATHER = "All Gather"
    REDUCE_SCATTER = "Reduce Scatter"
    OPT = "OptState"
    INP = "Inputs"


class FSDPState(enum.StrEnum):
    """A moment around the forward or backward of an FSDP module."""

    BEF_PRE_FW = "Before Pre-Forward"
    AFT_PRE_FW = "After Pre-Forward"
    BEF_POST_FW = "Before Post-Forward"
    AFT_POST_FW = "After Post-Forward"
    BEF_PRE_BW = "Before Pre-Backward"
    AFT_PRE_BW = "After Pre-Backward"
    BEF_POST_BW = "Before Post-Backward"
    AFT_POST_BW = "After Post-Backward"
    PRE_FW_AC = "Pre-Forward AC"
    POST_FW_AC = "Post-Forward AC"
    PEAK_FW = "Peak Forward"
    PEAK_BW = "Peak Backward"


class FSDPModuleStats:
    """What the program held around the forward and backward of an FSDP module."""

    def __init__(self, mod_fqn: str) -> None:
        self.mod_fqn = mod_fqn
        self.local_peak: dict[torch.device, int] = {}
        self.snapshots: dict[FSDPState, list[SumsByDevice]] = {}


def fsdp_sums(raw: Raw, kinds: Raw) -> Sums:
    """Bytes by FSDP2's categories. Parameters that FSDP2 does not manage count as sharded, and what is neither a
    parameter, gradient, state or buffer nor was given as an input counts as an activation."""
    held = dict(zip(CATEGORIES, raw))
    kind = dict(zip(KINDS, kinds[1:]))
    sums: Sums = {
        FSDPCategory.SHARDED_PARAM: held[Category.PARAM] - kind[Kind.UNSHARDED_PARAM],
        FSDPCategory.UNSHARDED_PARAM: kind[Kind.UNSHARDED_PARAM],
        FSDPCategory.BUFFER: held[Category.BUFFER],
        FSDPCategory.SHARDED_GRAD: held[Category.GRAD] - kind[Kind.UNSHARDED_GRAD],
        FSDPCategory.UNSHARDED_GRAD: kind[Kind.UNSHARDED_GRAD],
        FSDPCategory.ACT: held[Category.ACT] + held[Category.OTH] - kind[Kind.INPUT],
        FSDPCategory.TEMP: held[Category.TEMP] - kind[Kind.ALL_GATHER] - kind[Kind.REDUCE_SCATTER],
        FSDPCategory.ALL_GATHER: kind[Kind.ALL_GATHER],
        FSDPCategory.REDUCE_SCATTER: kind[Kind.REDUCE_SCATTER],
        FSDPCategory.OPT: held[Category.OPT],
        FSDPCategory.INP: kind[Kind.INPUT],
    }
    sums[TOTAL] = sum(raw)
    return sums


def _snapshot_of(figures: list[tuple[Raw, Raw]]) -> SumsByDevice:
    """Turn figures in the order of the devices' numbers into a snapshot."""
    return {
        device: fsdp_sums(raw, kinds)
        for device, (raw, kinds) in zip(devices(), figures)
        if any(raw) or device.type == "cpu"
    }


class FSDPMemTracker(MemTracker):
    """Attributes each byte of memory to FSDP2's categories, now, at the peak, and around each FSDP module's calls.

    A context manager, and a drop-in for ``torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker``::

        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((batch,))
        with tracker:
            for x in loader:            # any number of steps
                step(x)
        tracker.display_snapshot("peak", units="MiB", tabulate=True)
        tracker.display_modulewise_snapshots(depth=3, units="MiB")

    ``get_kind_snapshot`` and ``get_module_kinds`` say which module the bytes belong to.
    AssertionError if ``mod`` is not an FSDP module.
    """

    def __init__(self, mod: torch.nn.Module, optm: torch.optim.Optimizer | None = None) -> None:
        from torch.distributed.fsdp import FSDPModule

        super().__init__()
        if not isinstance(mod, FSDPModule):
            raise AssertionError(
                "FSDPMemTracker only supports FSDP modules: apply torch.distributed.fsdp.fully_shard first"
            )
        self._root_mod = mod
        self._optm = optm
        self._recording = False
        super().track_external(mod, *([optm] if optm is not None else []))

    def track_inputs(self, inputs: tuple[Any, ...]) -> None:
        """Count the tensors in ``inputs``, however nested, as Inputs. What else is in it is ignored."""
        self._add_inputs([leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)])

    def track_external(self, *external: Any) -> None:
        """Does nothing, as in PyTorch's: the model and the optimizer were given to the constructor."""

    # ---- entering and leaving ----

    def _begin(self) -> None:
        super()._begin()
        if not _native.intercept_fsdp():
            raise RuntimeError(
                "FSDP2's functions cannot be intercepted here, so FSDPMemTracker cannot count. `python -m "
                "modscope doctor` "
                "says what modscope relies on; MODSCOPE_INTERPOSE=0 must not be set."
            )
        _native.record_fsdp_states(True)
        self._recording = True

    def _leave(self) -> None:
        if self._recording:
            self._recording = False
            self._states = _native.fsdp_states()
            _native.record_fsdp_states(False)
        super()._leave()

    # ---- figures ----

    def get_tracker_snapshot(self, type: str = "current") -> SumsByDevice:
        """Bytes by device and FSDP2's categories, now or at the peak. ValueError for another type."""
        figures = peak_figures(self, type)
        return {device: fsdp_sums(raw, kinds) for device, (raw, kinds) in figures.items()}

    # ---- modules ----

    _states: list[tuple[int, str, list[tuple[Raw, Raw]]]] = []

    @property
    def memory_tracking(self) -> Mapping[torch.nn.Module, Any]:
        """What was held around the forward and backward of each FSDP module that was called, in the latest step."""
        states = _native.fsdp_states() if self._recording else self._states
        by_object: dict[int, list[tuple[FSDPState, SumsByDevice]]] = {}
        for key, state, figures in states:
            by_object.setdefault(key, []).append((FSDPState(state), _snapshot_of(figures)))
        found = WeakIdKeyDictionary()
        for module in self._root_mod.modules():
            records = [record for key in _objects_of(module) for record in by_object.get(key, ())]
            if records:
                found[module] = self._stats_of(module, records)
        return found

    def _stats_of(self, module: torch.nn.Module, records: list[tuple[FSDPState, SumsByDevice]]) -> FSDPModuleStats:
        stats = FSDPModuleStats(self._tracker.name_module(module))
        for state, snapshot in records:
            stats.snapshots.setdefault(state, []).append(snapshot)
        peaks = stats.snapshots.get(FSDPState.PEAK_BW) or stats.snapshots.get(FSDPState.PEAK_FW) or [{}]
        stats.local_peak = {device: sums[TOTAL] for device, sums in peaks[-1].items()}
        return stats

    def reset_mod_stats(self) -> None:
        """Forget the stats of every module until it is called again."""
        super().reset_mod_stats()
        _native.clear_fsdp_states()
        self._states = []

    def display_modulewise_snapshots(self, depth: int = 2, units: str = "B", tabulate: bool = False) -> None:
        """Print what was held around the calls of each FSDP module whose name has at most ``depth`` parts."""
        text.bytes_per(units)
        super().display_modulewise_snapshots(depth, units, tabulate)


def _objects_of(module: torch.nn.Module) -> list[int]:
    """The ids under which the states of a module are recorded: the module's own, and those of its parameter groups.
    None for a module whose parameters are all in groups of modules below it."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(module, FSDPModule):
        return []
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [group for group in [getattr(state, "_fsdp_param_group", None)] if group is not None]
    return [id(module), *map(id, groups)] if groups else []
