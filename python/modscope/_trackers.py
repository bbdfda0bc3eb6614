"""The trackers people import: names and documents over ``_native.Tracker``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from modscope import _native

__all__ = ["ModTracker", "ModuleTracker"]


class _Modules(Mapping[str, torch.nn.Module]):
    """The modules a tracker knows, by name, as they are when asked. Keeps none of them alive."""

    def __init__(self, tracker: _native.Tracker) -> None:
        self._tracker = tracker

    def __getitem__(self, fqn: str) -> torch.nn.Module:
        return self._tracker._known_modules()[fqn]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._tracker._known_modules()))

    def __len__(self) -> int:
        return len(self._tracker._known_modules())

    def __repr__(self) -> str:
        return f"<modules known: {', '.join(self) or 'none'}>"


class ModuleTracker(_native.Tracker):
    """Tells which modules are running: their forward, or their backward.

    A context manager, and a drop-in for ``torch.utils.module_tracker.ModuleTracker``::

        with ModuleTracker() as tracker:
            model(x).sum().backward()    # anywhere inside: tracker.parents, tracker.is_bw

    Every attribute is exact at the moment it is read, for the thread that reads it:
    ``parents``, ``stack``, ``current``, ``phase``, ``is_bw``; ``modules`` is for all threads.
    """

    @property
    def modules(self) -> Mapping[str, torch.nn.Module]:
        """The modules known so far, by name: a read-only view that keeps none of them alive."""
        return _Modules(self)


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
        """Have hooks called around the forward and backward of each module. Any may be None.

        ``pre_fw_hook(module, args)`` and ``post_fw_hook(module, args, output)``: before and after
        a forward; also after one that raised, with None for output.
        ``pre_bw_hook(module, grads)``: when the gradient of the first output comes, ``(grad,)``.
        ``post_bw_hook(module, grads)``: when the gradients of all inputs came, ``([grad, ...],)``;
        at the end of the backward, with ``()``, for a call none of whose inputs gets one.
        ``module`` is None in backward if it died since. The module's name is in ``parents``
        while its hook runs. Backward hooks come for calls made while they were registered.

        Raises AssertionError if such a hook is registered already, TypeError if one is not callable.
        """
        self._register_user_hooks(pre_fw_hook, post_fw_hook, pre_bw_hook, post_bw_hook)

    def clear_user_hooks(self) -> None:
        """Forget the hooks registered with ``register_user_hooks``."""
        self._clear_user_hooks()
