"""Captures of real runs: `load` has the figures of `MemTracker`, and every command prints them."""

import sys

import pytest
from modscope import MemTracker, load, record
from modscope.__main__ import main
from real_runs import RUNS, STEPS, checkpointed, mlp, train

import torch


@pytest.fixture(scope="module", params=RUNS, ids=lambda make: make.__name__)
def recorded(request, tmp_path_factory):
    """A capture, and a MemTracker that was active at the same time."""
    tracker = MemTracker()
    path = tmp_path_factory.mktemp("recorded") / "run.msc"
    with tracker, record(path):
        train(request.param)
        tracker.get_tracker_snapshot()  # claims what is held
    return path, tracker


def in_words(snapshot):
    """Without the entries that hold nothing."""
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
    end = capture.snapshot(capture.event_count)
    assert in_words(end.totals) == in_words(now)
    assert modules_in_words(end.by_module()) == modules_in_words(modules)


def test_steps_of_a_run(recorded):
    steps = list(load(recorded[0]).steps())
    assert [step.number for step in steps] == list(range(STEPS + 1))
    assert max(step.peaks["cpu"] for step in steps) == load(recorded[0]).peaks["cpu"].bytes
    assert all(before.end == after.begin for before, after in zip(steps, steps[1:]))


@pytest.mark.parametrize("columns", ["60", "200"])
@pytest.mark.parametrize(
    "words", [["summary"], ["tree", "--at", "step:2"], ["tree", "--by", "category"], ["blocks"], ["leaks"]]
)
def test_every_command(recorded, capsys, monkeypatch, words, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main([words[0], str(recorded[0]), *words[1:]]) == 0
    out, err = capsys.readouterr()
    *lines, following = out.splitlines()
    lines = [line for line in lines if ":  modscope " not in line]  # A command is never cut.
    assert err == "" and max(map(len, lines)) <= int(columns) and ":  modscope " in following


def test_what_a_list_keeps_is_a_leak(tmp_path, capsys):
    kept: list[torch.Tensor] = []
    with record(tmp_path / "run.msc"):
        train(mlp, kept)
    assert main(["leaks", str(tmp_path / "run.msc")]) == 0
    out = capsys.readouterr().out
    assert "3 blocks allocated in 3 steps (1 to 3)" in out and "3 x 4 B" in out


def test_an_honest_run_has_no_leak(recorded, capsys):
    assert main(["leaks", str(recorded[0])]) == 0
    assert "No leaks" in capsys.readouterr().out


def test_two_runs_side_by_side(tmp_path, capsys):
    for name, make in (("a.msc", mlp), ("b.msc", checkpointed)):
        with record(tmp_path / name):
            train(make)
    assert main(["diff", "--no-group", str(tmp_path / "a.msc"), str(tmp_path / "b.msc")]) == 0
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
        pytest.skip("the fallback does not report failed allocations")
    assert main(["tree", str(tmp_path / "run.msc"), "--at", "oom"]) == 0
    assert "when an allocation of 1.00 PiB failed" in capsys.readouterr().out
