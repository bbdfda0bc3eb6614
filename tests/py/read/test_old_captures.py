"""Captures of real runs that earlier versions wrote are still read, and give the same figures.

`tests/corpus/runs/gpt-0.1.0.msc` is `modscope run examples/gpt.py` with modscope 0.1.0 and torch 2.13.0 on a CPU."""

from pathlib import Path

import pytest
from modscope import load

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
