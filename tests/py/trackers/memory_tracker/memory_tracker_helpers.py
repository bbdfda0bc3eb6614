"""What the tests of MemoryTracker share: a small model whose operators are known, and what a tracker has recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import modscope

import torch
from torch import nn


class Net(nn.Module):
    """`first`, then `rest` of two layers, then an addition of its own."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.rest = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x)) + x


@contextlib.contextmanager
def monitored(root: nn.Module, **options: Any) -> Iterator[modscope.MemoryTracker]:
    tracker = modscope.MemoryTracker(**options)
    tracker.start_monitor(root)
    try:
        yield tracker
    finally:
        tracker.stop()


def names(tracker: Any) -> list[str]:
    return [name for name, _ in tracker.memories_allocated.values()]


def operator_names(tracker: Any) -> list[str]:
    """The names without the modules: "addmm.default_0"."""
    return [".".join(name.split(".")[-2:]) for name in names(tracker)]


def positions(tracker: Any, operator: str) -> list[str]:
    """Where the operators of this name ran, in order."""
    return [
        position
        for name in names(tracker)
        for position, _, rest in [name.rpartition(f".{operator}_")]
        if rest.isdigit()
    ]
