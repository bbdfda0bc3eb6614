"""torch's global optimizer hooks, by which modscope sees when an optimizer step begins and ends where steps are not
intercepted.

The hooks are Python functions because dynamo traces them into a compiled step, where they do nothing. A C function
would break the graph. They cost two Python frames per step.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim import optimizer as optimizer_module

from modscope import _native
from modscope._torch_hooks import GlobalHook, register_all


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return None
    _native.optimizer_step_begins(optimizer)
    return args, _native.OptimizerStepArguments(kwargs)


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        _native.optimizer_step_ends(optimizer)


_found: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def _with_subclasses(kind: Any) -> list[Any]:
    return [kind, *(below for subclass in kind.__subclasses__() for below in _with_subclasses(subclass))]


def has_optimizer() -> bool:
    """Whether the program has an optimizer. If it has one, a training step ends only with an optimizer step: a root
    module that is called twice before that processes micro-batches of one step."""
    # torch sets `hooked` on an optimizer class when it first creates one: without it, the objects need no search.
    if not _found and any(getattr(kind.step, "hooked", False) for kind in _with_subclasses(torch.optim.Optimizer)):
        _found.update(_native.living_instances(torch.optim.Optimizer))
    return len(_found) > 0


_HOOKS = (
    GlobalHook("register_optimizer_step_pre_hook", "_global_optimizer_pre_hooks", _before),
    GlobalHook("register_optimizer_step_post_hook", "_global_optimizer_post_hooks", _after),
)


def register_hooks() -> list[Any]:
    """Returns the handles that remove the hooks."""
    return register_all(optimizer_module, _HOOKS)
