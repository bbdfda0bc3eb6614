"""Have torch's own clients of the trackers use ours."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from modscope._trackers import ModTracker, ModuleTracker

# Where torch names its trackers: module, attribute, ours.
_NAMES: tuple[tuple[str, str, type], ...] = (
    ("torch.utils.module_tracker", "ModuleTracker", ModuleTracker),
    ("torch.utils.flop_counter", "ModuleTracker", ModuleTracker),
    ("torch.distributed._tools.mod_tracker", "ModTracker", ModTracker),
    ("torch.distributed._tools", "ModTracker", ModTracker),
    ("torch.distributed._tools.mem_tracker", "ModTracker", ModTracker),
    ("torch.distributed._tools.runtime_estimator", "ModTracker", ModTracker),
    ("torch.distributed._tools.sac_estimator", "ModTracker", ModTracker),
)


@contextlib.contextmanager
def drop_in() -> Iterator[None]:
    """Swap our trackers in for torch's, for what is made inside: ``FlopCounterMode``,
    ``DebugMode``, ``MemTracker``, ``RuntimeEstimator``, ``SACEstimator``.

        with modscope.drop_in():
            counter = FlopCounterMode(depth=3)

    Names that somebody changed meanwhile are left alone.
    """
    swapped = []
    for module_name, attribute, ours in _NAMES:
        try:
            module = importlib.import_module(module_name)
            theirs = getattr(module, attribute)
        except (ImportError, AttributeError):
            continue  # this torch has no such client
        setattr(module, attribute, ours)
        swapped.append((module, attribute, theirs, ours))
    try:
        yield
    finally:
        for module, attribute, theirs, ours in reversed(swapped):
            if getattr(module, attribute) is ours:
                setattr(module, attribute, theirs)
