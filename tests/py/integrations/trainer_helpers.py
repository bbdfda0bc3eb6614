"""What the tests of the trainers' callbacks share. It contains no expected values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from modscope._trackers import mem_tracker

import torch
from torch import nn

TOO_MUCH = 1 << 50
CATEGORIES = ("parameter", "buffer", "gradient", "activation", "temp", "optstate", "other")


class Net(nn.Module):
    """At a given call it raises the given error, or allocates more memory than there is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        self.calls = 0
        self.at: dict[int, BaseException | int] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        what = self.at.get(self.calls)
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            torch.empty(what, dtype=torch.uint8)
        return self.body(x)


def parameter_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def left_behind() -> list[object]:
    """Trackers that were not left."""
    return mem_tracker.active_trackers()


@pytest.fixture(autouse=True)
def balanced() -> Iterator[None]:
    """However the training ended, every tracker was left."""
    assert not left_behind()
    yield
    assert not left_behind()
