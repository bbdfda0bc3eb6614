"""Register global hooks in torch, all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple


class GlobalHook(NamedTuple):
    register: str
    """What registers it: a function of the torch module. A torch that has no such function gets no hook."""
    hooks: str
    """The dict of the hooks, in the same module."""
    hook: Callable[..., Any]


def register_all(torch_module: ModuleType, wanted: Sequence[GlobalHook]) -> list[Any]:
    """Returns the handles that remove the hooks."""
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
