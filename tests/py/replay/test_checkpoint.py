"""The checkpoint edit of a run against the same program with torch's checkpointing, on the CPU."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import modscope
import pytest
from modscope import _capture
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.act, self.narrow = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.narrow(self.act(self.wide(self.norm(x)))))


class Plain(nn.Module):
    """Its last operator saves its own output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.b(torch.tanh(self.a(x))))


class Casting(Block):
    """Nothing keeps its input for backward but the checkpoint."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.act(self.wide(self.norm(x.double()).float())))


class Frozen(nn.Module):
    """The nodes of its last layers save nothing but weights, and need most."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.act, self.narrow = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.last = nn.Linear(width, 32 * width, bias=False).requires_grad_(False)
        self.sum = nn.Linear(32 * width, width, bias=False).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.sum(self.last(self.narrow(self.act(self.wide(x)))))


def use_memory(x: torch.Tensor) -> None:
    """As much as nothing else in the run, and not for backward."""
    with torch.no_grad():
        x.repeat(1, 512)


class Gated(nn.Module):
    """Its code saves results of its modules as operands of expressions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(torch.sigmoid(self.gate(x)) * self.up(x))
        use_memory(x)
        return x


class Sums(nn.Module):
    """The first sum is gone when the second one is there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.a(x)
        x = x + self.b(x)
        use_memory(x)
        return x


class Net(nn.Module):
    def __init__(self, kind: type[nn.Module], count: int, checkpointed: tuple[int, ...], width: int = 64) -> None:
        super().__init__()
        self.h = nn.ModuleList(kind(width) for _ in range(count))
        if kind is Casting:
            for block in self.h:
                block.norm.double()
        self.head = nn.Linear(width, 10)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.h):
            if i in self.checkpointed:
                # The state of the random numbers is memory that a run without checkpoints does not have.
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x)
        return self.head(x)


def train(path: pathlib.Path, kind: type[nn.Module], checkpointed: tuple[int, ...], steps: int, micro: int) -> None:
    torch.manual_seed(0)
    net = Net(kind, 5, checkpointed)
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(256, 64)
    with modscope.record(path):
        for _ in range(steps):
            for _ in range(micro):
                net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def load(path: pathlib.Path) -> tuple[_capture.Reader, _capture.Stream]:
    fd = os.open(path, os.O_RDONLY)
    try:
        reader = _capture.Reader(fd)
    finally:
        os.close(fd)
    return reader, _capture.Stream(reader)


def edits(reader: _capture.Reader, stream: _capture.Stream, checkpointed: tuple[int, ...]) -> list[tuple[Any, ...]]:
    wanted = re.compile(rf"\.h\.({'|'.join(map(str, checkpointed))})$")
    paths = [bool(wanted.search(name)) for name, *_ in reader.paths]
    return [("checkpoint", i) for i, call in enumerate(stream.calls(0)) if paths[call[0]]]


@pytest.mark.parametrize("kind", [Block, Plain, Casting])
@pytest.mark.parametrize("checkpointed", [(0, 1, 2, 3, 4), (1, 3), (4,)])
@pytest.mark.parametrize("micro", [1, 2])
def test_the_allocated_peak_to_the_byte(
    kind: type[nn.Module], checkpointed: tuple[int, ...], micro: int, tmp_path: pathlib.Path
) -> None:
    train(tmp_path / "plain.msc", kind, (), 3, micro)
    train(tmp_path / "real.msc", kind, checkpointed, 3, micro)
    reader, plain = load(tmp_path / "plain.msc")
    _, real = load(tmp_path / "real.msc")
    without = plain.replay(0, caching=False)["allocated_peak"]
    edited = plain.replay(0, edits(reader, plain, checkpointed), caching=False)["allocated_peak"]
    expected = real.replay(0, caching=False)["allocated_peak"]
    assert edited == expected
    if len(checkpointed) == 5:
        assert edited < 0.8 * without


@pytest.mark.parametrize("kind", [Frozen, Gated, Sums])
def test_the_peak_where_lifetimes_decide_it(kind: type[nn.Module], tmp_path: pathlib.Path) -> None:
    everything = (0, 1, 2, 3, 4)
    train(tmp_path / "plain.msc", kind, (), 2, 1)
    train(tmp_path / "real.msc", kind, everything, 2, 1)
    reader, plain = load(tmp_path / "plain.msc")
    edited = plain.replay(0, edits(reader, plain, everything), caching=False)["allocated_peak"]
    assert edited == load(tmp_path / "real.msc")[1].replay(0, caching=False)["allocated_peak"]


def test_variants_are_replays_with_other_lifetimes(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "plain.msc", Gated, (), 2, 1)
    reader, plain = load(tmp_path / "plain.msc")
    checkpoints = edits(reader, plain, (0, 1, 2, 3, 4))
    result = plain.replay(0, checkpoints, caching=False, variants=12)
    least, most = result["reserved_range"]
    assert least <= result["reserved_peak"] < most  # a variable lives until the call has ended
    assert plain.replay(0, checkpoints, caching=False)["reserved_range"] == (result["reserved_peak"],) * 2
    assert len(set(plain.replay(0, variants=12)["reserved_range"])) == 1  # without checkpoints all is known
    stopped = plain.replay(0, [*checkpoints, ("stop_above", most)], caching=False, variants=12)
    assert stopped == result
    between = plain.replay(0, [*checkpoints, ("stop_above", most - 1)], caching=False, variants=12)
    assert between["reserved_peak"] < between["reserved_range"][1] == most
    below = plain.replay(0, [*checkpoints, ("stop_above", least - 1)], caching=False, variants=12)
    assert least <= below["reserved_peak"] == below["reserved_range"][1] and below["replayed"] < result["replayed"]


def test_the_replay_of_a_run_is_its_peak(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "plain.msc", Block, (), 2, 1)
    reader, stream = load(tmp_path / "plain.msc")
    peak = reader.survey()["peaks"][0]
    result = stream.replay(0, caching=False)
    assert (result["allocated_peak"], result["allocated_at"][1:4]) == (peak[0], (peak[2], peak[3], peak[4]))
