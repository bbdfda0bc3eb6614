"""``ModuleTracker`` and ``ModTracker``: the public, documented names of ``_native.Tracker``'s functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from modscope import _native

os.register_at_fork(after_in_child=_native.signals_forked)

__all__ = ["ModTracker", "ModuleTracker"]


class _Modules(Mapping[str, torch.nn.Module]):
    """A live view of the modules that a tracker knows, by fqn. It keeps no module alive."""

    def __init__(self, read: Callable[[], dict[str, torch.nn.Module]]) -> None:
        self._read = read

    def __getitem__(self, fqn: str) -> torch.nn.Module:
        return self._read()[fqn]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._read()))

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"<modules known: {', '.join(self) or 'none'}>"


class ModuleTracker(_native.Tracker):
    """Knows which modules are running, in forward or in backward.

    A context manager, and a drop-in for ``torch.utils.module_tracker.ModuleTracker``::

        with ModuleTracker() as tracker:
            model(x).sum().backward()    # anywhere inside: tracker.parents, tracker.is_bw

    The attributes ``parents``, ``stack``, ``current``, ``phase`` and ``is_bw`` are about the thread that reads them,
    at the moment of reading; ``modules`` is about all threads.
    """

    @property
    def modules(self) -> Mapping[str, torch.nn.Module]:
        """The modules seen so far, by fqn: a read-only view that keeps no module alive."""
        return _Modules(self._known_modules)


class ModTracker(ModuleTracker):
    """``ModuleTracker`` with hooks around every module's forward and backward.

    A drop-in for ``torch.distributed._tools.mod_tracker.ModTracker``.
    """

    def register_user_hooks(
        self,
        pre_fw_hook: Callable[[torch.nn.Module, Any], object] | None = None,
        post_fw_hook: Callable[[torch.nn.Module, Any, Any], object] | None = None,
        pre_bw_hook: Callable[[torch.nn.Module | None, Any], object] | None = None,
        post_bw_hook: Callable[[torch.nn.Module | None, Any], object] | None = None,
    ) -> None:
        """Register hooks that are called around the forward and backward of each module. Any may be None.

        ``pre_fw_hook(module, args)`` is called before a forward, ``post_fw_hook(module, args, output)`` after it;
        after a forward that raised, the output is None.
        ``pre_bw_hook(module, grads)`` is called when the gradient of the first output is ready: ``(grad,)``.
        ``post_bw_hook(module, grads)`` is called when the gradients of all inputs are ready: ``([grad, ...],)``.
        If no input of a call gets a gradient, it is called at the end of the backward, with ``()``.
        In backward ``module`` is None if it was deleted. While a hook runs, its module's fqn is in ``parents``.
        Backward hooks are called only for calls made while they were registered.

        Raises AssertionError if a hook of the same kind is registered already, TypeError if one is not callable.
        """
        self._register_user_hooks(pre_fw_hook, post_fw_hook, pre_bw_hook, post_bw_hook)

    def clear_user_hooks(self) -> None:
        """Remove the hooks that ``register_user_hooks`` registered."""
        self._clear_user_hooks()


class NamingTracker(ModTracker):
    """The tracker inside a ``MemTracker``, which also names modules that were not called."""

    def name_module(self, module: torch.nn.Module) -> str:
        return self._get_mod_name(module)
