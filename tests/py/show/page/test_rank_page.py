"""The page of the ranks of one job, in a browser, and when ``modscope report`` writes it."""

import json
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from browser import opened
from capture_helpers import Capture
from modscope import load
from modscope.__main__ import main
from rank_files import MIB, rank_capture, write_job

READY = "window.modscopeReady !== undefined || window.modscopeError !== undefined"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from opened(tmp_path_factory.mktemp("browser"))


ENDS: dict[int, dict[str, str] | None] = {1: None, 2: {"how": "exception", "error": "ValueError: no such batch"}}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Eight ranks without 3 and 4; rank 5 holds more, rank 6 takes fewer steps, and rank 7 began a second later."""
    folder = tmp_path_factory.mktemp("job")
    names = write_job(
        folder, 8, ENDS, extra=lambda rank: 20 * MIB * (rank == 5), steps=lambda rank: 3 - (rank == 6),
        began=lambda rank: f"{1e9 + (rank == 7):.3f}",
    )  # fmt: skip
    files = [str(folder / name) for name in names if name not in ("x.rank3.msc", "x.rank4.msc")]
    assert main(["report", *files, "-o", str(folder / "job.html")]) == 0
    return folder


@pytest.fixture
def page(browser: Any, job: pathlib.Path) -> Iterator[Any]:
    browser.screen(1300, 1000)
    browser.open((job / "job.html").as_uri(), READY)
    assert browser.run("return window.modscopeError || ''") == ""
    yield browser
    assert browser.complaints() == [] and {*browser.requests()} <= {(job / "job.html").as_uri()}


def cell(page: Any, row: int, part: float) -> tuple[float, float]:
    """The place of a row of the heat map, and of a part of its width."""
    box = page.place("#heat")
    height = box.height - 28
    return box.x + 66 + part * (box.width - 78), box.y + 6 + (row + 0.5) * height / 8


@pytest.mark.slow
def test_the_page_of_a_job(page, job):
    """What it says in words, and that a click, keys and the address show a rank with its figures."""
    assert page.text("#sentence") == (
        "Rank 2 (node 0, local rank 2) failed in step 3: ValueError: no such batch. The highest peak is 100.00 "
        "MiB, on rank 5 (node 1, local rank 1): 20.00 MiB more than rank 0 (node 0, local rank 0), "
        "which has the lowest."
    )
    assert page.texts("#notes li") == [
        "There is no capture of ranks 3-4: what they held is not known.",
        "The capture of rank 1 (node 0, local rank 1) ends in step 3 (not closed). Later steps are not compared.",
    ]
    rows = {row["rank"]: row.get("peak") for row in page.data("#ranks tbody tr")}
    assert rows == {
        str(rank): str((100 if rank == 5 else 80) * MIB) if rank not in (3, 4) else None for rank in range(8)
    }
    assert "No end: it was killed, or still runs" in page.text("#ranks tbody tr[data-rank='1']")
    (difference, *rest) = page.data("#differences tbody tr")
    assert difference == {"ranks": "rank 5 (node 1, local rank 1)", "change": str(20 * MIB)} and not rest

    def shown() -> str:
        return str(page.run("return document.body.dataset.rank"))

    assert shown() == "5"
    page.click(*cell(page, 2, 0.1))
    assert shown() == "2" and "ValueError: no such batch" in page.text("#rank-facts")
    page.click(*cell(page, 3, 0.1))
    assert shown() == "2" and page.text("#pointed") == "rank 3: no capture"
    page.give_focus("#heat")
    page.press("ArrowDown", "ArrowDown", "Enter")
    assert shown() == "5"
    page.press("]", "]")
    assert shown() == "7" and page.address().endswith("#rank=7")

    assert page.texts("#rank-modules tbody tr:first-child td:first-child") == ["GPT.blocks.*.mlp (2 alike)"]
    page.click_on("#together")
    own = load(job / "x.rank7.msc").snapshot("peak").by_module()["cuda:3"]
    told = {
        row["module"]: [int(value) for value in row["bytes"].split(",")] for row in page.data("#rank-modules tbody tr")
    }
    assert told == {module: [*sums.values()][:7] for module, sums in own.items()}


@pytest.mark.slow
def test_clocks_are_aligned(page):
    """Rank 7 began a second after the others: by clock it has no data before, by step it is like the others."""
    runs = (
        "const { job } = window.modscope; return [0, 0.5, 0.9].map((part) => job.hasData(%d, '%s', "
        "Math.floor(part * job.columns('time'))))"
    )
    assert page.run(runs % (0, "time")) == [True, False, False]
    assert page.run(runs % (5, "time")) == [False, False, True]
    page.click_on("#axis [data-axis='step']")
    assert page.run("return document.body.dataset.axis") == "step"
    totals = (
        "const { job } = window.modscope, n = job.columns('step'); return [0, 5].map((rank) => "
        "[...job.totalsOf('step').slice(rank * n, (rank + 1) * n)])"
    )
    first, last = page.run(totals)
    assert first == last and max(first) == 80 * MIB
    shorter = page.run(
        "const { job } = window.modscope; return [2, 3].map((step) => job.hasData(4, 'step', step * job.axes.per_step))"
    )
    assert shorter == [True, False]  # rank 6 took two steps
    page.click_on("#shade [data-shade='difference']")
    # Rank 6's last step lacks the pause before the next one, so that its blocks live for a larger part of the step.
    assert page.text("#scale-high") == "+24.00 MiB" and page.address().endswith("axis=step&shade=difference")


@pytest.mark.slow
def test_keyboard_alone_and_dark(browser, job):
    browser.screen(400, 800)
    browser.open((job / "job.html").as_uri() + "#rank=0&axis=step", READY)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth") is True
    browser.give_focus("#heat")
    browser.press("End")
    assert browser.text("#pointed").startswith("rank 7, ") and browser.run("return document.body.dataset.rank") == "0"
    browser.press("Enter", "t")
    assert browser.run("return [document.body.dataset.rank, document.documentElement.dataset.theme]") == ["7", "dark"]
    assert browser.complaints() == []


@pytest.mark.slow
def test_one_node_has_no_columns_and_many_rows_of_a_difference_are_counted(browser, tmp_path):
    def capture(rank: int) -> bytes:
        c = Capture(
            ("cpu",),
            program="train.py",
            rank=str(rank),
            world="3",
            local_rank=str(rank),
            node="0",
            host="a",
            began="1e9",
        )
        for i in range(12):
            c.claim(c.add((i + 1) * (1 + (rank == 2)) * MIB), "Parameter", c.module(f"Net.part{chr(97 + i)}"))
        return c.end(how="finished") if rank else c.killed()

    names = []
    for rank in range(3):
        names.append(str(tmp_path / f"{rank}.msc"))
        pathlib.Path(names[-1]).write_bytes(capture(rank))
    assert main(["report", *names, "-o", str(tmp_path / "job.html")]) == 0
    browser.screen(1300, 1000)
    browser.open((tmp_path / "job.html").as_uri(), READY)
    assert browser.run("return window.modscopeError || ''") == ""
    heads = browser.run(
        "return [...document.querySelectorAll('#ranks th')].filter((head) => head.offsetParent).map((head) => "
        "head.textContent)"
    )
    assert heads == ["Rank", "Device", "Peak", "Compared with rank 1", "Steps", "End"]
    assert (
        browser.text("#ranks tbody tr[data-rank='0']").split()
        == "0 cpu 78.00 MiB not compared 0 No end: it was killed, or still runs".split()
    )
    rows = browser.texts("#differences tbody li")
    assert len(rows) == 9 and rows[-1] == "8 of 12 rows: modscope summary --json of these captures lists all."
    assert main(["report", *names[:2], "-o", str(tmp_path / "two.html")]) == 0
    browser.open((tmp_path / "two.html").as_uri(), READY)
    assert browser.text("#differences-none") == "Nothing is compared: only the peak of rank 1 can be."
    assert browser.complaints() == []


# ---- when it is written ----


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[str, dict[str, Any]]:
        assert main(["report", *words, "-f", "-o", "out.html", "--json"]) == 0
        return (tmp_path / "out.html").read_text(), json.loads(capsys.readouterr().out)

    return run


def has_rank_axis(page: str) -> bool:
    return 'id="heat"' in page


def test_ranks_of_one_program_have_a_rank_axis_and_others_are_side_by_side(tmp_path, report):
    names = write_job(tmp_path, 2)
    (tmp_path / "eval.msc").write_bytes(rank_capture(1, 2, program="eval.py").end(how="finished"))
    (tmp_path / "alone.msc").write_bytes(rank_capture(0, 1).end(how="finished"))
    page, told = report(*names)
    assert has_rank_axis(page) and told["events"] == [load(name).event_count for name in names] and told["notes"] == []
    for words in (
        [*names, "--side-by-side"],
        [names[0]],
        [names[0], "eval.msc", "--side-by-side"],
        [names[0], "alone.msc"],
    ):
        page, told = report(*words)
        assert not has_rank_axis(page) and told["notes"] == [], words


def test_two_captures_of_one_rank_are_side_by_side_and_that_is_said(tmp_path, report):
    names = write_job(tmp_path, 2)
    page, told = report(*names, names[1])
    assert not has_rank_axis(page)
    assert told["notes"] == [
        "There are several captures of rank 1, so all are shown side by side. Give those of one run to see its "
        "ranks over time."
    ]


def test_ranks_of_different_programs_or_jobs_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = write_job(tmp_path, 2)

    def refused(**info: str) -> str:
        (tmp_path / "other.msc").write_bytes(rank_capture(1, 2, **info).end(how="finished"))
        assert main(["report", names[0], "other.msc", "-o", "out.html"]) == 1 and not (tmp_path / "out.html").exists()
        return capsys.readouterr().err

    end = "Give the captures of one job, or add --side-by-side to compare them one by one\n"
    assert (
        refused(program="eval.py")
        == f"modscope: These captures are of different programs: train.py (x.rank0.msc), eval.py (other.msc). {end}"
    )
    assert refused(arguments="--lr\n4").endswith(end) and refused(job="j2").endswith(end)


def test_only_some_steps(tmp_path, report):
    names = write_job(tmp_path, 2, steps=5)
    assert has_rank_axis(report(*names, "--steps", "2:3")[0])
    with pytest.raises(AssertionError):
        report(*names, "--steps", "9")


def test_nothing_of_the_program_becomes_code(tmp_path, report):
    evil = "</script><script>alert(1)</script><b>"
    names = write_job(tmp_path, 2, {0: {"how": "exception", "error": evil}}, program=evil, host=evil, node="")
    page, _ = report(*names)
    assert "alert(1)" not in page.replace("&lt;/script&gt;&lt;script&gt;alert(1)", "")


@pytest.mark.slow
def test_a_thousand_ranks_that_all_differ(tmp_path, report):
    """The most that a page can need: every rank holds something else in every column."""
    pick = random.Random(0)
    names = []
    for rank in range(1000):
        c = Capture(("cuda:0",), program="train.py", rank=str(rank), world="1000", began=str(1e9 + rank / 100))
        modules = [c.module(f"Net.{i}") for i in range(8)]
        for _ in range(3):
            c.step()
            blocks = []
            for i in range(40):
                c.where(("forward", "backward")[i % 2], modules[i % 8])
                blocks.append(
                    c.add(
                        pick.randrange(1 << 24, 1 << 30) & ~511,
                        category=("Parameter", "Temp", "Gradient", "Other", None)[i % 5],
                    )
                )
                c.wait(1000)
            c.drop(*blocks)
        names.append(f"{rank}.msc")
        (tmp_path / names[-1]).write_bytes(c.end(how="finished"))
    page, _ = report(*names)
    assert has_rank_axis(page) and len(page) < 10_000_000


@pytest.mark.slow
def test_predicted_ranks_are_aligned_by_step_at_first(browser, tmp_path):
    """Each was predicted on a virtual clock of its own: when the prediction ran says nothing."""
    names = []
    for rank in range(2):
        names.append(str(tmp_path / f"{rank}.msc"))
        predicted = {"source": "predicted", "gpu_title": "H100", "began": f"{1e9 + 30 * rank:.3f}"}
        pathlib.Path(names[-1]).write_bytes(rank_capture(rank, 2, **predicted).end(how="finished"))
    assert main(["report", *names, "-o", str(tmp_path / "job.html")]) == 0
    browser.screen(390, 800)
    browser.open((tmp_path / "job.html").as_uri(), READY)
    assert browser.data("body")[0]["axis"] == "step"
    begins = browser.run("return window.modscope.job.ranks.map((rank) => rank.begin)")
    assert begins == [0, 0]
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    modules = browser.place(".wide-table:has(#rank-modules)"), browser.place("#rank-modules")
    assert modules[1].width <= modules[0].width, "the figures of modules are on the screen"
