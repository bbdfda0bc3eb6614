"""The collectives of all ranks of a job: in ``modscope summary`` of their captures, and on its page."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from browser import opened
from capture_helpers import Capture
from modscope.__main__ import main
from modscope._job.collectives import _ranges_of
from modscope._torch.collectives import describe_ranks
from rank_files import MIB

WORLD = 4
STEP = [("all_gather", 8 * MIB), ("reduce_scatter", 8 * MIB), ("all_reduce", 4)]


def rank_that_launches(
    rank: int,
    launches: Sequence[tuple[Any, ...]],
    *,
    world: int = WORLD,
    nanoseconds: int = 0,
    ranks: str | None = None,
) -> Capture:
    """``launches``: kind and bytes, and where it is not 1, the group; "step" begins a step."""
    c = Capture(
        ("cpu",),
        program="train.py",
        rank=str(rank),
        world=str(world),
        local_rank=str(rank),
        node="0",
        host="a",
        job="j",
        began="1e9",
    )
    c.claim(c.add(MIB), "Parameter", c.module("Net.0"))
    c.group(1, world, "default_pg", describe_ranks(range(world)) if ranks is None else ranks)
    c.group(2, 2, "mesh_tp", "0-1" if rank < 2 else "2-3")
    for launch in launches:
        c.wait(1000)
        if launch == "step":
            c.where()
            c.step()
            c.where("backward", c.module("Net.0"))
        else:
            c.collective(*launch, nanoseconds=nanoseconds)
    c.where()
    return c


@pytest.fixture
def summary(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")

    def run(*launches: Sequence[Any], json_too: bool = False, **more: Any) -> Any:
        names = []
        for rank, own in enumerate(launches):
            each = {word: value(rank) if callable(value) else value for word, value in more.items()}
            (tmp_path / f"{rank}.msc").write_bytes(
                rank_that_launches(rank, own, world=len(launches), **each).end(how="finished")
            )
            names.append(f"{rank}.msc")
        assert main(["summary", *names, *(["--json"] if json_too else [])]) == 0
        out = capsys.readouterr().out
        return json.loads(out) if json_too else out

    return run


def lines_from(out: str, head: str) -> list[str]:
    lines = out.splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith(head)) :]


def test_totals_of_each_kind_over_all_ranks(summary):
    out = summary(*[["step", *STEP, "step", *STEP]] * WORLD)
    rows = [line.split("  ") for line in lines_from(out, "Collectives of all ranks")[1:4]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["all_gather", "8", "64.00 MiB", "2, 16.00 MiB"],
        ["reduce_scatter", "8", "64.00 MiB", "2, 16.00 MiB"],
        ["all_reduce", "8", "32 B", "2, 8 B"],
    ]
    assert "different collectives" not in out


def test_time_in_them_where_it_is_known(summary):
    out = summary(*[["step", *STEP]] * WORLD, nanoseconds=lambda rank: 2_000_000 * (1 + (rank == 2)))
    row = lines_from(out, "Collectives of all ranks")[1]
    assert row.split()[:5] == ["all_gather", "4", "32.00", "MiB", "10.0"] and row.endswith(
        "1, 8.00 MiB, 2.0 ms to 4.0 ms (rank 2)"
    )


def test_jobs_without_collectives_say_nothing_of_them(summary):
    assert "ollectives" not in summary([], [])


def test_a_rank_that_launched_fewer_is_named_with_where_it_stopped(summary):
    whole = ["step", *STEP, "step", *STEP]
    out = summary(whole, whole, whole, ["step", *STEP, "step", *STEP[:1]])
    part = lines_from(out, "Ranks that launched different collectives")
    assert part[2:5] == [
        "  default_pg, 4 ranks (0-3) over nccl",
        "    ranks 0-2: 6 collectives (2 all_gather, 2 all_reduce, 2 reduce_scatter)",
        "    rank 3: 4 collectives (2 all_gather, 1 all_reduce, 1 reduce_scatter)",
    ]
    said = " ".join(" ".join(part[5:7]).split())
    assert said == (
        "Number 5 of this group: ranks 0-2 launched reduce_scatter of 8.00 MiB in step 2, backward of Net.0; "
        "rank 3 launched nothing more."
    )


def test_mismatches_as_json(summary):
    whole = ["step", *STEP]
    told = summary(whole, ["step", STEP[0], ("broadcast", 7)], whole, json_too=True)
    assert told["collectives"][0] == {"kind": "all_gather", "count": 3, "bytes": 24 * MIB, "seconds": None}
    assert told["ranks"][1]["collectives"] == {
        "all_gather": {"count": 1, "bytes": 8 * MIB, "seconds": None},
        "broadcast": {"count": 1, "bytes": 7, "seconds": None},
    }
    (mismatch,) = told["mismatches"]
    assert mismatch["group"]["ranks"] == "0-2" and [part["ranks"] for part in mismatch["parts"]] == [[0, 2], [1]]
    (split,) = mismatch["divergences"]
    assert split["number"] == 2 and split["usual"]["kind"] == "reduce_scatter" and split["these"]["kind"] == "broadcast"
    assert split["these"]["module"] == "Net.0" and split["these"]["step"] == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([("all_reduce", 8), ("broadcast", 8)], [("broadcast", 8), ("all_reduce", 8)]),  # the order
        ([("all_reduce", 8)], [("all_reduce", 12)]),  # the bytes
        ([("barrier", 0)], []),
    ],
)
def test_order_and_bytes_must_be_the_same(summary, first, second):
    assert len(summary(first, second, json_too=True)["mismatches"]) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([("send", 8), ("all_reduce", 8)], [("recv", 8), ("all_reduce", 8)]),  # messages are for two ranks
        ([("gather", 16)], [("gather", 8)]),  # the root has more bytes
        ([("scatter", 8), ("all_to_all", 1)], [("scatter", 16), ("all_to_all", 3)]),
        ([("send", 1)], []),
        ([("all_reduce", 1, 9)], []),  # a group that is not described
    ],
)
def test_what_may_differ_is_no_mismatch(summary, first, second):
    assert summary(first, second, json_too=True)["mismatches"] == []


def test_groups_of_some_ranks_are_compared_among_those(summary):
    pair = [("all_reduce", 8, 2)]
    assert summary(pair, pair, [], [], json_too=True)["mismatches"] == []
    (mismatch,) = summary(pair, pair, pair * 3, pair * 2, json_too=True)["mismatches"]
    assert mismatch["group"]["ranks"] == "2-3" and [part["count"] for part in mismatch["parts"]] == [3, 2]


def test_a_group_whose_ranks_are_cut_off_is_compared_among_those_that_used_it(summary):
    ranks = lambda rank: "0,1,"  # noqa: E731
    assert summary([("barrier", 0)], [], [("barrier", 0)], json_too=True, ranks=ranks)["mismatches"] == []


@pytest.mark.parametrize("ranks", [range(64), range(0, 64, 8), [1, 5, 6, 7], [0, 9], [3]])
def test_ranks_of_a_group_are_read_as_they_are_written(ranks):
    assert [rank for part in _ranges_of(describe_ranks(list(ranks))) or [] for rank in part] == list(ranks)


@pytest.mark.parametrize("text", ["", "a", "1-b", "0-8:0", "1,,2", "99999999999", "-3"])
def test_other_texts_are_no_ranks(text):
    assert _ranges_of(text) is None


# ---- the page ----


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from opened(tmp_path_factory.mktemp("browser"))


@pytest.mark.slow
def test_the_page_of_a_job_has_the_totals_and_names_ranks_that_differ(browser, tmp_path):
    whole = ["step", *STEP]
    names = []
    for rank in range(WORLD):
        own = rank_that_launches(rank, [*whole, *(STEP if rank != 3 else [])])
        names.append(str(tmp_path / f"{rank}.msc"))
        (tmp_path / f"{rank}.msc").write_bytes(own.end(how="finished"))
    assert main(["report", *names, "-o", str(tmp_path / "job.html")]) == 0
    browser.open(
        (tmp_path / "job.html").as_uri(), "window.modscopeReady !== undefined || window.modscopeError !== undefined"
    )
    assert browser.run("return window.modscopeError || ''") == ""
    totals = [(row["kind"], row["count"], row["bytes"]) for row in browser.data("#collective-totals tbody tr")]
    assert totals == [
        ("all_gather", "7", str(56 * MIB)),
        ("reduce_scatter", "7", str(56 * MIB)),
        ("all_reduce", "7", "28"),
    ]
    rows = browser.data("#mismatch-rows tbody tr")
    assert [row["ranks"] for row in rows] == ["ranks 0-2", "rank 3"]
    assert rows[0]["group"] == "default_pg, 4 ranks (0-3) over nccl"
    assert (
        "Number 4 of this group: ranks 0-2 launched all_gather of 8.00 MiB in step 1, backward of Net.0; rank 3 "
        "launched nothing more."
    ) in browser.text("#mismatch-rows tbody tr:nth-child(2)")
    browser.click_on("#mismatch-rows tbody tr:nth-child(2) button")
    assert browser.run("return document.body.dataset.rank") == "3"
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_page_of_a_job_without_collectives_says_nothing_of_them(browser, tmp_path):
    names = [str(tmp_path / f"{rank}.msc") for rank in range(2)]
    for rank, name in enumerate(names):
        with open(name, "wb") as file:
            file.write(rank_that_launches(rank, ["step"], world=2).end(how="finished"))
    assert main(["report", *names, "-o", str(tmp_path / "job.html")]) == 0
    browser.open(
        (tmp_path / "job.html").as_uri(), "window.modscopeReady !== undefined || window.modscopeError !== undefined"
    )
    assert browser.run("return [window.modscopeError || '', document.getElementById('job-collectives').hidden]") == [
        "",
        True,
    ]
