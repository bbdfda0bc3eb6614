"""Captures of real runs: `load` has the figures of `MemTracker`, and every command prints them."""

import sys
from pathlib import Path

import pytest
from helpers import INTERCEPTION
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


@pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")
def test_a_forward_that_is_called_directly_is_said_to_be_no_call(tmp_path, capsys):
    class Net(torch.nn.Module):
        def forward(self, x):
            return x * 2

    for name, run in (("direct", Net().forward), ("called", Net())):
        with record(tmp_path / f"{name}.msc"):
            kept = run(torch.ones(1000))
        assert main(["summary", str(tmp_path / f"{name}.msc")]) == 0 and len(kept) == 1000
        said = " ".join(capsys.readouterr().out.split())
        about = " KiB of Global were made in a forward that no call of a module is around ("
        assert (about in said) == (name == "direct")
        assert ("Net.forward, test_reading_runs.py:" in said) == (name == "direct")


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


# ---- captures of earlier versions ----


RUNS = Path(__file__).parents[2] / "corpus" / "runs"


@pytest.fixture
def gpt():
    return load(RUNS / "gpt-0.1.0.msc")


def test_the_run_is_described_as_it_was_recorded(gpt):
    assert gpt.info["program"] == "examples/gpt.py"
    assert (gpt.info["modscope"], gpt.info["torch"]) == ("0.1.0", "2.13.0+cpu")
    assert gpt.end == {"how": "finished"}
    assert gpt.devices == ["cpu"]
    assert gpt.duration == 3.272071


def test_no_event_is_missing(gpt):
    assert gpt.event_count == 10466
    assert (gpt.lost, gpt.damaged, gpt.is_lower_bound) == (0, 0, False)
    assert sum(phase.blocks for phase in gpt.phases.values()) == 123 + 365 + 620 + 3339


def test_the_peak_is_the_one_of_the_run(gpt):
    peak = gpt.peaks["cpu"]
    assert (peak.bytes, peak.step, peak.phase, peak.module) == (126094620, 2, "backward", "Global")
    assert (peak.moment, peak.time) == (2585, 2.433092)


def test_totals_by_category_at_the_peak_include_later_claims(gpt):
    totals = gpt.snapshot(2585).totals["cpu"]
    assert {str(key): value for key, value in totals.items() if value} == {
        "Parameter": 14817280,
        "Activation": 73450568,
        "Temp": 8192000,
        "Optstate": 29634772,
        "Total": 126094620,
    }


def test_modules_hold_at_the_peak_what_they_held(gpt):
    snapshot = gpt.snapshot(2585)
    own, subtree = (snapshot.by_module(children)["cpu"] for children in (False, True))
    wanted = {
        "Global": (12296264, 12296264),
        "GPT": (1049600, 113798356),
        "GPT.blocks.0": (2097152, 26287152),
        "GPT.blocks.3.mlp.up": (7352328, 7352328),
    }
    assert {module: (own[module]["Total"], subtree[module]["Total"]) for module in wanted} == wanted


def test_nothing_is_held_at_the_end(gpt):
    assert gpt.snapshot(gpt.event_count).totals["cpu"]["Total"] == 0


def test_steps_begin_and_end_at_the_same_moments_with_the_same_peaks(gpt):
    assert gpt.last_step == gpt.optimizer_steps == 5
    assert [(step.number, step.first, step.last, step.peaks["cpu"]) for step in gpt.steps()] == [
        (0, 1, 118, 14833800),
        (1, 118, 2402, 96459848),
        (2, 2402, 4367, 126094620),
        (3, 4367, 6331, 126094620),
        (4, 6331, 8296, 126094620),
        (5, 8296, 10466, 126094620),
    ]
