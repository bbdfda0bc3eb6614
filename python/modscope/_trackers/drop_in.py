"""``drop_in``: torch's own names stand for modscope's trackers and estimators, and torch's tools use them."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator

from modscope._trackers import ilp_utils, sac_estimator, sac_ilp
from modscope._trackers.fsdp_mem_tracker import FSDPMemTracker
from modscope._trackers.mem_tracker import MemTracker
from modscope._trackers.memory_tracker import MemoryTracker
from modscope._trackers.module_tracker import ModTracker, ModuleTracker
from modscope._trackers.runtime_estimator import RuntimeEstimator
from modscope._trackers.sac_estimator import SACEstimator

# The module and attribute by which torch refers to its tool, and the one that replaces it.
_TOOLS = "torch.distributed._tools"
_NAMES: tuple[tuple[str, str, object], ...] = (
    ("torch.utils.module_tracker", "ModuleTracker", ModuleTracker),
    ("torch.utils.flop_counter", "ModuleTracker", ModuleTracker),
    *((f"{_TOOLS}{file}", "ModTracker", ModTracker) for file in ("", ".mod_tracker", ".mem_tracker")),
    *((f"{_TOOLS}.{file}", "ModTracker", ModTracker) for file in ("runtime_estimator", "sac_estimator")),
    *((f"{_TOOLS}{file}", "MemTracker", MemTracker) for file in ("", ".mem_tracker", ".ilp_utils")),
    *((f"{_TOOLS}{file}", "FSDPMemTracker", FSDPMemTracker) for file in ("", ".fsdp2_mem_tracker")),
    *((f"{_TOOLS}{file}", "MemoryTracker", MemoryTracker) for file in ("", ".memory_tracker")),
    *(
        (f"{_TOOLS}{file}", "RuntimeEstimator", RuntimeEstimator)
        for file in ("", ".runtime_estimator", ".sac_estimator", ".ilp_utils")
    ),
    *((f"{_TOOLS}{file}", "SACEstimator", SACEstimator) for file in ("", ".sac_estimator", ".ilp_utils")),
    *(
        (f"{_TOOLS}{file}", name, getattr(sac_estimator, name))
        for file in ("", ".sac_estimator")
        for name in ("MSPS", "SACGreedyOrderMeta", "SACStats", "SACTradeOffStats")
    ),
    *((f"{_TOOLS}.ilp_utils", name, getattr(ilp_utils, name)) for name in ilp_utils.__all__),
    *((f"{_TOOLS}.sac_ilp", name, getattr(sac_ilp, name)) for name in sac_ilp.__all__),
)


def _module(name: str) -> types.ModuleType | None:
    """A module of torch. Where ``sac_ilp`` cannot be imported, as it needs pulp, an empty one is put in its place."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return types.ModuleType(name) if name == f"{_TOOLS}.sac_ilp" else None  # this torch does not have it


@contextlib.contextmanager
def drop_in() -> Iterator[None]:
    """Replace torch's trackers and estimators with modscope's, for the tools that are created inside, such as
    ``FlopCounterMode`` and ``DebugMode``, and for what is imported inside from ``torch.distributed._tools``.

        with modscope.drop_in():
            from torch.distributed._tools.sac_ilp import sac_milp

            counter = FlopCounterMode(depth=3)

    At the end torch's trackers are restored, except where the program has assigned something else meanwhile.
    """
    replaced = []
    stand_ins: dict[str, types.ModuleType] = {}
    for name, attribute, ours in _NAMES:
        module = stand_ins.get(name) or _module(name)
        if module is not None and name not in sys.modules:
            sys.modules[name] = stand_ins[name] = module
        if module is None or (name not in stand_ins and not hasattr(module, attribute)):
            continue
        replaced.append((module, attribute, getattr(module, attribute, None), ours))
        setattr(module, attribute, ours)
    try:
        yield
    finally:
        for module, attribute, theirs, ours in reversed(replaced):
            if getattr(module, attribute) is ours:
                setattr(module, attribute, theirs)
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
