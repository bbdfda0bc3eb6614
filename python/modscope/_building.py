"""torch's global registration hooks, by which modscope sees the parameters of a model that is being built."""

from __future__ import annotations

from typing import Any

from torch.nn.modules import module as module_file

from modscope import _native

# What registers a hook, the dict of the hooks, and the C function that torch is to call.
_HOOKS = (
    ("register_module_parameter_registration_hook", "_global_parameter_registration_hooks", _native.parameter_registered),
    ("register_module_buffer_registration_hook", "_global_buffer_registration_hooks", _native.buffer_registered),
    ("register_module_module_registration_hook", "_global_module_registration_hooks", _native.module_registered),
)


def register_hooks() -> list[Any]:
    """Returns the handles that remove the hooks. A torch without such hooks has none."""
    try:
        return [getattr(module_file, register)(hook) for register, _, hook in _HOOKS if hasattr(module_file, register)]
    except BaseException:  # An interrupt may come when a hook is registered and its handle is not known yet.
        for _, name, own in _HOOKS:
            hooks = getattr(module_file, name, {})
            for key in [key for key, hook in hooks.items() if hook is own]:
                del hooks[key]
        raise
