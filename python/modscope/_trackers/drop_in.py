"""``drop_in``: torch's own tools use modscope's trackers instead of torch's."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from modscope._trackers.fsdp_mem_tracker import FSDPMemTracker
from modscope._trackers.memory_tracker import MemoryTracker
from modscope._trackers.module_tracker import ModTracker, ModuleTracker

# The module and attribute by which torch refers to its tracker, and the tracker that replaces it.
_NAMES: tuple[tuple[str, str, type], ...] = (
    ("torch.utils.module_tracker", "ModuleTracker", ModuleTracker),
    ("torch.utils.flop_counter", "ModuleTracker", ModuleTracker),
    ("torch.distributed._tools.mod_tracker", "ModTracker", ModTracker),
    ("torch.distributed._tools", "ModTracker", ModTracker),
    ("torch.distributed._tools.mem_tracker", "ModTracker", ModTracker),
    ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker", FSDPMemTracker),
    ("torch.distributed._tools", "FSDPMemTracker", FSDPMemTracker),
    ("torch.distributed._tools.memory_tracker", "MemoryTracker", MemoryTracker),
    ("torch.distributed._tools", "MemoryTracker", MemoryTracker),
    ("torch.distributed._tools.runtime_estimator", "ModTracker", ModTracker),
    ("torch.distributed._tools.sac_estimator", "ModTracker", ModTracker),
)


@contextlib.contextmanager
def drop_in() -> Iterator[None]:
    """Replace torch's trackers with modscope's, for the tools that are created inside: ``FlopCounterMode``,
    ``DebugMode``, ``MemTracker``, ``RuntimeEstimator``, ``SACEstimator``.

        with modscope.drop_in():
            counter = FlopCounterMode(depth=3)

    At the end torch's trackers are restored, except where the program has assigned something else meanwhile.
    """
    replaced = []
    for module_name, attribute, ours in _NAMES:
        try:
            module = importlib.import_module(module_name)
            theirs = getattr(module, attribute)
        except (ImportError, AttributeError):
            continue  # this torch does not have it
        setattr(module, attribute, ours)
        replaced.append((module, attribute, theirs, ours))
    try:
        yield
    finally:
        for module, attribute, theirs, ours in reversed(replaced):
            if getattr(module, attribute) is ours:
                setattr(module, attribute, theirs)
