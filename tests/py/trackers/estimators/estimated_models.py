"""Models for the tests of the estimators, and a step of them under FakeTensorMode."""

from __future__ import annotations

import contextlib

from modscope import MemTracker, RuntimeEstimator, SACEstimator
from torch._subclasses.fake_tensor import FakeTensorMode

import torch
from torch import nn

WIDTH, ROWS = 32, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Frozen(Net):
    """The first block has no trained parameters, as a model with adapters."""

    def __init__(self):
        super().__init__()
        self.blocks[0].requires_grad_(False)


class Twice(nn.Module):
    """A block that is called twice, and is held under two names."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.again = self.block
        self.last = Block()
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        return self.head(self.last(self.again(self.block(x))))


class Container(nn.Module):
    """A container of one layer: nothing in it can be given back."""

    def __init__(self):
        super().__init__()
        self.only = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH))
        self.block, self.last = Block(), Block()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.last(self.down(self.only(self.block(x))))


def batch():
    return torch.randn(ROWS, WIDTH)


def step(model, x):
    model(x).sum().backward()
    model.zero_grad()


@contextlib.contextmanager
def fake():
    with FakeTensorMode():
        yield


def runtimes_of(build, mode="operator-level-cost-model", **options):
    with fake():
        model, x = build(), batch()
        estimator = RuntimeEstimator(**options)
        with estimator(mode):
            step(model, x)
    return estimator


def operators_of(build, **options):
    with fake():
        model, x = build(), batch()
        estimator = SACEstimator(**options)
        with estimator("operator-level-cost-model"):
            model(x)
    return estimator


def all_of(build):
    """The model, and the three tools under which it ran."""
    with fake():
        model, x = build(), batch()
        memory, times, operators = MemTracker(), RuntimeEstimator(gpu_type="t4"), SACEstimator(gpu_type="t4")
        memory.track_external(model)
        with memory:
            step(model, x)
            memory.reset_mod_stats()
            step(model, x)
        with times("operator-level-cost-model"):
            step(model, x)
        with operators("operator-level-cost-model"):
            model(x)
    return model, memory, times, operators
