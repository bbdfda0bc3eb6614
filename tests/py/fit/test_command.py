"""``modscope fit`` on captures: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from fit_runs import Net, train

import modscope
from modscope import _fit_answer, _fit_text
from modscope.__main__ import main
from modscope._fit_job import Job
from modscope._virtual.gpus import Gpu


def tiny(capacity: int) -> Gpu:
    return Gpu("tiny", "Tiny GPU", capacity, (9, 0), 1, context=0)


def lines(path: pathlib.Path, capacity: int) -> list[str]:
    return _fit_text.lines_of(_fit_answer.answer(Job(str(path)), tiny(capacity)))


def test_a_run_that_fits(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run.msc")
    assert main(["fit", str(tmp_path / "run.msc"), "--gpu", "t4", "--json", str(tmp_path / "fit.json")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("cpu allocated ") and out[0].endswith("T4 has 14.1 GiB beside the context: it fits, with 14.1 GiB to spare.")
    assert "no caching allocator" in out[1] and len(out) == 2
    (written,) = json.loads((tmp_path / "fit.json").read_text())["gpus"]
    assert (written["gpu"], written["fits"], written["levers"], written["caching"]) == ("t4", True, [], False)


def test_all_gpus_are_a_table(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run.msc")
    assert main(["fit", str(tmp_path / "run.msc")]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in modscope.gpus)


def test_levers_of_a_run_that_does_not_fit(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", batch=1024)
    peak = Job(str(tmp_path / "run.msc")).replay().reserved
    out = lines(tmp_path / "run.msc", round(0.9 * peak))
    assert "It would fail in step " in out[0] and "short by" in out[0]
    rows = [line for line in out if line.startswith("  checkpoint")]
    assert [row.split("  ")[1] for row in rows] == ["checkpoint Net.h.0", "checkpoint Net.h.*"]
    assert all(" yes " in row and "% time" in row for row in rows)


def test_what_cannot_fit_says_what_remains(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc")
    out = lines(tmp_path / "run.msc", 10_000)
    assert out[-1].startswith("None of this makes it fit: ") and "of parameters, gradients and optimizer state remain" in out[-1]


def test_a_run_that_died_in_its_first_step(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", fail_in=1)
    out = lines(tmp_path / "run.msc", 10_000)
    assert "allocated at least" in out[0] and any("ended in its first step" in line for line in out)
    assert not any("checkpoint" in line for line in out)


def test_a_run_that_died_later_is_judged_by_its_whole_steps(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "whole.msc", steps=3)
    whole = Job(str(tmp_path / "whole.msc"))
    for step in (2, 3):
        train(tmp_path / f"{step}.msc", steps=3, fail_in=step)
        died = Job(str(tmp_path / f"{step}.msc"))
        assert (died.died, died.whole_steps) == (True, step - 1)
        assert died.replay().reserved == pytest.approx(whole.replay().reserved, rel=0.01)
    assert any("ended in step 3: figures are those of the 2 whole steps before" in line for line in lines(tmp_path / "3.msc", 10_000))


def test_a_run_without_steps(tmp_path: pathlib.Path) -> None:
    net = Net()
    with torch.no_grad(), modscope.record(tmp_path / "run.msc"):
        net(torch.randn(64, 64))
    out = lines(tmp_path / "run.msc", 10_000)
    assert any("no training steps" in line for line in out) and not any("checkpoint" in line for line in out)


def test_lost_events_make_figures_lower_bounds(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", steps=300, batch=8)
    data = bytearray((tmp_path / "run.msc").read_bytes())
    third = len(data) // 3
    data[third : 2 * third] = bytes(third)  # chunks of events and of notes
    (tmp_path / "run.msc").write_bytes(data)
    out = lines(tmp_path / "run.msc", 10_000)
    assert "allocated at least" in out[0] and any("lost or damaged" in line for line in out)


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ([], 2, "no capture is given"),
        (["absent.msc"], 1, "There is no file absent.msc"),
        (["absent.msc", "--gpu", "rtx4091"], 2, "did you mean"),
        (["a.msc", "b.msc", "c.msc"], 2, "unrecognized arguments: c.msc"),
        (["a.msc", "--frobnicate"], 2, "unrecognized arguments: --frobnicate"),
        (["a.msc", "b.msc", "--batches", "8,4"], 2, "not two batches"),
        (["a.msc", "--json", "absent/out.json"], 2, "its folder does not exist"),
    ],
)
def test_bad_arguments(words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        ended: object = main(["fit", *words])
    except SystemExit as exit:
        ended = exit.code
    assert ended == status and text in capsys.readouterr().err


def test_a_file_that_is_no_capture(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.msc").write_text("no capture")
    assert main(["fit", str(tmp_path / "text.msc")]) == 1
    assert "text.msc" in capsys.readouterr().err
