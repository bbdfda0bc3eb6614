"""torch's global hooks, by which modscope sees the parameters of a model that is being built, and where optimizer steps
are not intercepted, when a step begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from torch.nn.modules import module as module_file
from torch.optim import optimizer as optimizer_module

import torch
from modscope import _native


class _GlobalHook(NamedTuple):
    register: str
    """What registers it: a function of the torch module. A torch that has no such function gets no hook."""
    hooks: str
    """The dict of the hooks, in the same module."""
    hook: Callable[..., Any]


def _register_all(torch_module: ModuleType, wanted: Sequence[_GlobalHook]) -> list[Any]:
    """Register all of the hooks or none. Returns the handles that remove them."""
    try:
        return [
            getattr(torch_module, each.register)(each.hook) for each in wanted if hasattr(torch_module, each.register)
        ]
    except BaseException:  # An interrupt may come when a hook is registered and its handle is not known yet.
        for each in wanted:
            hooks = getattr(torch_module, each.hooks, {})
            for key in [key for key, hook in hooks.items() if hook is each.hook]:
                del hooks[key]
        raise


# ---- parameters of a model that is being built ----

_BUILDING_HOOKS = (
    _GlobalHook(
        "register_module_parameter_registration_hook",
        "_global_parameter_registration_hooks",
        _native.parameter_registered,
    ),
    _GlobalHook(
        "register_module_buffer_registration_hook", "_global_buffer_registration_hooks", _native.buffer_registered
    ),
    _GlobalHook(
        "register_module_module_registration_hook", "_global_module_registration_hooks", _native.module_registered
    ),
)


def register_building_hooks() -> list[Any]:
    """Register the hooks of parameters, buffers and modules that are registered. Returns the handles that remove
    them."""
    return _register_all(module_file, _BUILDING_HOOKS)


# ---- optimizer steps ----
#
# The hooks are Python functions because dynamo traces them into a compiled step, where they do nothing. A C function
# would break the graph. They cost two Python frames per step.


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return None
    _native.optimizer_step_begins(optimizer)
    return args, _native.OptimizerStepArguments(kwargs)


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        _native.optimizer_step_ends(optimizer)


def _with_subclasses(kind: Any) -> list[Any]:
    return [kind, *(below for subclass in kind.__subclasses__() for below in _with_subclasses(subclass))]


def list_optimized() -> list[object]:
    """The first parameter of each optimizer that the program has, or the optimizer itself if it has none. If there are
    any, a training step ends only with an optimizer step: a root module that is called twice before that processes
    micro-batches of one step. Optimizers of the same parameters count once: one wraps the other."""
    # torch sets `hooked` on an optimizer class when it first creates one: without it, the objects need no search.
    if not any(getattr(kind.step, "hooked", False) for kind in _with_subclasses(torch.optim.Optimizer)):
        return []
    first = map(_first_parameter, _native.living_instances(torch.optim.Optimizer))
    return list({id(parameter): parameter for parameter in first}.values())


def _first_parameter(optimizer: torch.optim.Optimizer) -> object:
    try:
        return optimizer.param_groups[0]["params"][0]
    except Exception:  # a class of the program's may do anything
        return optimizer


_STEP_HOOKS = (
    _GlobalHook("register_optimizer_step_pre_hook", "_global_optimizer_pre_hooks", _before),
    _GlobalHook("register_optimizer_step_post_hook", "_global_optimizer_post_hooks", _after),
)


def register_step_hooks() -> list[Any]:
    """Register the hooks of optimizer steps. Returns the handles that remove them."""
    return _register_all(optimizer_module, _STEP_HOOKS)
