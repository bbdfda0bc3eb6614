"""torch's global registration hooks, by which modscope sees the parameters of a model that is being built."""

from __future__ import annotations

from typing import Any

from torch.nn.modules import module as module_file

from modscope import _native
from modscope._torch_hooks import GlobalHook, register_all

_HOOKS = (
    GlobalHook(
        "register_module_parameter_registration_hook",
        "_global_parameter_registration_hooks",
        _native.parameter_registered,
    ),
    GlobalHook(
        "register_module_buffer_registration_hook", "_global_buffer_registration_hooks", _native.buffer_registered
    ),
    GlobalHook(
        "register_module_module_registration_hook", "_global_module_registration_hooks", _native.module_registered
    ),
)


def register_hooks() -> list[Any]:
    """Returns the handles that remove the hooks."""
    return register_all(module_file, _HOOKS)
