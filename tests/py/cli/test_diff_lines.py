"""`modscope diff --by line` of two versions of a program: which line of one is which line of the other."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modscope
import pytest
from helpers import INTERCEPTION
from hypothesis import given, settings
from hypothesis import strategies as st
from modscope.__main__ import main
from modscope._read import lines as _lines_read
from modscope._read.lines import Places
from modscope._show.line_diff import LineMatch, Side

import torch

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")

BEFORE = """\
import torch

def load(kept):
    kept.append(torch.zeros(1000))
    kept.append(torch.ones(500))

def train(kept):
    first = torch.zeros(2000)
    second = torch.full((300,), 1.0)
    kept += [first, second, *(torch.zeros(100) for _ in range(2))]

def main(kept):
    load(kept)
    train(kept)
"""

# train is above load now; in load a line is new, and one makes more; in train one line is gone.
AFTER = """\
import torch

# What follows was below.
def train(kept):
    first = torch.zeros(2000)
    print(end="")
    kept += [first, *(torch.zeros(100) for _ in range(2))]

def load(kept):
    # A comment.
    kept.append(torch.zeros(7000))
    kept.append(torch.rand(40))
    kept.append(torch.ones(500))

def main(kept):
    load(kept)
    train(kept)
"""

EXPECTED = {
    ("load", "train.py:11 (was 4) in load", 6000 * 4),
    ("load", "train.py:12 (only in B) in load", 40 * 4),
    ("train", "train.py:9 (only in A) in train", -300 * 4),
}


def record(script: Path, source: str, capture: Path, stacks: int = 1) -> None:
    """Run the source as this script, which is then there, older than the run."""
    script.parent.mkdir(exist_ok=True)
    script.write_text(source)
    os.utime(script, (1e9, 1e9))
    names: dict[str, Any] = {}
    kept: list[torch.Tensor] = []
    exec(compile(source, str(script), "exec"), names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
        with modscope.record(capture, stacks=stacks):
            names["main"](kept)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of two versions: in two folders, in one folder under two names, and of the same file before and
    after."""
    folder = tmp_path_factory.mktemp("diff")
    record(folder / "a" / "train.py", BEFORE, folder / "a.msc")
    record(folder / "b" / "train.py", AFTER, folder / "b.msc")
    record(folder / "b" / "train2.py", BEFORE, folder / "renamed.msc")
    record(folder / "a" / "train.py", BEFORE, folder / "none.msc", stacks=0)
    record(folder / "b" / ".." / "a" / "train.py", BEFORE, folder / "dotted.msc")
    record(folder / "c" / "train.py", BEFORE, folder / "before.msc")
    record(folder / "c" / "train.py", AFTER, folder / "after.msc")
    os.utime(folder / "c" / "train.py", (2e9, 2e9))  # changed since
    record(folder / "gone" / "train.py", BEFORE, folder / "gone.msc")
    (folder / "gone" / "train.py").unlink()
    return folder


@pytest.fixture
def diff(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, str], Any]:
    monkeypatch.chdir(folder)
    _lines_read._source_note.cache_clear()

    def run(a: str, b: str, *options: str) -> Any:
        assert main(["diff", a, b, "--by", "line", *options]) == 0
        out = capsys.readouterr().out
        return json.loads(out) if "--json" in options else out

    return run


def changes(report: Any) -> set[tuple[str, str, int]]:
    assert sum(row["change"] for row in report["modules"]) == report["change"]
    return {(row["function"], row["module"], row["change"]) for row in report["modules"]}


def test_a_capture_without_lines_is_named_at_the_top(diff):
    for names, expected in (
        (("none.msc", "a.msc"), "A has no lines"),
        (("a.msc", "none.msc"), "B has no lines"),
        (("none.msc", "none.msc"), "No lines were recorded. "),
    ):
        out = " ".join(diff(*names).split())
        assert (
            out.index(expected) < out.index("Category")
            and "They are recorded by default, but not with --stacks 0 (in Python, stacks=0), " in out
        )
        told = diff(*names, "--json")
        assert [told[side]["has_lines"] for side in "ab"] == [name != "none.msc" for name in names]
    out = diff("a.msc", "b.msc")
    assert "no lines" not in out and "No lines" not in out


def test_two_folders_with_the_same_script(diff):
    assert changes(diff("a.msc", "b.msc", "--json")) == EXPECTED


def test_the_figures_name_both_lines(diff, folder):
    (row,) = [row for row in diff("a.msc", "b.msc", "--json")["modules"] if row["change"] == 24_000]
    assert (row["a_file"], row["a_line"]) == (str(folder / "a" / "train.py"), 4)
    assert (row["b_file"], row["b_line"], row["node"]) == (str(folder / "b" / "train.py"), 11, None)
    (new,) = [row for row in diff("a.msc", "b.msc", "--json")["modules"] if row["change"] == 160]
    assert (new["a_file"], new["a_line"], new["b_line"]) == (None, None, 12)


def test_a_script_that_was_changed_where_it_is(diff):
    """The text of the first run is not there any more: its lines are known by the columns of their calls."""
    expected = {
        (function, label.replace("train.py", os.path.join("c", "train.py")), change)
        for function, label, change in EXPECTED
    }
    assert changes(diff("before.msc", "after.msc", "--json")) == expected


def test_a_script_that_is_gone(diff):
    assert changes(diff("gone.msc", "b.msc", "--json")) == EXPECTED


def test_a_script_with_another_name(diff):
    labels = {row["module"] for row in diff("renamed.msc", "b.msc", "--json")["modules"]}
    assert "b/train.py:11 (was b/train2.py:4) in load" in labels
    assert "train.py:11 (was train2.py:4) in load\n" in diff("renamed.msc", "b.msc")  # in 80 columns


def test_the_same_program_in_two_folders_did_not_change(diff):
    assert "No line holds more or less." in diff("a.msc", "gone.msc")


def test_the_other_way_round(diff):
    there, back = diff("a.msc", "b.msc", "--json"), diff("b.msc", "a.msc", "--json")
    assert sorted(row["change"] for row in there["modules"]) == sorted(-row["change"] for row in back["modules"])


# ---- the rules, one by one ----


def side(program: str, *frames: tuple[str, str, int, int, int]) -> Side:
    """A capture's lines: file, function, line, first and last column; without columns if the last is 0."""
    raw = [(file, function, line, line if end else 0, begin, end, 0) for file, function, line, begin, end in frames]
    return Side(Places([None, None, *raw]), range(2, len(raw) + 2), program)


def test_a_script_that_was_given_from_another_folder(diff, folder, capsys):
    """As ../a/train.py: its lines are those of a/train.py, and the capture keeps the name that it has."""
    told = diff("a.msc", "dotted.msc", "--json")
    assert told["modules"] == [] and told["change"] == 0
    assert changes(diff("dotted.msc", "b.msc", "--json")) == EXPECTED
    raw = modscope.load("dotted.msc")._reader.stacks
    assert str(folder / "b" / ".." / "a" / "train.py") in {frame[0] for frame in raw if frame}
    assert main(["tree", "dotted.msc", "--by", "line"]) == 0
    out = capsys.readouterr().out
    assert " a/train.py\n" in out and ".." not in out and "line 4: kept.append(torch.zeros(1000))" in out
    a, b = side("../x.py", ("/r/../x.py", "f", 3, 0, 9)), side("x.py", ("/x.py", "f", 3, 0, 9))
    assert a.script == b.script == "/x.py" and LineMatch(a, b).in_b("/x.py", "f", 3) == ("/x.py", 3)


def test_dots_stay_in_a_name_that_would_be_another_file_without_them(tmp_path):
    for name in ("far/away", "near"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far" / "away")
    (tmp_path / "far" / "x.py").write_text("")
    beyond = f"{tmp_path}/near/link/../x.py"  # it is far/x.py, not near/x.py
    _lines_read.normal_file.cache_clear()
    assert _lines_read.normal_file(beyond) == beyond
    (tmp_path / "near" / "x.py").write_text("")
    _lines_read.normal_file.cache_clear()
    assert _lines_read.normal_file(beyond) == beyond
    assert _lines_read.normal_file(f"{tmp_path}/near/../far/x.py") == f"{tmp_path}/far/x.py"
    assert (
        _lines_read.normal_file("/gone/a/../x.py") == "/gone/x.py"
        and _lines_read.normal_file("../<string>") == "../<string>"
    )


def test_files_by_their_names_from_the_scripts_folder():
    a = side(
        "/a/jobs/train.py",
        ("/a/model/net.py", "f", 3, 0, 9),
        ("/a/jobs/train.py", "f", 5, 0, 9),
        ("/lib/x.py", "f", 7, 0, 9),
    )
    b = side(
        "jobs/train.py",
        ("/b/model/net.py", "f", 4, 0, 9),
        ("/b/jobs/train.py", "f", 6, 0, 9),
        ("/lib/x.py", "f", 8, 0, 9),
    )
    match = LineMatch(a, b)
    assert match.in_b("/a/model/net.py", "f", 3) == ("/b/model/net.py", 4)
    assert match.in_b("/a/jobs/train.py", "f", 5) == ("/b/jobs/train.py", 6)
    assert match.in_a("/lib/x.py", "f", 8) == ("/lib/x.py", 7)


def test_a_name_that_two_files_share_matches_neither():
    a = side("", ("/a/one/net.py", "f", 3, 0, 9))
    b = side("", ("/b/net.py", "f", 3, 0, 9), ("/b/two/net.py", "f", 3, 0, 9))
    assert LineMatch(a, b).in_b("/a/one/net.py", "f", 3) is None
    assert LineMatch(a, side("", ("/b/net.py", "f", 3, 0, 9))).in_b("/a/one/net.py", "f", 3) == ("/b/net.py", 3)


def test_functions_of_one_name_in_different_classes_are_different():
    a = side("", ("/x.py", "A.forward", 3, 0, 9))
    b = side("", ("/x.py", "B.forward", 3, 0, 9))
    assert LineMatch(a, b).in_b("/x.py", "A.forward", 3) is None


def test_lines_without_columns_by_their_distance_from_the_first():
    a = side("", *(("/x.py", "f", line, 0, 0) for line in (10, 12, 15)))
    b = side("", *(("/x.py", "f", line, 0, 0) for line in (30, 35)))
    match = LineMatch(a, b)
    assert [match.in_b("/x.py", "f", line) for line in (10, 12, 15)] == [("/x.py", 30), None, ("/x.py", 35)]
    assert [match.in_a("/x.py", "f", line) for line in (30, 35)] == [("/x.py", 10), ("/x.py", 15)]


def test_several_calls_in_a_line_are_one_line():
    a = side("", ("/x.py", "f", 3, 0, 9), ("/x.py", "f", 3, 10, 12), ("/x.py", "f", 4, 0, 5))
    b = side("", ("/x.py", "f", 8, 0, 9), ("/x.py", "f", 9, 0, 5))
    match = LineMatch(a, b)
    assert (match.in_b("/x.py", "f", 3), match.in_b("/x.py", "f", 4)) == (("/x.py", 8), ("/x.py", 9))


def test_a_call_that_moved_to_another_line_and_column_is_known_by_its_length():
    a = side("", ("/x.py", "f", 43, 25, 43), ("/x.py", "f", 43, 32, 42))
    b = side("", ("/x.py", "f", 43, 12, 30), ("/x.py", "f", 43, 19, 29), ("/x.py", "f", 44, 12, 29))
    match = LineMatch(a, b)
    assert match.in_b("/x.py", "f", 43) == ("/x.py", 43) and match.in_a("/x.py", "f", 44) is None


def test_source_that_cannot_be_compiled_is_matched_by_columns(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("def f(:\n")
    one = side("", (str(file), "f", 3, 0, 9))
    other = side("", (str(file), "f", 4, 0, 9))
    assert LineMatch(one, other).in_b(str(file), "f", 3) == (str(file), 4)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_lines_that_stay_are_found_after_any_change(chance):
    """Lines are inserted, removed and moved down. Those that stay, in their order, are the same ones: by their text,
    and by their columns if the text is gone."""
    width = 40
    before = [f"    {chr(97 + i) * chance.randrange(4, width)} = {i}" for i in range(chance.randrange(1, 25))]
    stays = [chance.random() < 0.8 for _ in before]
    after: list[str] = []
    truth: dict[int, int] = {}
    for number, (line, stay) in enumerate(zip(before, stays), 2):
        after += [
            f"    new_{chance.randrange(10**9)} = 0" for _ in range(chance.randrange(3) if chance.random() < 0.3 else 0)
        ]
        if stay:
            after.append(line)
            truth[number] = len(after) + 3
    texts = [
        "def f():\n" + "\n".join(before) + "\n",
        "import x\n\ndef f():\n" + "\n".join(after or ["    pass"]) + "\n",
    ]
    with tempfile.TemporaryDirectory() as folder:
        sides = []
        for name, text in zip("ab", texts):
            file = os.path.join(folder, name, "x.py")
            os.mkdir(os.path.dirname(file))
            Path(file).write_text(text)
            rows = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.startswith("    ")]
            sides.append(side(file, *((file, "f", number, 4, len(line)) for number, line in rows)))
        a, b = (os.path.join(folder, name, "x.py") for name in "ab")
        by_text, by_columns = LineMatch(*sides), LineMatch(*sides)
        found = {line: by_text.in_b(a, "f", line) for line in truth}
        assert found == {line: (b, number) for line, number in truth.items()}
        assert all(by_text.in_a(b, "f", number) == (a, line) for line, number in truth.items())
        os.unlink(a)
        _lines_read._source_note.cache_clear()
        matched = [by_columns.in_b(a, "f", number) for number in range(2, len(before) + 2)]
        numbers = [each[1] for each in matched if each is not None]
        assert len(set(numbers)) == len(numbers)  # no line of B is two lines of A
