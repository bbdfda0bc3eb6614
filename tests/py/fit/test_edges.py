"""Captures that end early, and programs with two models in turn."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any, cast

import capture_helpers
import pytest
from fit_runs import train
from modscope.__main__ import main
from modscope._fit.job import Job
from modscope._fit.levers import checkpoints
from modscope._fit.siblings import Siblings
from modscope._fit.text import notes_on
from modscope._fit.verdict import answer, as_json
from modscope._plan.problem import check_capture
from modscope._read.load import CaptureError, load
from modscope._read.step_time import ends_within_step, step_time
from modscope._read.summary import summarize
from modscope._virtual.gpus import GPUS


def _seconds_of_step(path: pathlib.Path, whole: list[int], unfinished: int = 0) -> float:
    """``whole``: the milliseconds of steps that an optimizer ended; then one that none did."""
    run = capture_helpers.Capture()
    for time in whole:
        run.step()
        run.wait(1000 * time)
        run.optimizer_step()
    if unfinished:
        run.step()
        run.wait(1000 * unfinished)
        run.drop(run.add(512))
    path.write_bytes(run.killed())
    return step_time(load(path)).total


def test_the_step_in_which_a_run_died_does_not_tell_how_long_a_step_takes(tmp_path: pathlib.Path) -> None:
    assert _seconds_of_step(tmp_path / "a.msc", [200, 220], 40) == pytest.approx(0.22)
    assert _seconds_of_step(tmp_path / "b.msc", [220], 40) == pytest.approx(0.22)
    assert _seconds_of_step(tmp_path / "c.msc", [300, 200]) == pytest.approx(0.2)
    assert _seconds_of_step(tmp_path / "d.msc", [], 40) == pytest.approx(0.04)  # nothing better is known


def test_a_step_that_nothing_ended_has_no_time_in_any_command(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "run.msc")
    _seconds_of_step(tmp_path / "run.msc", [], 40)
    of_fit = as_json(answer(Job(path), GPUS["t4"]))["step_ms"]
    assert of_fit is summarize(path, load(path))["step_ms"] is None


def test_how_a_run_ended_tells_whether_its_last_step_is_whole() -> None:
    def ends_early(how: str | None) -> bool:
        end = {"how": how} if how else None
        return ends_within_step(SimpleNamespace(end=end, last_oom=None))  # type: ignore[arg-type]

    assert ends_early(None) and not ends_early("end") and ends_early("terminated") and ends_early("interrupted")


def test_a_file_that_was_cut_short_is_said_to_be(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "whole.msc")
    cut = tmp_path / "cut.msc"
    cut.write_bytes((tmp_path / "whole.msc").read_bytes()[:100])
    for refuse in (lambda: Job(str(cut)), lambda: check_capture(load(cut))):
        with pytest.raises(CaptureError, match="cut short"):
            refuse()


def test_a_run_that_died_in_its_first_step_is_not_said_to_fit(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "died.msc", fail_in=1)
    main(["fit", str(tmp_path / "died.msc"), "--gpu", "h200"])
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("cpu allocated at least ") and first.endswith("whether a whole step fits is not known."), (
        first
    )


def test_a_program_that_exits_with_a_failure_inside_its_first_step_is_not_said_to_fit(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.msc"

    def first_line(steps: int, is_in_step: bool, **end: str) -> str:
        run = capture_helpers.train(steps)
        if is_in_step:
            run.step()
            run.where("forward", run.module("GPT.wte"))
            run.add(9_000_000, 1)
        file.write_bytes(run.end(**end))
        assert main(["fit", str(file), "--gpu", "h200"]) == 0
        return capsys.readouterr().out.splitlines()[0]

    failed, unknown = {"how": "finished", "status": "3"}, "whether a whole step fits is not known."
    assert first_line(0, True, **failed).endswith(unknown)
    assert first_line(0, True, how="stopped", by="--seconds 5").endswith(unknown)
    assert first_line(0, True, how="terminated").endswith(unknown)
    for end in ({"how": "finished", "status": "0"}, {"how": "finished"}, {"how": "stopped", "by": "--steps 3"}):
        assert "it fits" in first_line(0, True, **end)  # as before: nothing says that a step was cut short
    for steps in (1, 3):
        assert (
            "it fits" in first_line(steps, False, **failed)
            and Job(str(file)).whole_steps == steps
            and not Job(str(file)).died
        )
        assert (
            "it fits" in first_line(steps, True, **failed)
            and Job(str(file)).whole_steps == steps
            and Job(str(file)).died
        )


def test_a_prediction_that_ended_before_it_used_the_gpu_is_not_said_to_have_run_on_the_cpu(
    tmp_path: pathlib.Path,
) -> None:
    def notes(data: bytes, device: str | None = None) -> str:
        (tmp_path / "run.msc").write_bytes(data)
        return " ".join(notes_on(Job(str(tmp_path / "run.msc"), device)))

    def run(**info: str) -> capture_helpers.Capture:
        made = capture_helpers.Capture(program="train.py", arguments="", pid="1", torch="2.13.0", **info)
        made.add(1 << 20)
        return made

    predicted = {"source": "predicted", "gpu_title": "NVIDIA H200"}
    early = run(**predicted)
    assert notes(early.killed()).startswith(
        "It was predicted on H200, but it ended before anything was allocated on the GPU: figures are"
    )
    whole = run(**predicted)
    assert notes(whole.end(how="finished")).startswith(
        "It was predicted on H200, but nothing was allocated on the GPU: figures are"
    )
    real = run(source="allocator")
    assert notes(real.killed()).startswith("It ran on the CPU, which has no caching allocator")
    used = capture_helpers.train(**predicted)
    assert notes(used.end(how="finished"), "cpu").startswith("The CPU has no caching allocator: ")
    assert notes(used.end(how="finished")) == ""


def test_the_commands_that_fit_advises_name_the_program_of_the_capture(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = capture_helpers.Capture(
        ("cpu", "cuda:0"), program="one.py", arguments="--name\nmy run", pid="1", torch="2.13.0"
    )
    run.step()
    run.where("forward", run.module("Net"))
    run.add(1 << 20, 1)
    (tmp_path / "run.msc").write_bytes(run.killed())
    assert main(["fit", str(tmp_path / "run.msc"), "--gpu", "t4", "--ranks", "8"]) == 0
    out = capsys.readouterr().out
    assert "predict the script:  modscope fit one.py --gpu t4 -- --name 'my run'\n" in out
    assert "Predict the script instead:  modscope predict --gpu t4 --ranks 8 one.py --name 'my run'\n" in out


def test_the_figures_never_replace_the_capture_or_the_script(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run.msc")
    script = tmp_path / "train.py"
    script.write_text("print()\n")
    for file in (tmp_path / "run.msc", script):
        before = file.read_bytes()
        with pytest.raises(SystemExit):
            main(["fit", str(file), "--gpu", "t4", f"--json={file}"])
        assert "is a file that is read or written otherwise: choose another name" in capsys.readouterr().err
        assert file.read_bytes() == before
    with pytest.raises(SystemExit):
        main(["predict", f"--json={script}", str(script)])
    assert (
        "is a file that is read or written otherwise: choose another name" in capsys.readouterr().err
        and script.exists()
    )


# ---- the fewest modules ----


@pytest.mark.parametrize(
    "reserved, expected", [([9, 9, 5, 9, 9, 9], 3), ([9, 9, 9, 9, 9, 5], 6), ([5] * 6, 1), ([9] * 6, None)]
)
def test_the_fewest_modules_are_found_where_more_of_them_reserve_more(
    reserved: list[int], expected: int | None
) -> None:
    """``reserved``: by the count of checkpointed modules. All allocate less with each one, and 6 is what there is."""

    def replay(edits: list[tuple[str, int]], conf: str, capacity: int) -> SimpleNamespace:
        count = len(edits)
        fits = reserved[count - 1] <= capacity
        return SimpleNamespace(allocated=7 - count, fits_at_once=fits)

    members = [(f"Net.h.{i}", [SimpleNamespace(number=i)]) for i in range(6)]
    job = SimpleNamespace(replay=replay, share_of_step=lambda calls, kept: 0.1, has_gpu_times=True)
    case: Any = SimpleNamespace(job=job, capacity=6)
    found = checkpoints.fewest(case, Siblings("Net.h.*", cast(Any, members)))
    assert (found and len(found.lever.modules)) == expected
