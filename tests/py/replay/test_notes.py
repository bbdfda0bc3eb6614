"""What recordings note about blocks: what autograd saves, and what older readers do with it."""

from __future__ import annotations

import os
import pathlib

import modscope
import pytest
from helpers import INTERCEPTION
from modscope import _capture

import torch
from torch import nn

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="saved tensors are noted by interception")


def reader_of(path: pathlib.Path) -> _capture.Reader:
    fd = os.open(path, os.O_RDONLY)
    try:
        return _capture.Reader(fd)
    finally:
        os.close(fd)


def saved_bytes(reader: _capture.Reader) -> list[int]:
    """The sizes of the blocks that were noted as saved, in order."""
    notes = [note for note in reader.notes() if note[1] == "saved"]
    sizes: dict[int, int] = {}
    found = []
    for number, op, _, _, _, size, _, _, _, slot, _ in reader.events():
        found += [sizes[noted] for event, _, noted, _ in notes if event == number]
        if op == "add":
            sizes[slot] = size
    return found


def test_what_autograd_saves_in_a_module_is_noted(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
    x = torch.randn(32, 8)
    with modscope.record(tmp_path / "run.msc"):
        for _ in range(2):
            model(x).sum().backward()
            model.zero_grad()
    # tanh saves its result, and the second layer its input, which is the same block. Parameters are not noted, and x is
    # older than the recording: the first layer saves it, and it is noted too.
    sizes = saved_bytes(reader_of(tmp_path / "run.msc"))
    assert sizes.count(32 * 16 * 4) == 4
    assert 16 * 4 * 4 not in sizes


def test_without_gradients_nothing_is_noted(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
    with modscope.record(tmp_path / "run.msc"), torch.no_grad():
        model(torch.randn(32, 8))
    assert [note for note in reader_of(tmp_path / "run.msc").notes() if note[1] == "saved"] == []


def test_a_saved_input_keeps_its_category(tmp_path: pathlib.Path) -> None:
    """Data that a module's operator saves is noted and stays Other, whether or not a recording is on."""
    model = nn.Linear(1000, 10)
    with modscope.record(tmp_path / "run.msc"):
        x = torch.randn(64, 1000)
        loss = model(x).sum()
        del loss
        torch.zeros(1)
    reader = reader_of(tmp_path / "run.msc")
    snapshot = reader.snapshot(reader.event_count)
    categories = {block[2] for block in snapshot.blocks() if block[0] == 64 * 1000 * 4 or block[1] == 64 * 1000 * 4}
    assert categories == {"Other"}
    assert 64 * 1000 * 4 in saved_bytes(reader)


def test_what_calls_take_and_return_is_noted(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with modscope.record(tmp_path / "run.msc"):
        x = torch.randn(32, 8)
        model(x).sum().backward()
        optimizer.step()  # where the process has an optimizer, the step ends here, and what follows is an evaluation
        with torch.no_grad():
            model(x)
    reader = reader_of(tmp_path / "run.msc")
    uses = [(kind, slot) for _, kind, slot, _ in reader.notes() if kind in ("input", "output")]
    slots = {
        size: slot
        for _, op, _, _, _, size, _, _, phase, slot, _ in reader.events()
        if op == "add" and phase in ("idle", "forward")
    }
    given, wide = slots[32 * 8 * 4], [slot for _, slot in uses if slot != slots[32 * 8 * 4]]
    # The root and the first layer take x. The layer returns what tanh takes; tanh and the root return tanh's result.
    assert uses == [
        ("input", given),
        ("input", given),
        ("output", wide[0]),
        ("input", wide[0]),
        ("output", wide[2]),
        ("output", wide[2]),
    ]
    assert wide[0] != wide[2]


def test_a_capture_without_notes_is_replayed(tmp_path: pathlib.Path) -> None:
    from capture_helpers import train
    from slow_replay import open_capture

    reader = open_capture(train(steps=2).end(how="finished"))
    assert reader.notes() == []
    assert _capture.Stream(reader).replay(1)["reserved_peak"] > 0
