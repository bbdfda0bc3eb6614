"""A capture of a run that died, beside one of the same program that did not."""

from __future__ import annotations

import pathlib

import pytest
from fit_runs import train
from modscope.__main__ import main
from modscope._fit.job import Job
from modscope._fit.two_captures import join
from modscope._fit.verdict import answer
from modscope._read.load import CaptureError
from modscope._virtual.gpus import find_gpu


def job(path: pathlib.Path, **options: int) -> Job:
    train(path, **options)  # type: ignore[arg-type]
    return Job(str(path))


def test_what_is_missing_is_taken_from_the_whole_run(tmp_path: pathlib.Path) -> None:
    whole = job(tmp_path / "whole.msc")
    for step in (1, 2):
        died = job(tmp_path / f"died{step}.msc", fail_in=step)
        for pair in ((died, whole), (whole, died)):
            judged, (about,) = join(*pair)
            assert judged is whole
            assert (
                f"died{step}.msc ends in step {step}" in about
                and f"forward of Net.head. Figures are those of {whole.file}" in about
            )
            assert about.endswith("differ by 0.0 %.")


def test_the_limit_of_the_run_that_died_is_obeyed(tmp_path: pathlib.Path) -> None:
    whole, died = job(tmp_path / "whole.msc"), job(tmp_path / "died.msc", fail_in=1)
    died.fraction, gpu = 0.25, find_gpu("8GiB")
    judged, _ = join(died, whole)
    assert judged.may_reserve(gpu) == answer(judged, gpu).capacity == 2 << 30


def test_captures_that_do_not_suit_each_other_are_refused(tmp_path: pathlib.Path) -> None:
    whole, died = job(tmp_path / "whole.msc"), job(tmp_path / "died.msc", fail_in=1)
    with pytest.raises(CaptureError, match=r"in step 1 they call Net.head in one and Net.h.4 in the other"):
        join(died, job(tmp_path / "deeper.msc", count=5))
    with pytest.raises(
        CaptureError, match=r"holds .* at most and .*: give a capture of the same program with the same arguments"
    ):
        join(died, job(tmp_path / "larger.msc", batch=1024))
    with pytest.raises(CaptureError, match="Record more steps of it"):
        join(job(tmp_path / "late.msc", fail_in=3), job(tmp_path / "short.msc", steps=1))
    with pytest.raises(CaptureError, match="Both runs died"):
        join(died, died)
    with pytest.raises(CaptureError, match="Neither run died"):
        join(whole, whole)


def test_the_commands_take_both(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    train(pathlib.Path("whole.msc"), batch=1024)
    train(pathlib.Path("died.msc"), batch=1024, fail_in=1)
    assert main(["fit", "died.msc", "--gpu", "t4"]) == 0
    assert "what would follow is not known" in capsys.readouterr().out
    assert main(["fit", "died.msc", "whole.msc", "--gpu", "t4"]) == 0
    out = capsys.readouterr().out
    assert "died.msc ends in step 1" in out and "not known" not in out
    budget = str(round(0.8 * Job("whole.msc").replay().reserved))
    assert main(["plan", "died.msc", "--budget", budget]) == 1
    assert "has no optimizer step" in capsys.readouterr().err
    assert main(["plan", "died.msc", "whole.msc", "--budget", budget]) == 0
    out = capsys.readouterr().out
    assert "Figures are those of whole.msc" in out and "Checkpoint\n  Net.h" in out
    assert main(["plan", "whole.msc", "whole.msc", "--budget", budget]) == 1
    assert "Neither run died" in capsys.readouterr().err
    assert main(["batch", "died.msc", "whole.msc"]) == 1
    assert "ended in its first step" in capsys.readouterr().err
