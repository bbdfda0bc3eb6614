"""The modules, optimizers and tensors in what ``MemTracker.track_external`` is given."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, Mapping, Set
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

import torch
from modscope._torch.dispatch import is_fake

_KINDS = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)


def _leaves(value: Any) -> Iterator[Any]:
    """What is in nested containers: of any mapping, sequence, set or dataclass, and of types that pytree knows."""
    if isinstance(value, _KINDS):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple, Set)):
        for item in value:
            yield from _leaves(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name, None))
    else:
        found = tree_leaves(value)
        if len(found) == 1 and found[0] is value:
            yield value
        else:
            for item in found:
                yield from _leaves(item)


def find_trackable(given: tuple[Any, ...]) -> list[Any]:
    """What is in each of the given objects. TypeError for one that holds something, and nothing that can be tracked:
    it is a mistake, while a state dict with a few strings in it is not."""
    found = []
    for each in given:
        leaves = [leaf for leaf in _leaves(each) if leaf is not None]
        inside = [leaf for leaf in leaves if isinstance(leaf, _KINDS)]
        if leaves and not inside:
            what = (
                f"Object of type {type(each)} is not supported for tracking"
                if len(leaves) == 1 and leaves[0] is each
                else f"There is nothing to track in this object of type {type(each)}"
            )
            raise TypeError(f"{what}. Only modules, optimizers and tensors, and containers of them, are supported.")
        found += inside
    return found


def _own_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None for one that is fake, or that consists of other tensors (a subclass, a sparse
    tensor)."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or is_fake(tensor):
        return None
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # It has none.
        return None


class GivenTensor:
    """A tensor that was given, without keeping it alive.

    The values of a state dict are tensors that only the dict holds. What stays is the storage that they share with the
    model's own tensors, so the storage is remembered too.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        storage = _own_storage(tensor)
        self._storage = None if storage is None else weakref.ref(storage)
        self.key = id(tensor if storage is None else storage)

    def get(self) -> torch.Tensor | None:
        """The tensor, or another one with its storage; None if both are gone."""
        tensor = self._tensor()
        storage = self._storage() if tensor is None and self._storage else None
        if storage is None:
            return tensor
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # the program's modes do not see it
            return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
