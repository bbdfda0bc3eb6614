"""Captures of real runs: what `load` tells agrees with `MemTracker`, and every command shows it."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modscope import MemTracker, load, record
from modscope.__main__ import main

STEPS = 5


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(Block(64), nn.ReLU(), Block(64)), torch.ones(32, 64)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    return nn.Sequential(*layers), torch.ones(2, 3, 16, 16)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.ones(2, 8, 32)


def checkpointed() -> tuple[nn.Module, torch.Tensor]:
    return Checkpointed(), torch.ones(32, 64)


def train(make: Callable[[], tuple[nn.Module, torch.Tensor]], kept: list[torch.Tensor] | None = None) -> None:
    model, x = make()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if kept is not None:
            kept.append(loss)


RUNS = [mlp, cnn, transformer, checkpointed]


@pytest.fixture(params=RUNS, ids=lambda make: make.__name__)
def recorded(request, tmp_path):
    """A capture, and the MemTracker that watched the same."""
    tracker = MemTracker()
    path = tmp_path / "run.msc"
    with tracker, record(path):
        train(request.param)
        tracker.get_tracker_snapshot()  # claims what is held
    return path, tracker


def in_words(snapshot):
    """Without what holds nothing."""
    return {
        str(device): {word: value for word, value in sums.items() if value}
        for device, sums in snapshot.items()
        if sums["Total"]
    }


def modules_in_words(modules):
    return {str(device): in_words(held) for device, held in modules.items()}


def test_the_peak_is_the_trackers(recorded):
    path, tracker = recorded
    capture = load(path)
    assert not capture.is_lower_bound
    for device, peak in tracker.peak.items():
        if peak.bytes:
            captured = capture.peaks[str(device)]
            assert (captured.bytes, captured.step, captured.phase) == (peak.bytes, peak.step, peak.phase)
            assert captured.module == peak.module
    peak = capture.snapshot("peak")
    assert in_words(peak.totals) == in_words(tracker.get_tracker_snapshot("peak"))
    assert modules_in_words(peak.by_module()) == modules_in_words(tracker.get_module_snapshot("peak"))
    assert modules_in_words(peak.by_module(children=True)) == modules_in_words(
        tracker.get_module_snapshot("peak", children=True)
    )


def test_the_end_is_the_trackers(tmp_path):
    tracker = MemTracker()
    kept: list[torch.Tensor] = []
    with tracker:
        with record(tmp_path / "run.msc"):
            train(mlp, kept)
        now = tracker.get_tracker_snapshot()
        modules = tracker.get_module_snapshot()
    capture = load(tmp_path / "run.msc")
    end = capture.snapshot(capture.count)
    assert in_words(end.totals) == in_words(now)
    assert modules_in_words(end.by_module()) == modules_in_words(modules)


def test_steps_of_a_run(recorded):
    steps = list(load(recorded[0]).steps())
    assert [step.number for step in steps] == list(range(STEPS + 1))
    assert max(step.peaks["cpu"] for step in steps) == load(recorded[0]).peaks["cpu"].bytes
    assert all(before.end == after.begin for before, after in zip(steps, steps[1:]))


@pytest.mark.parametrize("columns", ["60", "200"])
@pytest.mark.parametrize("words", [["summary"], ["tree", "--at", "step:2"], ["tree", "--by", "category"], ["blocks"], ["leaks"]])
def test_every_command(recorded, capsys, monkeypatch, words, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main([words[0], str(recorded[0]), *words[1:]]) == 0
    out, err = capsys.readouterr()
    *lines, following = out.splitlines()
    assert err == "" and max(map(len, lines)) <= int(columns) and ":  modscope " in following


def test_what_a_list_keeps_is_a_leak(tmp_path, capsys):
    kept: list[torch.Tensor] = []
    with record(tmp_path / "run.msc"):
        train(mlp, kept)
    assert main(["leaks", str(tmp_path / "run.msc")]) == 0
    out = capsys.readouterr().out
    assert "3 blocks made in 3 steps (1 to 3)" in out and "3 x 4 B" in out


def test_an_honest_run_has_no_leak(recorded, capsys):
    assert main(["leaks", str(recorded[0])]) == 0
    assert "No leaks" in capsys.readouterr().out


def test_two_runs_side_by_side(tmp_path, capsys):
    for name, make in (("a.msc", mlp), ("b.msc", checkpointed)):
        with record(tmp_path / name):
            train(make)
    assert main(["diff", str(tmp_path / "a.msc"), str(tmp_path / "b.msc")]) == 0
    out = capsys.readouterr().out
    assert "Checkpointed.blocks.0.up" in out and "Sequential.0.up" in out


def test_a_run_that_raises(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError), record(tmp_path / "run.msc"):
        train(mlp)
        1 / 0
    assert main(["summary", str(tmp_path / "run.msc")]) == 0
    assert "Ended by an exception: ZeroDivisionError: division by zero" in capsys.readouterr().out


def test_a_run_that_still_goes_on(tmp_path, capsys):
    with record(tmp_path / "run.msc"):
        train(mlp)
        assert main(["summary", str(tmp_path / "run.msc")]) == 0
    assert "killed, or still runs" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="the allocation must fail")
def test_a_run_out_of_memory(tmp_path, capsys):
    with pytest.raises(RuntimeError), record(tmp_path / "run.msc") as recording:
        train(mlp)
        torch.empty(1 << 50, dtype=torch.uint8)
    if not recording.outcome.out_of_memory:
        pytest.skip("not told of by the fallback")
    assert main(["tree", str(tmp_path / "run.msc"), "--at", "oom"]) == 0
    assert "when 1.00 PiB more could not be had" in capsys.readouterr().out
