"""Replays of runs on a virtual GPU, whose allocator is the model: reserved bytes, without edits and with
checkpoints."""

from __future__ import annotations

import os
import pathlib
import re

import pytest
from modscope import _capture
from virtual_helpers import needs_interception, run

pytestmark = needs_interception

PROGRAM = """
from torch.utils.checkpoint import checkpoint
import modscope

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (8, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.attend, self.norm2 = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.wide, self.act, self.narrow = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.narrow(self.act(self.wide(self.norm2(x))))

class Net(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.h = nn.ModuleList(Block(512) for _ in range(6))
        self.head = nn.Linear(512, 5000)
        self.checkpointed = checkpointed

    def forward(self, x):
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)

with modscope.record(PATH):
    model = Net(CHECKPOINTED).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(16, 512, 512).cuda(), torch.zeros(16 * 512, dtype=torch.long, device="cuda")
    for _ in range(3):
        nn.functional.cross_entropy(model(x).flatten(0, 1), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


def train(path: pathlib.Path, version: str, checkpointed: bool) -> tuple[int, int]:
    """Train on a virtual GPU. Returns the allocated and the reserved peak."""
    (line,) = run(f"PATH, CHECKPOINTED = {str(path)!r}, {checkpointed}\n{PROGRAM}", version=version)
    allocated, reserved = map(int, line.split())
    return allocated, reserved


def load(path: pathlib.Path) -> tuple[_capture.Reader, _capture.Stream, int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        reader = _capture.Reader(fd)
    finally:
        os.close(fd)
    return reader, _capture.Stream(reader), reader.devices.index("cuda:0")


@pytest.mark.parametrize("version", ["2.11", "2.13"])
def test_replays_and_checkpoints(version: str, tmp_path: pathlib.Path) -> None:
    allocated, reserved = train(tmp_path / "plain.msc", version, False)
    reader, stream, device = load(tmp_path / "plain.msc")
    plain = stream.replay(device, version=version)
    assert (plain["allocated_peak"], plain["reserved_peak"], plain["disagreements"]) == (allocated, reserved, 0)

    less_allocated, less_reserved = train(tmp_path / "real.msc", version, True)
    layers = [bool(re.search(r"\.h\.\d$", name)) for name, *_ in reader.paths]
    edits = [("checkpoint", i) for i, call in enumerate(stream.calls(device)) if layers[call[0]]]
    assert len(edits) == 18
    edited = stream.replay(device, edits, version=version)
    assert less_reserved < 0.8 * reserved
    assert (edited["allocated_peak"], edited["reserved_peak"]) == (less_allocated, less_reserved)


STREAMS = """
import random
import modscope
with modscope.record(PATH):
    choose = random.Random(3)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    kept, first = [], torch.empty(100, dtype=torch.uint8, device="cuda")
    for _ in range(2000):
        with torch.cuda.stream(choose.choice(streams)):
            # Sizes just below a block that is free: what is left of it is not split off, and belongs to the block.
            bytes = choose.choice([100, 600, 900_000, (1 << 20) + 1, (20 << 20) - choose.randrange(1 << 20)])
            kept.append(torch.empty(bytes, dtype=torch.uint8, device="cuda"))
        while len(kept) > 60 or (kept and choose.random() < 0.45):
            del kept[choose.randrange(len(kept))]
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:30"])
def test_a_replay_has_reserved_as_much_at_every_event(conf: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "streams.msc"
    environment = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
    (line,) = run(f"PATH = {str(path)!r}\n{STREAMS}", **environment)
    reader, stream, device = load(path)
    replayed = stream.replay(device, version="2.13", conf=conf or None)
    assert (replayed["allocated_peak"], replayed["reserved_peak"]) == tuple(map(int, line.split()))
    assert replayed["requests"] > 2000 and replayed["disagreements"] == 0
    requests = {kind for _, kind, _, _ in reader.notes()}
    assert {"requested", "stream"} <= requests
