"""Lines and operators in captures: what the commands, the exports and the out-of-memory report say of them."""

import json
import os
import pickle
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import modscope
import pytest
from helpers import INTERCEPTION
from modscope.__main__ import main
from modscope._cli import blocks
from modscope._read.groups import Group
from modscope._read.lines import Frame, Place, Places
from modscope._show import lines as _lines_show
from modscope._show.terminal import Screen

import torch

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")

SCRIPT = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(256, 256)

    def forward(self, x):
        hidden = torch.relu(self.inner(x))
        return (
            hidden
            @ hidden.mT
        )

def main(kept):
    net = Net()
    for _ in range(6):
        kept.append(torch.zeros(1000))
        net(torch.ones(128, 256)).sum().backward()
        net.zero_grad()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A script, and the capture of its run with all frames. Its source was written before."""
    folder = tmp_path_factory.mktemp("lines")
    script, capture = folder / "script.py", folder / "run.msc"
    script.write_text(SCRIPT)
    os.utime(script, (1e9, 1e9))
    names: dict[str, Any] = {}
    kept: list[torch.Tensor] = []
    exec(compile(SCRIPT, str(script), "exec"), names)
    with modscope.record(capture, stacks=8):
        names["main"](kept)
    return script, capture


def command(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "modscope", *map(str, words)], check=True, capture_output=True, text=True
    )
    return done.stdout


def figures(*words: object) -> Any:
    return json.loads(command(*words, "--json"))


def test_each_block_has_its_line_function_and_operator(run):
    script, file = run
    made: dict[tuple[int, str, str | None], int] = {}
    capture = modscope.load(file)
    for block in capture.snapshot("peak").blocks():
        assert block.place is not None and block.place.file == str(script), block
        key = block.place.line or 0, block.place.function or "", block.place.operator
        made[key] = made.get(key, 0) + block.bytes
    assert made[9, "Net.forward", "torch.relu"] == 128 * 256 * 4
    assert (9, "Net.forward", "self.inner") not in made  # relu keeps its result only
    assert made[6, "Net.__init__", "torch.nn.Linear"] == 257 * 256 * 4
    backward = {operator for line, _, operator in made if line == 19 and operator and operator.endswith("0")}
    assert backward  # the peak is in backward


def test_the_stack_around_a_line(run):
    script, file = run
    capture = modscope.load(file)
    block = next(
        block for block in capture.snapshot("peak").blocks() if block.place and block.place.operator == "torch.relu"
    )
    assert block.place is not None
    assert [(frame.function, frame.line) for frame in block.place.frames[:2]] == [("Net.forward", 9), ("main", 19)]
    assert block.place.source == "hidden = torch.relu(self.inner(x))"


def test_the_commands_show_lines(run):
    script, file = run
    by_line = figures("tree", file, "--by", "line")
    total = by_line["total"]
    (top,) = by_line["tree"]
    assert top["name"].endswith("script.py") and top["subtree"]["Total"] == total
    functions = {child["name"]: child for child in top["children"]}
    assert functions.keys() == {"in main", "in Net.forward", "in Net.__init__"}
    lines = {child["name"]: child["own"]["Total"] for child in functions["in Net.forward"]["children"]}
    assert lines["line 9: hidden = torch.relu(self.inner(x))"] == 128 * 256 * 4
    assert sum(child["subtree"]["Total"] for child in top["children"]) == total
    by_operator = figures("tree", file, "--by", "operator")
    assert sum(node["subtree"]["Total"] for node in by_operator["tree"]) == total
    assert {"torch.relu", "torch.nn.Linear"} <= {node["name"] for node in by_operator["tree"]}
    leaks = figures("leaks", file)
    (group,) = [group for group in leaks["groups"] if group["module"] == "Global"]
    assert [(row["line"], row["function"], row["count"]) for row in group["lines"]] == [(18, "main", group["count"])]
    assert "script.py:18 in main" in command("leaks", file)
    assert "kept.append(torch.zeros(1000))" in command("leaks", file)


@pytest.mark.parametrize("columns", [50, 60, 80, 100, 120, 200])
def test_blocks_show_their_lines_in_a_terminal_of_any_width(run, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["blocks", str(run[1]), "--no-group", "-n", "0"]) == 0
    out = capsys.readouterr().out
    table = out.split("\n\n")[1].splitlines()
    assert "Line" in table[0] and max(map(len, table)) <= columns
    assert "script.py:9" in out and "script.py:6" in out
    assert ("Phase" in table[0]) == (columns >= 80) and ("Age" in table[0]) == (columns >= 100)


def test_a_long_line_is_shortened_before_the_modules_name():
    block = {"bytes": 1 << 20, "category": "Activation", "kind": None, "phase": "forward", "step": 2, "age": 1.0}
    block |= {
        "outside": False,
        "file": "/x/modeling_of_something_long.py",
        "line": 12345,
        "operator": None,
        "forward_file": None,
    }
    module = "Model.layers.3.attention.projection"
    for columns in (60, 80, 100, 120):
        head, row = blocks._table([Group(module, [block])], Screen(columns))
        assert "model" in row and ".py:12345" in row and "projection" in row and len(row) <= columns, row
        assert head.index("Line") == row.index("model") and ("Phase" in head) == (columns > 80)


def test_blocks_that_only_a_hidden_column_tells_apart_are_one_row():
    block = {
        "bytes": 1 << 20,
        "category": "Temp",
        "kind": None,
        "phase": "backward",
        "step": 2,
        "age": 1.0,
        "outside": False,
    }
    block |= {"file": None, "line": None, "operator": None, "forward_file": "/x/train.py", "forward_line": 41}
    groups = [Group("Global", [block | {"node": node}]) for node in ("LogSoftmaxBackward0", "NllLossBackward0")]
    (narrow,) = blocks._merge(groups, None, Screen(80))
    assert len(narrow.members) == 2 and "2 x 1.00 MiB" in blocks._table([narrow], Screen(80))[1]
    wide = blocks._table(blocks._merge(groups, None, Screen(120)), Screen(120))
    assert "LogSoftmaxBackward0, forward at train.py:41" in wide[1] and "NllLossBackward0" in wide[2]


def test_a_change_of_code_by_line(run, tmp_path):
    script, file = run
    other = tmp_path / "other.msc"
    names: dict[str, Any] = {}
    exec(compile(SCRIPT.replace("zeros(1000)", "zeros(5000)"), str(script), "exec"), names)
    with modscope.record(other):
        names["main"](kept := [])
    changed = figures("diff", file, other, "--by", "line", "--at", "step:5")["modules"]
    assert [(row["module"].rpartition("/")[2], row["change"]) for row in changed] == [
        ("script.py:18 in main", 6 * 4000 * 4)
    ]
    assert kept


def test_a_source_that_is_gone_or_has_changed(run):
    script, file = run
    text = script.read_text()

    def notes() -> set[str | None]:
        from modscope._read import lines as _lines_read

        _lines_read._source_note.cache_clear()
        found = modscope.load(file).snapshot("peak").blocks()
        return {block.place.source_note for block in found if block.place}

    try:
        assert notes() == {None}
        script.unlink()
        assert notes() == {"source not found"}
        assert "(source not found)" in command("tree", file, "--by", "line")
        script.write_text(text + "\n")
        assert notes() == {"changed since"}
        assert "(changed since)" in command("tree", file, "--by", "line")
        block = next(modscope.load(file).snapshot("peak").blocks())
        assert block.place and block.place.line and block.place.source is None
    finally:
        script.write_text(text)
        os.utime(script, (1e9, 1e9))


def test_torchs_own_viewer_gets_the_lines(run, tmp_path):
    from torch.cuda import _memory_viz  # of torch: it reads what a snapshot's frames are

    script, file = run
    out = tmp_path / "snapshot.pickle"
    command("export", file, "-o", out)
    snapshot = pickle.loads(out.read_bytes())
    frames = [frame for entry in snapshot["device_traces"][0] for frame in entry["frames"]]
    lines = {(frame["name"], frame["line"]) for frame in frames if frame["filename"] == str(script)}
    assert {("Net.forward", 9), ("main", 19)} <= lines
    assert any(frame["filename"] == "operator" and frame["name"].endswith("Backward0") for frame in frames)
    assert "script.py:18:main" in _memory_viz.memory(snapshot, format_flamegraph=lambda rows: rows)


def test_blocks_older_than_the_recording_keep_their_lines(tmp_path):
    file = tmp_path / "late.msc"
    with modscope.MemTracker():
        kept = torch.zeros(12345)
        with modscope.record(file):
            pass
    (block,) = [block for block in modscope.load(file).snapshot(1).blocks() if block.bytes == 4 * 12345]
    assert block.place and block.place.function == "test_blocks_older_than_the_recording_keep_their_lines"
    assert kept.numel()


def test_a_moment_without_lines_is_no_recording_without_lines(tmp_path, capsys):
    """Only the parameters are held at the end, and they are older than the recording."""
    net, file = torch.nn.Linear(64, 64), tmp_path / "old.msc"
    with modscope.record(file), torch.no_grad():
        net(torch.ones(100, 64))
    end = f"time:{modscope.load(file).duration:f}"
    for words in (["tree", "--by", "line"], ["flame"]):
        assert main([*words, str(file), "--at", end]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert (
            "16.25 KiB" in out
            and "Nothing that is shown here has a line: it was made before the recording began, or not by Python code."
            in out
        )


def test_lines_take_less_than_one_and_a_half_bytes_a_block(tmp_path):
    """3000 more blocks are counted, because a capture also has the table of all stacks that this process made
    before."""

    def size_of(stacks, count):
        file = tmp_path / f"{stacks}-{count}.msc"
        with modscope.record(file, stacks=stacks):
            for _ in range(count):
                torch.zeros(100)
        capture = modscope.load(file)
        assert capture.places.has_lines == (stacks > 0)
        return capture.bytes

    without, with_lines = ([size_of(stacks, count) for count in (3000, 6000)] for stacks in (0, 1))
    assert (with_lines[1] - with_lines[0]) - (without[1] - without[0]) < 3000 * 1.5


@pytest.mark.slow
def test_modscope_run_keeps_so_many_frames(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\ndef inner():\n    return torch.zeros(1000)\nkept = inner()\n")
    for stacks in (0, 2):
        file = tmp_path / f"{stacks}.msc"
        command("run", "-q", "--stacks", stacks, "-o", file, script)
        (block, *_) = modscope.load(file).snapshot("peak").blocks()
        frames = [(frame.function, frame.line) for frame in block.place.frames] if block.place else []
        assert frames == [("inner", 3), ("<module>", 4)][:stacks]


@pytest.mark.parametrize("stacks", ["-1", "65", "x", "1.5"])
def test_a_number_of_frames_that_is_none_is_refused(stacks, tmp_path):
    words = [sys.executable, "-m", "modscope", "run", f"--stacks={stacks}", str(tmp_path / "missing.py")]
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 2 and "0 to 64" in refused.stderr


def test_the_function_that_a_line_calls(tmp_path):
    source = tmp_path / "calls.py"
    rows = [
        "torch.relu(x)",
        "x.view(3).sum()",
        "a + b",
        "-a",
        "a < b",
        "x[0]",
        "f(x)(y)",
        "await g(x)",
        "ä.größe(x)",
        "(",
        "x.y",
    ]
    source.write_text("".join(f"    {row}\n" for row in rows), encoding="utf-8")
    found = []
    for number, row in enumerate(rows, 1):
        frame = Frame(str(source), "f", number, number, 4, 4 + len(row.encode()))
        found.append(Place((frame,), None, None).operator)
    assert found == ["torch.relu", "sum", "add", "neg", "lt", "getitem", None, "g", "ä.größe", None, None]


_MODEL = """\
import torch

kept = []

def activate(x):
    kept.append(torch.relu(x))
    return kept[-1]

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 512)

    def forward(self, x):
        return activate(self.up(x))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block()])

    def forward(self, x):
        return self.blocks[0](x).sum()

def train(model, x):
    scale = torch.ones(3000)
    model(x).backward()
    return scale
"""
_USER = """\
import torch
def main():
    return train(Model(), torch.ones(64, 64))
"""


@pytest.mark.parametrize("frames", [1, 3])
def test_a_model_in_a_library_has_its_own_line_beside_the_programs(tmp_path, capsys, frames):
    library, script = os.path.join(sysconfig.get_paths()["purelib"], "zoo", "net.py"), str(tmp_path / "train.py")
    names: dict[str, Any] = {"__name__": "zoo"}
    exec(compile(_MODEL, library, "exec"), names)
    exec(compile(_USER, script, "exec"), names)
    with modscope.record(tmp_path / "run.msc", stacks=frames):
        held = names["main"]()
    capture = modscope.load(tmp_path / "run.msc")
    lines: dict[str, list[tuple[str | None, int | None, list[int]]]] = {}
    places = [block.place for block in capture.snapshot("peak").blocks() if block.place is not None]
    for place in places:
        at = place.attributed
        lines.setdefault(place.operator or "", []).append((at.file, at.line, [each.line for each in at.model]))
    assert lines["torch.relu"] == [(script, 3, [6, 15, 23][:frames])]
    assert lines["AddmmBackward0"] == [(script, 3, [15, 23][:frames])] * 2  # the line that calls what torch computes
    assert lines["ReluBackward0"] == [(script, 3, [6, 15, 23][:frames])]  # by the line of the forward
    assert set(map(str, lines["train"])) == {str((script, 3, []))}  # in no module's forward
    assert held.shape == (3000,)
    [relu] = [place for place in places if place.operator == "torch.relu"]
    assert relu.describe().startswith(f"zoo/net.py:6 in activate, called from {script}:3 in main")
    assert [each["line"] for each in relu.to_dict()["stack"]][: frames + 1] == [6, 15, 23][:frames] + [3]
    assert relu.to_dict()["model_function"] == "activate"
    peak = ["tree", str(tmp_path / "run.msc"), "--at", "peak", "--by", "line"]
    assert main([*peak, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)["tree"]
    [line] = [row for file in tree if file["name"] == script for row in file["children"][0]["children"]]
    assert line["subtree"]["Total"] == sum(row["subtree"]["Total"] for row in line["children"]) + line["own"]["Total"]
    assert {"zoo/net.py:6 in activate", "zoo/net.py:15 in Block.forward"} <= {row["name"] for row in line["children"]}
    assert main(["flame", str(tmp_path / "run.msc"), "--by", "line", "--folded"]) == 0
    assert "main (train.py:3);activate (net.py:6)" in capsys.readouterr().out or frames > 1


def test_a_line_that_was_lost_says_so():
    lost = Places([]).find(1)
    assert lost is not None and lost.lost and lost.line is None
    assert "lost" in _lines_show.line_label(lost) and "lost" in lost.describe()
    assert _lines_show.line_label(None) == "(line not known)"


def test_stacks_of_a_forged_file_that_go_round_in_circles():
    table = [None, None, ("a.py", "f", 1, 0, 0, 0, 3), ("b.py", "g", 2, 0, 0, 0, 2)]
    place = Places(table).find(3)
    assert place is not None and [frame.function for frame in place.frames] == ["g", "f"]


@pytest.mark.parametrize("inside, line", [(True, "a.py:13"), (False, "MulBackward, forward at a.py:18")])
def test_a_block_that_a_custom_backward_made_has_its_own_line(inside: bool, line: str) -> None:
    made, created = (Frame("a.py", "f", number, number, 0, 0, None) for number in (13, 18))
    report = Place((made,), "MulBackward", None, forward=(created,), is_inside=inside).to_dict()
    assert _lines_show.short_line(report, wide=True) == line
