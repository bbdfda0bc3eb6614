"""An optimizer's step begins, ends: torch's global step hooks.

They are Python, two frames a step, because dynamo traces them into a compiled step: there they
are nothing, where a C function would break the graph.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from modscope import _native


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return None
    _native.step_begins(optimizer)
    return args, _native.StepArguments(kwargs)


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        _native.step_ends(optimizer)


_seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def _classes(of: Any) -> list[Any]:
    return [of, *(below for kind in of.__subclasses__() for below in _classes(kind))]


def an_optimizer_is_there() -> bool:
    """Whether the program has one: then a root that is called again before it stepped is no new iteration."""
    if not _seen and any(getattr(kind.step, "hooked", False) for kind in _classes(torch.optim.Optimizer)):
        _seen.update(item for item in gc.get_objects() if issubclass(type(item), torch.optim.Optimizer))
    return len(_seen) > 0


def on() -> list[Any]:
    """Hang the hooks up; what to remove them with."""
    return [register_optimizer_step_pre_hook(_before), register_optimizer_step_post_hook(_after)]
