"""Which ``nn.Module`` is running right now, and which one holds each byte of memory.

    from modscope import MemTracker, ModTracker, ModuleTracker

in place of ``torch.distributed._tools.mem_tracker``, ``torch.distributed._tools.mod_tracker``
and ``torch.utils.module_tracker``.
"""

import re as _re

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        "modscope watches PyTorch, and torch cannot be imported here. "
        "Install it with: pip install torch"
    ) from error

_version = str(getattr(_torch, "__version__", "of no version"))
if [int(part) for part in _re.findall(r"\d+", _version)[:2]] < [2, 4]:
    raise ImportError(
        f"modscope needs torch 2.4 or newer, and this is torch {_version}. "
        "Install a newer one with: pip install --upgrade torch"
    )

from modscope._dropin import drop_in
from modscope._figures import Category, ModuleStats, Peak, State
from modscope._memory import MemTracker
from modscope._native import version as __version__
from modscope._places import doctor
from modscope._trackers import ModTracker, ModuleTracker

__all__ = [
    "Category",
    "MemTracker",
    "ModTracker",
    "ModuleStats",
    "ModuleTracker",
    "Peak",
    "State",
    "__version__",
    "doctor",
    "drop_in",
]
