"""Captures that lack a part of their run: ``modscope summary`` and ``report`` of a job say which they are, and compare
only what they have."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from modscope.__main__ import main
from modscope._job.failure import describe_failure, describe_incomplete, find_compared
from modscope._job.job import find_job
from modscope._job.read import read_ranks
from rank_files import MIB, rank_capture
from test_rank_collectives import STEP, rank_that_launches

FINISHED = {"how": "finished"}
GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer"


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.fixture
def summary(folder, capsys):
    def run(*words: str) -> str:
        assert main(["summary", *words]) == 0
        return capsys.readouterr().out

    return run


def write_launches(folder: pathlib.Path, launches: Sequence[Sequence[Any]], killed: Sequence[int]) -> list[str]:
    names = []
    for rank, own in enumerate(launches):
        capture = rank_that_launches(rank, own, world=len(launches))
        names.append(f"{rank}.msc")
        (folder / names[-1]).write_bytes(capture.killed() if rank in killed else capture.end(how="finished"))
    return names


def mismatches(summary, names: list[str]) -> list[list[list[int]]]:
    return [[part["ranks"] for part in one["parts"]] for one in json.loads(summary(*names, "--json"))["mismatches"]]


# ---- collectives ----

WHOLE = ["step", *STEP, "step", *STEP, "step", *STEP]
EARLY = ["step", *STEP, "step", STEP[0]]
OTHER = ["step", *STEP, "step", ("broadcast", 8)]


@pytest.mark.parametrize(
    ("launches", "killed", "expected"),
    [
        ([WHOLE, EARLY, WHOLE], [1], []),  # what is not recorded is not compared
        ([WHOLE, EARLY, WHOLE], [], [[[0, 2], [1]]]),  # the same launches of ranks that ended by themselves
        ([WHOLE, [], WHOLE], [1], []),
        ([WHOLE, OTHER, WHOLE], [1], [[[0, 2], [1]]]),  # it differs before it ends
        ([EARLY, WHOLE], [1], [[[0], [1]]]),  # a rank that ended launched less than a killed one
        ([WHOLE, EARLY, ["step"]], [0, 1, 2], []),
        # it went on without the last one of step 1
        ([["step", *STEP], ["step", *STEP], ["step", *STEP[:2], "step"]], [0, 1, 2], [[[0, 1], [2]]]),
        ([WHOLE, EARLY, OTHER], [0, 1, 2], [[[0], [2]]]),
    ],
)
def test_collectives_of_a_killed_rank_are_compared_up_to_its_end(folder, summary, launches, killed, expected):
    assert mismatches(summary, write_launches(folder, launches, killed)) == expected


def test_a_rank_that_went_on_without_the_others_is_named_also_if_all_were_killed(folder, summary):
    """This is how a job hangs: the others wait in the last collective of step 1."""
    early = ["step", *STEP]
    out = " ".join(summary(*write_launches(folder, [early, early, ["step", *STEP[:2], "step"]], [0, 1, 2])).split())
    assert (
        "Number 3 of this group: ranks 0-1 launched all_reduce of 4 B in step 1, backward of Net.0; rank 2 "
        "launched nothing more and went on to step 2."
    ) in out


def test_totals_are_of_ranks_whose_captures_are_complete(folder, summary):
    names = write_launches(folder, [WHOLE, EARLY, WHOLE], [1])
    told = json.loads(summary(*names, "--json"))
    assert (
        told["collectives_of"] == [0, 2]
        and {one["kind"]: one["count"] for one in told["collectives"]}["all_reduce"] == 6
    )
    assert (
        told["incomplete"] == [{"rank": 1, "why": "not closed", "last_step": 2}]
        and told["ranks"][1]["incomplete"] == "not closed"
    )
    out = summary(*names)
    assert "\nCollectives of ranks 0, 2  count" in out and "different collectives" not in out
    assert (
        "\nIncomplete capture\n  The capture of rank 1 ends in step 2 (not closed). Later steps are not compared.\n"
        in out
    )
    assert "\nCollectives of all ranks (recorded)  count" in summary(*write_launches(folder, [WHOLE, EARLY], [0, 1]))


# ---- memory ----


def write_ranks(folder: pathlib.Path, *data: bytes) -> list[str]:
    names = []
    for rank, bytes_of in enumerate(data):
        names.append(f"{rank}.msc")
        (folder / names[-1]).write_bytes(bytes_of)
    return names


def test_a_capture_that_was_cut_short_is_left_out_of_what_it_lacks(folder, summary):
    """Cut at every tenth: the others are compared as if it were not there, or it has what they have."""
    whole = [rank_capture(rank, 3, steps=8, extra=MIB * (rank == 2)).end(how="finished") for rank in range(3)]
    for tenth in range(2, 10):
        out = summary(*write_ranks(folder, whole[0], whole[1][: len(whole[1]) * tenth // 10], whole[2]))
        assert "The capture of rank 1 ends " in out and "Later steps are not compared." in out
        assert "Spread: 1.00 MiB (1% of the highest), from rank 0 to rank 2." in out, out
        told = json.loads(summary("0.msc", "1.msc", "2.msc", "--json"))
        assert {tuple(one["ranks"]) for one in told["differences"]} == {(2,)} and told["compared"] in (
            [0, 2],
            [0, 1, 2],
        )
    assert told["compared"] == [0, 1, 2]  # at last it has the step in which the others have their peaks


def test_a_peak_that_others_reached_later_is_not_compared(folder, summary):
    out = summary(*write_ranks(folder, rank_capture(0, 2).end(how="finished"), rank_capture(1, 2, steps=0).killed()))
    assert "The capture of rank 1 ends before the first step (not closed). Later steps are not compared." in out
    assert "Its peak is not compared either: other ranks reached theirs in the same step or later." in out
    assert "Spread" not in out and "hold more or less" not in out
    assert "\n  Nothing is compared: only the peak of rank 0 can be.\n" in out
    assert "\nBy category       bytes  held by\n  Activation  48.00 MiB  rank 0\n" in out and "all alike" not in out


def test_a_damaged_capture_is_at_least(folder):
    data = bytearray(rank_capture(1, 2, steps=300).end(how="finished"))
    data[len(data) // 2 : len(data) // 2 + 400] = bytes(400)
    job = find_job(read_ranks(write_ranks(folder, rank_capture(0, 2, steps=300).end(how="finished"), bytes(data))))
    assert describe_incomplete(job.ranks) == [
        'A part of the capture of rank 1 cannot be read: the file is damaged. Its figures are "at least", and its '
        "collectives are not compared."
    ]
    assert [rank.number for rank in find_compared(job.ranks)] == [0]


def test_several_captures_share_a_sentence(folder):
    names = write_ranks(
        folder,
        rank_capture(0, 4, steps=3).end(how="finished"),
        *(rank_capture(rank, 4, steps=rank).killed() for rank in (1, 2, 3)),
    )
    said = describe_incomplete(find_job(read_ranks(names)).ranks)
    assert said[0] == "The captures of ranks 1-3 end in steps 1 to 3 (not closed). Later steps are not compared."
    assert said[1] == "Its peak is not compared either (rank 1): other ranks reached theirs in the same step or later."


# ---- which rank failed ----


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([FINISHED, FINISHED], ""),
        (
            [{"how": "exception", "error": GLOO}, {"how": "exception", "error": "ValueError: no such batch"}],
            "Rank 1 failed in step 2: ValueError: no such batch.",
        ),
        (
            [{"how": "exception", "error": GLOO}, None],
            "Rank 1 has no end: it was killed in step 2 or later, still runs, or its capture was cut short.",
        ),
        ([{"how": "terminated"}, {"how": "finished", "status": "3"}], "Rank 1 exited with status 3 in step 2."),
        ([{"how": "terminated"}, {"how": "exception", "error": GLOO}], f"Rank 1 failed in step 2: {GLOO}."),
        ([{"how": "terminated"}, {"how": "terminated"}, FINISHED], "Ranks 0-1 were ended by SIGTERM in step 2."),
        (
            [None, None, FINISHED],
            "Ranks 0-1 have no end: they were killed in step 2 or later, still run, or their captures were cut short.",
        ),
        (
            [None, None],
            "Ranks 0-1 have no end: they were killed in step 2 or later, still run, or their captures were cut short.",
        ),
        (
            [{"how": "exception", "error": "A: b"}, {"how": "exception", "error": "C: d"}, FINISHED],
            "Rank 0 failed in step 2: A: b. 1 other rank failed too.",
        ),
    ],
)
def test_the_rank_that_failed_is_named_with_how(folder, ends, expected):
    captures = [rank_capture(rank, len(ends)) for rank in range(len(ends))]
    names = write_ranks(
        folder,
        *(capture.killed() if end is None else capture.end(**end) for capture, end in zip(captures, ends, strict=True)),
    )
    assert describe_failure(find_job(read_ranks(names)).ranks) == expected


@pytest.mark.parametrize(("goes_on", "expected"), [(False, True), (True, False)])
def test_a_rank_that_ran_out_of_memory(folder, goes_on, expected):
    """One that went on after an allocation that failed did not fail by it."""
    capture = rank_capture(1, 2)
    capture.oom(24 * MIB, 1, 2, 1)
    if goes_on:
        capture.step()
    error = {"how": "exception", "error": "RuntimeError: x"}
    names = write_ranks(folder, rank_capture(0, 2).end(how="exception", error=GLOO), capture.end(**error))
    said = describe_failure(find_job(read_ranks(names)).ranks)
    assert said.startswith("Rank 1 ran out of memory in step 2, ") is expected
    assert said.endswith("an allocation of 24.00 MiB failed on cuda:1.") is expected


def test_a_job_that_was_killed_as_a_whole(folder, summary):
    """Its ranks were in different steps: this is no difference between them."""
    out = summary(*write_ranks(folder, rank_capture(0, 2, steps=3).killed(), rank_capture(1, 2, steps=4).killed()))
    assert out.startswith(
        "train.py --lr 3: 2 ranks\nRanks 0-1 have no end: they were killed in steps 3 to 4 or later, still run, "
        "or their captures were cut short.\n"
        "\n640.0 ms, as far as it was recorded\nAll ranks: No end: it was killed, or still runs\n"
    )
    assert (
        "numbers of steps" not in out
        and "The captures of ranks 0-1 end in steps 3 to 4 (not closed). Later steps are not compared." in out
    )


# ---- the page ----


def test_the_page_begins_with_the_rank_that_failed_and_names_incomplete_captures(folder, capsys):
    names = write_ranks(folder, rank_capture(0, 3).end(how="terminated"), rank_capture(1, 3, steps=1).killed())
    assert main(["report", *names, "-o", "out.html", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["notes"] == [
        "There is no capture of rank 2: what it held is not known.",
        "The capture of rank 1 ends in step 1 (not closed). Later steps are not compared.",
        "Its peak is not compared either: other ranks reached theirs in the same step or later.",
    ]
    page = (folder / "out.html").read_text()
    head = page[page.index('<h1 id="sentence">') : page.index("</h1>")]
    assert head.startswith(
        '<h1 id="sentence"><span class="alarm">Rank 1 has no end: it was killed in step 1 or later, still runs, '
        "or its capture was cut short.</span> "
    )
    assert "The highest peak is <strong>80.00 MiB</strong>, on <strong>rank 0</strong>." in head
    assert all(note in page for note in told["notes"])


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([0], "; that of rank 0 is 80.00 MiB."),
        ([0, 0], "; of those that are, the highest is <strong>80.00 MiB</strong>, on rank 0."),
        (
            [0, 4],
            "; of those that are, the highest is <strong>84.00 MiB</strong>, on rank 1: <strong>4.00 MiB</strong> "
            "more than rank 0, which has the lowest.",
        ),
    ],
)
def test_the_page_compares_no_peak_that_it_says_is_not_compared(folder, others, expected):
    """The last rank has the highest peak, and was killed in the step in which the others have theirs."""
    world = len(others) + 1
    whole = [
        rank_capture(rank, world, steps=1, extra=extra * MIB).end(how="finished") for rank, extra in enumerate(others)
    ]
    names = write_ranks(folder, *whole, rank_capture(world - 1, world, steps=1, extra=9 * MIB).killed())
    assert main(["report", *names, "-o", "out.html"]) == 0
    head = (folder / "out.html").read_text().partition('<h1 id="sentence">')[2].partition("</h1>")[0]
    high = (
        f"The highest peak recorded is <strong>89.00 MiB</strong>, on <strong>rank {world - 1}</strong>, but "
        f"it is not compared"
    )
    assert head.endswith(high + expected), head


# ---- commands that read one capture ----


@pytest.mark.parametrize("command", ["tree", "blocks", "flame", "leaks"])
def test_commands_of_one_capture_say_so(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "a.msc", "b.msc", "c.msc"])
    assert f"{command} reads one capture, not 3: run it once for each of them." in capsys.readouterr().err
