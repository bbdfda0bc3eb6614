"""What ``modscope predict`` says of several ranks: while it waits for them, at the end, and when one of them fails."""

from __future__ import annotations

import argparse
import io
import pathlib
import sys
from typing import Any

import pytest
from modscope.__main__ import main
from modscope._predict import several_ranks, several_ranks_text
from modscope._predict.options import records_of
from modscope._predict.progress import Progress
from modscope._predict.several_ranks_text import RankRow
from modscope._show.terminal import Screen
from modscope._virtual.gpus import find_gpu
from modscope._virtual.ranks.messages import Messages, note_end

MIB = 1 << 20


def result(rank: int, reserved: int = 512, **changes: Any) -> dict[str, Any]:
    return {
        "memory": 80 << 30,
        "context": 512 * MIB,
        "reserved_peak": reserved * MIB,
        "allocated_peak": (reserved - 12) * MIB,
        "reserved_if_larger": reserved * MIB,
        "fits": True,
        "may_reserve": 78 << 30,
        "to_spare": 78 << 30,
        "step_ms": 9.4,
        "steps": 3,
        "out_of_memory": None,
        "ended": "stopped",
        "timed_out": None,
        "error": "",
        "status": "0",
        "bytes_without_rule": None,
        "notes": [],
        "ranks": {"rank": rank, "communicator_bytes": 688 * MIB},
        **changes,
    }


def options_of(**changes: Any) -> argparse.Namespace:
    usual = {
        "all_ranks": True,
        "gpu": [find_gpu("h100")],
        "steps": 3,
        "seconds": 60.0,
        "output": None,
        "ranks": [2],
        "rank": None,
        "module": False,
        "target": ["a/train.py"],
    }
    return argparse.Namespace(**{**usual, **changes})


def text_of(*results: dict[str, Any], captures: tuple[str, ...] = (), **options: Any) -> str:
    rows = [RankRow(len(results), number, captures[number] if captures else "") for number in range(len(results))]
    lines = several_ranks_text.text(options_of(**options), rows, list(results), 12.0, Screen(wraps=False))
    return "".join(f"{line}\n" for line in lines)


def test_each_rank_has_a_row_and_captures_are_offered() -> None:
    assert text_of(result(0), result(1, 400)).splitlines() == [
        "[modscope] predicted 3 steps as each of 2 ranks on H100 80GB HBM3 in 12 s.",
        "           80.0 GiB of memory, 0.5 GiB of each for the CUDA context, up to about 0.7 GiB for NCCL.",
        "rank   allocates    reserves  to spare        a step",
        "0     500.00 MiB  512.00 MiB  78.0 GiB  about 9.4 ms  fits",
        "1     388.00 MiB  400.00 MiB  78.0 GiB  about 9.4 ms  fits",
        "Rank 0 reserves most, 512.00 MiB, and rank 1 least, 400.00 MiB: a spread of 112.00 MiB.",
        "To write a capture of each rank, add -o NAME.msc, or -o FOLDER.",
    ]


def test_a_rank_that_failed_before_its_first_step_is_not_said_to_fit() -> None:
    text = text_of(result(0), result(1, steps=0, ended="exception", error="ValueError: no\nmore", status=""))
    assert (
        "\n1     500.00 MiB  512.00 MiB  78.0 GiB  about 9.4 ms  not known: the script failed before its first "
        "optimizer step\n"
    ) in text
    assert "\nThe script failed as rank 1 of 2 (ValueError: no): what would follow is not known.\n" in text
    assert "All ranks reserve the same" not in text
    assert "fits so far: then the script failed" in text_of(result(0, ended="finished", status="1"))


def test_a_rank_that_was_stopped_by_the_clock() -> None:
    assert "The time that --seconds 60 gives was over before rank 0 of 1 had taken 3 steps.\n" in text_of(
        result(0, timed_out=120.0)
    )


def test_captures_are_named_and_a_command_reads_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    two = text_of(result(0), result(1), captures=("x.rank0.msc", "x.rank1.msc"))
    assert two.endswith(
        "Wrote 2 captures: x.rank0.msc x.rank1.msc\nSee them as one job:  modscope summary x.rank0.msc x.rank1.msc\n"
    )
    names = tuple(f"x.rank{rank}.msc" for rank in range(6))
    for name in names:
        (tmp_path / name).touch()
    assert text_of(*map(result, range(6)), captures=names).endswith("modscope summary x.rank*.msc\n")
    (tmp_path / "x.rank6.msc").touch()  # of another job: the pattern would find it too
    assert text_of(*map(result, range(6)), captures=names).endswith(
        "modscope summary x.rank0.msc x.rank1.msc x.rank2.msc x.rank3.msc x.rank4.msc x.rank5.msc\n"
    )
    larger = text_of(
        result(0, fits=False, out_of_memory={"step": 1, "phase": "forward", "module": "M"}), captures=("a b.rank0.msc",)
    )
    assert larger.endswith(
        "if the GPU had enough memory.\nWrote 1 capture: 'a b.rank0.msc'\nSee it:  modscope summary 'a b.rank0.msc'\n"
    )


def test_names_are_those_of_a_real_job(tmp_path: pathlib.Path) -> None:
    def names(**options: Any) -> list[str]:
        return [row.capture for row in several_ranks._rows(options_of(**options), records_of(options_of(**options))[0])]

    assert names() == ["", ""]
    assert names(output="y.msc") == ["y.rank0.msc", "y.rank1.msc"]
    assert names(output=str(tmp_path)) == [f"{tmp_path}/modscope-train.rank{rank}.msc" for rank in (0, 1)]
    assert names(output="new/") == ["new/modscope-train.rank0.msc", "new/modscope-train.rank1.msc"]
    assert names(output="y.msc", all_ranks=False, ranks=[8, 16], rank=3) == [
        "y.8ranks.rank3.msc",
        "y.16ranks.rank3.msc",
    ]


def test_captures_that_cannot_be_written_are_refused_before_anything_runs(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "y.rank1.msc").touch()
    (tmp_path / "train.py").touch()
    for output, says in (("y.msc", "y.rank1.msc exists already: choose another name"), ("new/", "There is no folder")):
        words = ["predict", "--gpu", "h100", "--ranks", "2", "--all-ranks", "-o", f"{tmp_path}/{output}"]
        assert main([*words, str(tmp_path / "train.py")]) == 1
        assert says in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress_of(tmp_path: pathlib.Path, quiet: bool = False) -> Progress:
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir(exist_ok=True)
    (tmp_path / "0" / "steps").write_bytes(b"..")
    return Progress("2 ranks", 3, [str(tmp_path / "0"), str(tmp_path / "1")], quiet=quiet)


def test_progress_is_one_line_in_a_terminal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("modscope._predict.progress._INTERVAL", 0.0)
    progress = progress_of(tmp_path)
    progress.tick(), progress.ended(), progress.tick(), progress.done()
    first, second, last = terminal.getvalue().split("\r\x1b[K")[1:]
    assert (
        first.startswith("[modscope] predicting 2 ranks: 2 of 6 steps, 0 of 2 ended, ") and " 1 of 2 ended, " in second
    )
    assert last == "" and "\n" not in terminal.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_is_nothing_in_a_pipe_and_where_quiet(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    stream = Terminal() if quiet else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("modscope._predict.progress._INTERVAL", 0.0)
    progress = progress_of(tmp_path, quiet)
    progress.tick(), progress.ended(), progress.tick(), progress.done()
    assert stream.getvalue() == ""


def test_a_rank_does_not_wait_for_one_that_has_ended(tmp_path: pathlib.Path) -> None:
    both = [Messages(str(tmp_path), rank) for rank in (0, 1)]
    both[0].send(1, "a")
    note_end(str(tmp_path), 0)
    assert both[1].receive(0) == "a"
    with pytest.raises(RuntimeError, match="rank 0 ended, and had not sent what rank 1 waits for"):
        both[1].receive(0)
