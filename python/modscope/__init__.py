"""Which ``nn.Module`` is running, and which one owns each byte of memory.

    from modscope import MemTracker, MemoryTracker, ModTracker, ModuleTracker

replaces ``torch.distributed._tools.mem_tracker``, ``torch.distributed._tools.memory_tracker``,
``torch.distributed._tools.mod_tracker`` and ``torch.utils.module_tracker``; ``RuntimeEstimator``, ``SACEstimator`` and
``sac_milp`` replace those of torch that estimate. ``record`` writes what happens to a
program's memory to a file, a capture; ``load`` reads it. ``virtual_gpu`` runs a part of a program on a GPU that is not
there, to see how much memory it would need.

Each name is imported when it is first used, so reading a capture needs no torch."""

import _thread
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modscope._plan.apply import Applied, apply
    from modscope._plan.file import Plan, PlanError
    from modscope._predict.virtual_gpu import virtual_gpu
    from modscope._read.categories import Category, Kind, State
    from modscope._read.load import Block, Capture, CaptureError, Event, Phase, Snapshot, Step, load
    from modscope._read.module_tree import Branch
    from modscope._read.types import Peak
    from modscope._record.record import record
    from modscope._torch.doctor import doctor
    from modscope._trackers.drop_in import drop_in
    from modscope._trackers.fsdp_mem_tracker import FSDPMemTracker
    from modscope._trackers.ilp_utils import (
        Graph,
        ModuleInfo,
        aggregate_stats,
        get_peak_memory_runtime_baseline,
        parse_module_info,
    )
    from modscope._trackers.mem_tracker import MemTracker
    from modscope._trackers.memory_tracker import MemoryTracker
    from modscope._trackers.module_tracker import ModTracker, ModuleTracker
    from modscope._trackers.runtime_estimator import RuntimeEstimator
    from modscope._trackers.sac_estimator import MSPS, SACEstimator, SACGreedyOrderMeta, SACStats, SACTradeOffStats
    from modscope._trackers.sac_ilp import SACDecision, get_optimal_checkpointing_policy_per_module, sac_milp
    from modscope._trackers.snapshots import ModuleStats
    from modscope._virtual.gpus import Gpu, gpus
    from modscope.integrations.metrics import metrics

    __version__: str

__all__ = [
    "Applied",
    "Block",
    "Branch",
    "Capture",
    "CaptureError",
    "Category",
    "Event",
    "FSDPMemTracker",
    "Gpu",
    "Graph",
    "Kind",
    "MSPS",
    "MemTracker",
    "MemoryTracker",
    "ModTracker",
    "ModuleInfo",
    "ModuleStats",
    "ModuleTracker",
    "Peak",
    "Phase",
    "Plan",
    "PlanError",
    "RuntimeEstimator",
    "SACDecision",
    "SACEstimator",
    "SACGreedyOrderMeta",
    "SACStats",
    "SACTradeOffStats",
    "Snapshot",
    "State",
    "Step",
    "__version__",
    "aggregate_stats",
    "apply",
    "doctor",
    "drop_in",
    "get_optimal_checkpointing_policy_per_module",
    "get_peak_memory_runtime_baseline",
    "gpus",
    "load",
    "metrics",
    "parse_module_info",
    "record",
    "sac_milp",
    "virtual_gpu",
]

_NAMES = {
    "_plan.apply": ("Applied", "_checkpointed", "apply"),
    "_read.module_tree": ("Branch",),
    "_read.categories": ("Category", "Kind", "State"),
    "_torch.doctor": ("doctor",),
    "_trackers.drop_in": ("drop_in",),
    "_trackers.fsdp_mem_tracker": ("FSDPMemTracker",),
    "_trackers.ilp_utils": (
        "Graph",
        "ModuleInfo",
        "aggregate_stats",
        "get_peak_memory_runtime_baseline",
        "parse_module_info",
    ),
    "_trackers.runtime_estimator": ("RuntimeEstimator",),
    "_trackers.sac_estimator": ("MSPS", "SACEstimator", "SACGreedyOrderMeta", "SACStats", "SACTradeOffStats"),
    "_trackers.sac_ilp": ("SACDecision", "get_optimal_checkpointing_policy_per_module", "sac_milp"),
    "_read.load": ("Block", "Capture", "CaptureError", "Event", "Phase", "Snapshot", "Step", "load"),
    "_trackers.mem_tracker": ("MemTracker",),
    "_trackers.memory_tracker": ("MemoryTracker",),
    "_read.types": ("Peak",),
    "_plan.file": ("Plan", "PlanError"),
    "_predict.virtual_gpu": ("virtual_gpu",),
    "_record.record": ("record",),
    "_read.cells": ("Cell", "Cells"),
    "_read.lines": ("Frame", "Place", "Sources"),
    "_trackers.snapshots": ("ModuleStats",),
    "_trackers.module_tracker": ("ModTracker", "ModuleTracker"),
    "_virtual.gpus": ("Gpu", "gpus"),
    "integrations.metrics": ("metrics",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_NEED_NO_TORCH = (
    "_read.module_tree",
    "_read.categories",
    "_read.cells",
    "_read.lines",
    "_read.load",
    "_read.types",
    "_plan.file",
    "_virtual.gpus",
)


# The former homes of public classes, and of the function that a model with a plan has as its forward. Pickles name
# them, and find them here as names of the package.
_FORMER = "_apply _branch _capture_types _categories _cells _lines_read _peak _plan_file _snapshots"
for _home in _FORMER.split():
    sys.modules[f"modscope.{_home}"] = sys.modules["modscope"]


# A fork waits until other threads have imported what they use first: its child could never import that.
_importing = _thread.RLock()
os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)

# Hidden from type checkers: they would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        with _importing:
            value = globals()[name] = _import(name)
        return value

    def _import(name: str) -> object:
        import importlib

        if name == "__version__":
            from modscope._capture import version

            return version
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if home not in _NEED_NO_TORCH:
            from modscope._torch import check_torch

            check_torch()
        return getattr(importlib.import_module(f"modscope.{home}"), name)


def __dir__() -> list[str]:
    return list(__all__)
