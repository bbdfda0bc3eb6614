"""Captures of real runs, for pages to look at."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from modscope import record
from page_by_hand import HOSTILE
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


def mlp() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        model(torch.ones(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@functools.cache
def example() -> Any:
    """examples/gpt.py"""
    path = pathlib.Path(__file__).parents[4] / "examples" / "gpt.py"
    spec = importlib.util.spec_from_file_location("example_gpt", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpt(batch: int = 4, steps: int = 4, layers: int = 4, width: int = 64, length: int = 64) -> None:
    torch.manual_seed(0)
    words = 200
    model = example().GPT(words, length, width, 4, layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        text = example().make_text(words, batch, length, "cpu")
        F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = checkpoint(stage, x, use_reentrant=False)
        return self.head(x.mean((2, 3)))


def cnn() -> None:
    """Checkpointed, and it keeps something of every step."""
    kept = []
    model = CNN()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        out = model(torch.ones(8, 3, 32, 32))
        kept.append(out)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def dies() -> None:
    """As examples/gpt.py --out-of-memory does: of the last batch."""
    torch.manual_seed(0)
    model = example().GPT(200, 64, 64, 4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (4, 4, 10**9):
        text = example().make_text(200, 4, 64, "cpu")[:1].expand(batch, -1)
        F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()


LINES = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 256)

    def forward(self, x):
        hidden = torch.relu(self.inner(x).sin())
        return mix(hidden, hidden.mT)


def mix(a, b):
    return a @ b


def main():
    kept = []
    net = Net()
    for _ in range(6):
        kept.append(torch.zeros(1000))
        net(torch.ones(128, 256)).sum().backward()
        net.zero_grad()
"""


def recorded_lines(path: pathlib.Path) -> None:
    """A program in a file of its own, beside the capture, with all its frames. It was written before it ran, and keeps
    something of every step."""
    script = path.with_suffix(".py")
    script.write_text(LINES)
    os.utime(script, (1e9, 1e9))
    names: dict[str, Any] = {}
    exec(compile(LINES, str(script), "exec"), names)
    recorded(path, names["main"], stacks=8)


def recorded_hostile_lines(path: pathlib.Path) -> None:
    """Files and functions with the names of HOSTILE."""
    runs = []
    for name in HOSTILE[:8]:
        names: dict[str, Any] = {"torch": torch}
        exec(compile("def made():\n    return torch.zeros(1000)\n", name.replace("\0", "0"), "exec"), names)
        names["made"].__code__ = names["made"].__code__.replace(co_qualname=name)
        runs.append(names["made"])
    kept: list[torch.Tensor] = []
    recorded(path, lambda: kept.extend(run() for run in runs))


class Busy(nn.Module):
    """Makes blocks of many sizes, each time others, and drops them sooner or later."""

    def __init__(self, blocks: int, seed: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.chance = random.Random(seed)
        self.sizes = [self.chance.choice((1, 3, 16, 50)) * self.chance.randrange(1, 500) for _ in range(20_000)]
        self.places = [self.chance.randrange(32) for _ in range(20_000)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held: list[torch.Tensor | None] = [None] * 32
        first = self.chance.randrange(20_000 - self.blocks)
        last = first + self.blocks
        empty = torch.empty
        for size, place in zip(self.sizes[first:last], self.places[first:last]):
            held[place] = empty(size)
        return x


def million() -> None:
    """A million events: 100 steps of 20 modules that make 250 blocks each, and drop them."""
    layers = [nn.Sequential(Busy(250, 2 * i), Busy(250, 2 * i + 1)) for i in range(10)]
    model = nn.Sequential(nn.Linear(8, 8), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- captures ----


@functools.cache
def warm() -> None:
    """The first step of a process takes seconds: torch imports more of itself."""
    mlp()


def recorded(path: pathlib.Path, run: Callable[[], None], stacks: int = 1) -> None:
    warm()
    try:
        with record(path, stacks=stacks):
            run()
    except RuntimeError as error:
        assert "alloc" in str(error), error


@contextlib.contextmanager
def as_rank(number: int) -> Iterator[None]:
    before = {word: os.environ.get(word) for word in ("RANK", "WORLD_SIZE")}
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    try:
        yield
    finally:
        for word, value in before.items():
            os.environ.pop(word) if value is None else os.environ.update({word: value})


def recorded_as_rank(path: pathlib.Path, number: int) -> None:
    with as_rank(number):
        recorded(path, lambda: gpt(batch=2 + 2 * number, steps=3, layers=2 + number))


REAL: dict[str, Callable[[pathlib.Path], None]] = {
    "mlp": lambda path: recorded(path, mlp),
    "gpt": lambda path: recorded(path, gpt),
    "cnn": lambda path: recorded(path, cnn),
    "oom": lambda path: recorded(path, dies),
    "lines": recorded_lines,
    "hostile-lines": recorded_hostile_lines,
    "no-lines": lambda path: recorded(path, mlp, stacks=0),
    "rank0": lambda path: recorded_as_rank(path, 0),
    "rank1": lambda path: recorded_as_rank(path, 1),
    "million": lambda path: recorded(path, million),
}
