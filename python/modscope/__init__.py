"""Which ``nn.Module`` is running, and which one owns each byte of memory.

    from modscope import MemTracker, MemoryTracker, ModTracker, ModuleTracker

replaces ``torch.distributed._tools.mem_tracker``, ``torch.distributed._tools.memory_tracker``,
``torch.distributed._tools.mod_tracker`` and ``torch.utils.module_tracker``. ``record`` writes what happens to a program's memory to a file, a capture; ``load``
reads it. ``virtual_gpu`` runs a part of a program on a GPU that is not there, to see how much memory it would need.

Each name is imported when it is first used, so reading a capture needs no torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modscope._apply import Applied, apply
    from modscope._branch import Branch
    from modscope._categories import Category, Kind, State
    from modscope._doctor import doctor
    from modscope._dropin import drop_in
    from modscope._fsdp_mem_tracker import FSDPMemTracker
    from modscope._load import Block, Capture, CaptureError, Event, Phase, Snapshot, Step, load
    from modscope._mem_tracker import MemTracker
    from modscope._memory_tracker import MemoryTracker
    from modscope._peak import Peak
    from modscope._plan_file import Plan, PlanError
    from modscope._predict_gpu import virtual_gpu
    from modscope._record import record
    from modscope._snapshots import ModuleStats
    from modscope._trackers import ModTracker, ModuleTracker
    from modscope._virtual.gpus import Gpu, gpus

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
    "Kind",
    "MemTracker",
    "MemoryTracker",
    "ModTracker",
    "ModuleStats",
    "ModuleTracker",
    "Peak",
    "Phase",
    "Plan",
    "PlanError",
    "Snapshot",
    "State",
    "Step",
    "__version__",
    "apply",
    "doctor",
    "drop_in",
    "gpus",
    "load",
    "record",
    "virtual_gpu",
]

_NAMES = {
    "_apply": ("Applied", "apply"),
    "_branch": ("Branch",),
    "_categories": ("Category", "Kind", "State"),
    "_doctor": ("doctor",),
    "_dropin": ("drop_in",),
    "_fsdp_mem_tracker": ("FSDPMemTracker",),
    "_load": ("Block", "Capture", "CaptureError", "Event", "Phase", "Snapshot", "Step", "load"),
    "_mem_tracker": ("MemTracker",),
    "_memory_tracker": ("MemoryTracker",),
    "_peak": ("Peak",),
    "_plan_file": ("Plan", "PlanError"),
    "_predict_gpu": ("virtual_gpu",),
    "_record": ("record",),
    "_snapshots": ("ModuleStats",),
    "_trackers": ("ModTracker", "ModuleTracker"),
    "_virtual.gpus": ("Gpu", "gpus"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_NEED_NO_TORCH = ("_branch", "_categories", "_load", "_peak", "_plan_file", "_virtual.gpus")


# Hidden from type checkers: they would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name == "__version__":
            from modscope._capture import version as value
        elif home := _HOMES.get(name):
            if home not in _NEED_NO_TORCH:
                from modscope._torch_version import check_torch

                check_torch()
            value = getattr(importlib.import_module(f"modscope.{home}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)
