"""``modscope fit`` on captures: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
import pathlib

import capture_helpers
import modscope
import pytest
from fit_runs import Net, train
from modscope.__main__ import main
from modscope._fit import text as _fit_text
from modscope._fit import verdict
from modscope._fit.job import Job
from modscope._show.pages import fit as _fit_page
from modscope._show.terminal import Screen
from modscope._virtual.gpus import Gpu

import torch

FILE = Screen(wraps=False)


def tiny(capacity: int) -> Gpu:
    return Gpu("tiny", "Tiny GPU", capacity, (9, 0), 1, context=0)


def lines(path: pathlib.Path, capacity: int) -> list[str]:
    return _fit_text.lines_of(verdict.answer(Job(str(path)), tiny(capacity)), FILE)


def test_a_run_that_fits(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run.msc")
    assert main(["fit", str(tmp_path / "run.msc"), "--gpu", "t4", "--json", str(tmp_path / "fit.json")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("cpu allocated ") and out[0].endswith(
        "T4 has 14.1 GiB beside the context: it fits, with 14.1 GiB to spare."
    )
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


def test_what_cannot_fit_says_why(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc")
    job = Job(str(tmp_path / "run.msc"))
    out = lines(tmp_path / "run.msc", 10_000)
    assert out[-1].startswith("None of this makes it fit: with the change that needs least, ")
    assert "Parameters, gradients and optimizer state alone are " in out[-1]
    rest = verdict.answer(job, tiny(10_000)).rest
    assert rest < job.replay().reserved
    least = min(tried.outcome.reserved for tried in verdict.answer(job, tiny(rest + 1)).tried)
    out = lines(tmp_path / "run.msc", (rest + least) // 2)  # they would fit: it is something else
    assert (
        out[-1].startswith("None of this makes it fit: ")
        and "alone" not in out[-1]
        and "smaller batch would help" in out[-1]
    )


def test_files_that_exist_are_not_replaced(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run.msc")
    file = tmp_path / "fit.json"
    file.write_text("mine")
    words = ["fit", str(tmp_path / "run.msc"), "--gpu", "t4", "--json", str(file)]
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.out == "" and "exists already" in said.err and file.read_text() == "mine"
    assert main([*words, "-f"]) == 1 and file.read_text() == "mine"
    file.write_text('{"command": "fit", ')
    assert main(words) == 0
    assert json.loads(file.read_text())["gpus"]


def test_damaged_notes_make_figures_rough(tmp_path: pathlib.Path) -> None:
    c = capture_helpers.train()
    for slot in range(1, 9):
        c.note("saved", slot)
    payload, data = bytes(c.notes), bytearray(c.end(how="finished"))
    (tmp_path / "whole.msc").write_bytes(data)
    assert data.count(payload) == 1
    data[data.index(payload) + 1] ^= 255
    (tmp_path / "damaged.msc").write_bytes(data)
    for name, expected in (("whole", False), ("damaged", True)):
        found = verdict.answer(Job(str(tmp_path / f"{name}.msc")), tiny(10_000))
        assert verdict.as_json(found)["has_damaged_notes"] is expected
        assert any("figures are rough" in line for line in _fit_text.lines_of(found, FILE)) is expected
        assert not found.job.is_lower_bound


def uneven_run(path: pathlib.Path) -> None:
    """Every step allocates larger blocks than the one before, which find no place in the free segments."""
    c = capture_helpers.Capture(("cpu", "cuda:0"), program="train.py", arguments="", pid="1", torch="2.13.0")
    net = c.module("Net")
    c.claim(c.add(20 << 20, 1), "Parameter", net)
    for step in range(3):
        c.step()
        c.where("forward", net)
        for size in (30, 40, 50):
            c.drop(c.add(size + step << 20, 1))
            c.wait(1000)
        c.where("optimizer", 0)
        if step == 0:
            c.claim(c.add(40 << 20, 1), "Optstate", net)
        c.optimizer_step()
    path.write_bytes(c.end(how="finished"))


def test_no_row_that_fits_reserves_more_than_the_gpu_has(tmp_path: pathlib.Path) -> None:
    uneven_run(tmp_path / "run.msc")
    job, capacity = Job(str(tmp_path / "run.msc")), 100 << 20
    found = verdict.answer(job, tiny(capacity))
    (tried,) = [tried for tried in found.tried if tried.outcome.retries and tried.outcome.fits]
    assert tried.lever.name == "optimizer and its state on the CPU" and tried.outcome.reserved > capacity
    (row,) = [line for line in _fit_text.lines_of(found, FILE) if line.startswith(f"  {tried.lever.name}")]
    assert " 90.00 MiB  yes " in row and row.endswith("and the allocator gives memory back 2 times")
    for lever in verdict.as_json(found)["levers"]:
        assert lever["fits"] == (lever["to_spare"] >= 0) == (lever["reserved_on_gpu"] <= capacity)
    levers = _fit_page.changes(found, (0, job.stream.events))["fit"]["levers"]
    (shown,) = [lever for lever in levers if lever["name"] == tried.lever.name]
    assert shown["reserved"] == 90 << 20 and "at most with unlimited memory" in shown["text"]
    assert (
        "It fits Tiny GPU, where it reserves 90.00 MiB at most, as the allocator gives free segments back."
        in shown["text"]
    )


def test_inferred_figures_of_fsdp2_are_said_to_be_about_right(tmp_path: pathlib.Path) -> None:
    uneven_run(tmp_path / "run.msc")
    found = verdict.answer(Job(str(tmp_path / "run.msc")), tiny(100 << 20))

    def said(found: verdict.Answer) -> tuple[str, list[str], list[str]]:
        (row,) = [line for line in _fit_text.lines_of(found, FILE) if line.startswith("  FSDP2 over 2 GPUs")]
        approximate = [lever["name"] for lever in verdict.as_json(found)["levers"] if lever["is_approximate"]]
        levers = _fit_page.changes(found, (0, found.job.stream.events))["fit"]["levers"]
        assert approximate == [lever["name"] for lever in levers if lever["is_approximate"]]
        return row, approximate, [lever["name"] for lever in levers if "reserves about " in lever["text"]]

    row, *names = said(found)
    assert " about 182.00 MiB " in row and names == [["FSDP2 over 2 GPUs"]] * 2
    assert "<=" not in "\n".join(_fit_text.lines_of(found, FILE))
    row, *names = said(found._replace(tried=[tried._replace(is_verified=True) for tried in found.tried]))
    assert "about" not in row and " 182.00 MiB " in row and names == [[], []]


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
    assert any(
        "ended in step 3: figures are those of the 2 whole steps before" in line
        for line in lines(tmp_path / "3.msc", 10_000)
    )


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
        (["a.msc", "--rank", "1"], 2, "--rank and --ranks-per-node are for scripts"),
        (["a.msc", "--ranks", "1"], 2, "give as many GPUs as the job could be sharded over"),
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
