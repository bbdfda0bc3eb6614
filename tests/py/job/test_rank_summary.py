"""``modscope summary`` of the captures of several ranks."""

import json
import pathlib
from array import array

import pytest
from capture_helpers import Capture, seal
from modscope import load
from modscope.__main__ import main
from modscope._job.job import describe_runs, missing_runs
from rank_files import MIB, rank_capture, write_job


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path


@pytest.fixture
def summary(folder, capsys):
    def run(*words: str) -> tuple[int, str, str]:
        status = main(["summary", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def said(summary, *words: str) -> str:
    status, out, err = summary(*words)
    assert (status, err) == (0, ""), err
    return out


# ---- one screen ----


def test_equal_ranks_share_a_row(folder, summary):
    out = said(summary, *write_job(folder, 8))
    assert out.startswith("train.py --lr 3: 8 ranks on 2 nodes\n")
    assert "All ranks: Finished" in out and "2 optimizer steps, 2 steps" in out
    assert "  ranks 0-7  80.00 MiB  in step 1, backward of GPT.blocks.2.mlp\n  Every rank has the same peak.\n" in out
    assert "hold more or less" not in out and "no capture" not in out


def test_which_ranks_differ_and_by_what(folder, summary):
    out = said(summary, *write_job(folder, 8, extra=lambda rank: 5 * MIB * (rank == 5)))
    assert "  rank 5 (node 1, local rank 1)  85.00 MiB" in out and "  ranks 0-4, 6-7                 80.00 MiB" in out
    assert (
        "Spread: 5.00 MiB (6% of the highest), from rank 0 (node 0, local rank 0) to rank 5 (node 1, local rank 1)."
        in out
    )
    part = out[out.index("What ranks hold more or less than ranks 0-4, 6-7") :].splitlines()
    assert part[1] == "  rank 5 (node 1, local rank 1): +5.00 MiB" and part[2].split() == [
        "+5.00",
        "MiB",
        "Activation",
        "GPT.blocks.0.mlp",
    ]
    assert (
        "  node 0 (host0): ranks 0-3, peak 80.00 MiB\n  node 1 (host1): ranks 4-7, peak 80.00 MiB to 85.00 MiB\n" in out
    )
    assert "Activation  48.00 MiB  53.00 MiB  +5.00 MiB  rank 5" in out and "all alike" in out
    assert out.endswith("A rank with the highest peak:  modscope summary x.rank5.msc\n")


def test_pipeline_stages_with_equal_peaks_differ_by_their_modules(folder, summary):
    names = write_job(folder, 2)
    other = rank_capture(1, 2).end(how="finished").replace(b"GPT.blocks.2.mlp", b"GPT.blocks.7.mlp")
    (folder / names[1]).write_bytes(seal(bytearray(other)))
    out = said(summary, *names)
    assert "Every rank has the same peak." in out and "  rank 1: 0 B" in out
    assert "GPT.blocks.7.mlp" in out and "GPT.blocks.2.mlp" in out


def test_workspaces_that_other_modules_hold_come_after_what_makes_the_peaks_differ(folder, summary):
    """A stage of a pipeline each. Both hold 32 MiB of Temp, of the module that runs; one of two pieces of 1 MiB has no
    counterpart."""
    for rank in range(2):
        c = Capture(
            ("cuda:0",),
            program="train.py",
            rank=str(rank),
            world="2",
            local_rank=str(rank),
            node="0",
            host="a",
            began="1e9",
        )
        own, held = ("Net.a", 3) if rank == 0 else ("Net.b", 5)
        c.claim(c.add(held * MIB), "Parameter", c.module(own))
        c.claim(c.add(32 * MIB), "Temp", c.module(own))
        for name in ("Net.c",) if rank == 0 else ("Net.d", "Net.e"):
            c.claim(c.add(MIB), "Temp", c.module(name))
        (folder / f"{rank}.msc").write_bytes(c.end(how="finished"))
    out = said(summary, "0.msc", "1.msc")
    part = out[out.index("What ranks hold more or less than rank 0") :].splitlines()
    assert [line.split()[0] + line.split()[2] for line in part[2:5]] == [
        "+5.00Parameter",
        "-3.00Parameter",
        "+1.00Temp",
    ]
    assert part[5] == "    (4 more rows: --json shows all)"
    changes = [
        row["change"] // MIB
        for row in json.loads(said(summary, "0.msc", "1.msc", "--json"))["differences"][0]["modules"]
    ]
    assert sorted(changes) == [-32, -3, -1, 1, 1, 5, 32] and abs(changes[0]) == 32


def test_ranks_of_different_length_and_end(folder, summary):
    ends = {1: None, 2: {"how": "exception", "error": "ValueError: no such batch"}, 3: {"how": "terminated"}}
    names = write_job(folder, 6, ends, steps=lambda rank: 2 + (rank == 5))
    out_of_memory = rank_capture(4, 6)
    out_of_memory.oom(24 * MIB, 1, 2, 1)
    (folder / names[4]).write_bytes(out_of_memory.end(how="exception", error="OutOfMemoryError: x"))
    out = said(summary, *names)
    assert (
        "Rank 2 (node 0, local rank 2) failed in step 2: ValueError: no such batch. 1 other rank failed too.\n" in out
    )
    assert (
        "  ranks 0, 2-4: 2 optimizer steps, 2 steps\n  rank 5 (node 1, local rank 1): 3 optimizer steps, 3 "
        "steps\nEnds:\n"
    ) in out
    assert "rank 1 (node 0, local rank 1): No end: it was killed, or still runs\n" in out
    assert "rank 2 (node 0, local rank 2): Ended by an exception: ValueError: no such batch\n" in out
    assert "rank 3 (node 0, local rank 3): Ended by SIGTERM\n" in out and "ranks 0, 5: Finished" in out
    assert (
        "rank 4 (node 1, local rank 0): Ended by an exception: OutOfMemoryError: x; out of memory: an allocation "
        "of 24.00 MiB failed"
    ) in out


def test_missing_ranks_are_said(folder, summary):
    names = write_job(folder, 8)
    out = said(summary, *(name for name in names if name not in ("x.rank3.msc", "x.rank5.msc", "x.rank6.msc")))
    assert out.startswith(
        "train.py --lr 3: 5 of 8 ranks on 2 nodes\nThere is no capture of ranks 3, 5-6: what they held is not known.\n"
    )


@pytest.mark.parametrize(
    "present, world, runs, words",
    [
        ([0, 1], 2, [], ""),
        ([1], 2, [(0, 0)], "rank 0"),
        ([2, 0, 5], 9, [(1, 1), (3, 4), (6, 8)], "ranks 1, 3-4, 6-8"),
        ([3], 10**9, [(0, 2), (4, 10**9 - 1)], "ranks 0-2, 4-999999999"),
    ],
)
def test_runs_of_missing_ranks(present, world, runs, words):
    assert missing_runs(present, world) == runs
    assert not runs or describe_runs(runs) == words


def test_many_different_peaks_fit_a_screen(folder, summary):
    out = said(summary, *write_job(folder, 40, steps=1, extra=lambda rank: rank * MIB))
    assert len(out.splitlines()) < 60
    peaks = out[out.index("Peak of each rank") : out.index("Spread")].splitlines()[1:-1]
    assert len(peaks) == 8 and " to " in peaks[0] and "40 ranks" in out
    assert "more ranks that differ: --json shows all" in out


def test_the_figures(folder, summary):
    names = write_job(folder, 4, extra=lambda rank: 5 * MIB * (rank == 3))[1:]
    report = json.loads(said(summary, *names, "--json"))
    assert report["command"] == "summary" and (report["world"], report["missing"], report["usual"]) == (
        4,
        [[0, 0]],
        [1, 2],
    )
    assert [(one["rank"], one["local_rank"], one["node"], one["host"]) for one in report["ranks"]] == [
        (rank, rank % 4, "0", "host0") for rank in (1, 2, 3)
    ]
    assert [one["peak"]["bytes"] for one in report["ranks"]] == [
        load(name).peaks[f"cuda:{i}"].bytes for i, name in enumerate(names, 1)
    ]
    (difference,) = report["differences"]
    row = {
        "module": "GPT.blocks.0.mlp",
        "category": "Activation",
        "kind": None,
        "usual": 16 * MIB,
        "these": 21 * MIB,
        "change": 5 * MIB,
    }
    assert difference == {"ranks": [3], "change": 5 * MIB, "modules": [row]}


# ---- captures that do not belong together ----


def refused(summary, *words: str) -> str:
    status, out, err = summary(*words)
    assert status == 1 and out == ""
    return err


def test_what_differs_is_said(folder, summary):
    names = write_job(folder, 3)

    def other(rank: int = 1, world: int = 3, **info: str) -> str:
        (folder / "other.msc").write_bytes(rank_capture(rank, world, **info).end(how="finished"))
        return "other.msc"

    assert refused(summary, names[0], names[2], other(program="eval.py")) == (
        "modscope: These captures are of different programs: train.py (x.rank0.msc and 1 more), eval.py (other.msc). "
        "Give the captures of one job\n"
    )
    assert "a program with different arguments: --lr 3 (x.rank0.msc and 1 more), --lr 4" in refused(
        summary, names[0], names[2], other(arguments="--lr\n4")
    )
    assert "different jobs of the launcher: j1 (x.rank0.msc), j2 (other.msc)" in refused(
        summary, names[0], other(job="j2")
    )
    assert "jobs of different sizes: 3 ranks (x.rank0.msc), 4 ranks (other.msc)" in refused(
        summary, names[0], other(world=4)
    )
    assert "There are 2 captures of rank 1: x.rank1.msc and other.msc. Give the captures of one run" in refused(
        summary, *names, other()
    )
    assert "real and predicted runs" in refused(summary, names[0], other(source="predicted", gpu_title="H100"))
    assert "do not say which ranks they are" in refused(summary, other(rank=0, world=1), other(rank=0, world=1))


def test_a_launcher_that_passes_the_local_rank(folder, summary):
    assert "2 ranks" in said(summary, *write_job(folder, 2, arguments=lambda rank: f"--local-rank={rank}\n--lr\n3"))


def test_the_process_that_started_the_ranks_is_left_out(folder, summary):
    names = write_job(folder, 2)
    (folder / "parent.msc").write_bytes(rank_capture(0, 1).end(how="finished"))
    assert "parent.msc is left out: no rank is known.\n" in said(summary, *names, "parent.msc")


def test_ranks_that_only_torch_distributed_knew(folder, summary):
    for rank in range(2):
        (folder / f"{rank}.msc").write_bytes(rank_capture(0, 1).end(how="finished", rank=str(rank), world="2"))
    assert "2 ranks" in said(summary, "0.msc", "1.msc")


def test_a_rank_beyond_the_world_is_none(folder, summary):
    names = write_job(folder, 2)
    (folder / "wrong.msc").write_bytes(rank_capture(7, 2).end(how="finished"))
    assert "wrong.msc is left out" in said(summary, *names, "wrong.msc")


def test_earlier_attempts_are_below_the_latest(folder, summary):
    names = write_job(folder, 2, {1: None}, attempt="0")
    for rank in range(2):
        (folder / f"second{rank}.msc").write_bytes(rank_capture(rank, 2, attempt="1").end(how="finished"))
    out = said(summary, *names, "second0.msc", "second1.msc")
    assert out.startswith("train.py --lr 3: 2 ranks, attempt 1\n") and "All ranks: Finished" in out
    assert "Attempt 0 of the launcher: 2 captures, peak 80.00 MiB\n" in out
    assert out.index("Attempt 0") < out.index("  rank 1: No end")


def test_a_file_that_is_no_capture(folder, summary):
    names = write_job(folder, 2)
    (folder / "text").write_text("this is no capture")
    assert refused(summary, *names, "text") == "modscope: text: this file is not a modscope capture\n"
    assert refused(summary, *names, "nothing.msc") == "modscope: There is no file nothing.msc\n"


# ---- the columns of a rank over time ----


def test_series_are_the_most_that_was_held(folder):
    """Compared with a snapshot at every moment, later claims included. What is held just before a column counts too."""
    (folder / "x.msc").write_bytes(rank_capture(1, 2, steps=3).end(how="finished"))
    capture = load("x.msc")
    held = []
    for moment in range(capture.event_count + 1):
        snapshot = capture.snapshot(moment)
        held.append((round(1e6 * snapshot.time), [*snapshot.totals["cuda:1"].values()][:7]))
    end = round(1e6 * capture.duration)
    bounds = [i * end // 23 for i in range(24)] + [end + 10, end + 20]
    columns = len(bounds) - 1
    numbers = array("q", capture.series("cuda:1", [bound / 1e6 for bound in bounds]))
    assert len(numbers) == 7 * columns
    for i, (first, last) in enumerate(zip(bounds, bounds[1:])):
        column = [numbers[category * columns + i] for category in range(7)]
        before = [sums for time, sums in held if time < first][-1:] or [held[0][1]]
        inside = before + [sums for time, sums in held if first <= time < last]
        assert column == (max(inside, key=sum) if first <= end else [-1] * 7), i
    assert (
        max(sum(numbers[category * columns + i] for category in range(7)) for i in range(columns))
        == capture.peaks["cuda:1"].bytes
    )


@pytest.mark.parametrize("bounds", [[], [1.0], [2.0, 1.0]])
def test_bounds_that_decrease_are_refused(folder, bounds):
    (folder / "x.msc").write_bytes(rank_capture(1, 2).end(how="finished"))
    with pytest.raises(ValueError, match="times that do not decrease"):
        load("x.msc").series("cuda:1", bounds)
