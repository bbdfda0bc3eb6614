"""The modules, optimizers and tensors in what ``MemTracker.track_external`` is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

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
            raise TypeError(
                f"Object of type {type(each)} is not supported for tracking. "
                "Only modules, optimizers and tensors, and containers of them, are supported."
            )
        found += inside
    return found
