"""``modscope flame``: the picture in the terminal, the folded stacks and the figures. Each is compared with ``tree``,
and the stacks with what torch's own reader of snapshots makes of the same capture."""

import json
import os
import pickle
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modscope
import pytest
from capture_helpers import Capture
from helpers import INTERCEPTION
from modscope.__main__ import main
from modscope._read.lines import Places
from modscope._show.lines import NO_LINES

import torch

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")

SCRIPT = """\
import torch

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(256, 512)
        self.down = torch.nn.Linear(512, 256)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def main(kept):
    net = Net()
    for _ in range(2):
        kept.append(torch.zeros(100_000))
        net(torch.ones(128, 256)).sum().backward()
        net.zero_grad()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures of a script with eight frames for each block, with one, and with none. Its source was written before."""
    folder = tmp_path_factory.mktemp("flame")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    os.utime(script, (1e9, 1e9))
    names: dict[str, Any] = {}
    exec(compile(SCRIPT, str(script), "exec"), names)
    for stacks in (8, 1, 0):
        kept: list[torch.Tensor] = []
        with modscope.record(folder / f"{stacks}.msc", stacks=stacks):
            names["main"](kept)
    return folder


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(folder)

    def run(line: str, columns: int = 80, status: int = 0) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        try:
            found: object = main(line.split())
        except SystemExit as left:
            found = left.code
        out, err = capsys.readouterr()
        assert found == status, err
        return out if status == 0 else err

    return run


def nodes(tree: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in tree:
        yield node
        yield from nodes(node["children"])


def picture(out: str) -> list[str]:
    return [line for line in out.splitlines() if "│" in line]


# ---- figures ----


@pytest.mark.parametrize("by", ["module", "layers", "line", "operator", "category"])
@pytest.mark.parametrize("at", ["peak", "step:1", "time:0"])
def test_all_bytes_of_the_moment_are_in_it_once(run, by, at):
    for stacks in (8, 1, 0):
        total = json.loads(run(f"tree {stacks}.msc --at {at} --json"))["total"]
        flame = json.loads(run(f"flame {stacks}.msc --at {at} --by {by} --json"))
        assert flame["total"] == flame["shown"] == total
        assert sum(node["own"]["Total"] for node in nodes(flame["tree"])) == total
        for node in nodes(flame["tree"]):
            parts = [node["own"], *(child["subtree"] for child in node["children"])]
            assert node["subtree"] == {word: sum(part[word] for part in parts) for word in node["subtree"]}
            sizes = [child["subtree"]["Total"] for child in node["children"]]
            assert sizes == sorted(sizes, reverse=True) and 0 not in sizes


def test_a_module_holds_what_tree_says(run):
    tree = {node["fqn"]: node["subtree"] for node in nodes(json.loads(run("tree 8.msc --json"))["tree"])}
    flame = json.loads(run("flame 8.msc --json"))["tree"]
    assert {node["fqn"]: node["subtree"] for node in nodes(flame) if node["what"] == "module"} == tree


def test_below_a_module_are_the_frames_and_the_operator(run, folder):
    (up,) = [node for node in nodes(json.loads(run("flame 8.msc --json"))["tree"]) if node["fqn"] == "Net.layers.1.up"]
    made, stack = [up], []
    while made:
        stack += [(node["what"], node["function"], node["line"], node["name"]) for node in made[:1]]
        made = [child for child in made[0]["children"] if child["function"] != "Layer.forward"] or made[0]["children"]
    frames = [(function, line) for what, function, line, _ in stack if what == "frame" and function != "run"]
    assert frames[-4:] == [
        ("main", 23),
        ("Net.__init__", 15),
        ("Net.__init__.<locals>.<genexpr>", 15),
        ("Layer.__init__", 6),
    ]
    assert stack[-1][0] == "operator" and stack[-1][3] == "torch.nn.Linear"


def test_with_one_frame_there_is_only_the_line(run):
    flame = json.loads(run("flame 1.msc --json --module Net.layers.2.down"))
    (down,) = flame["tree"]
    assert flame["frames"] == 1 and down["name"] == "Net.layers.2.down"
    (made,) = [child for child in down["children"] if child["function"] == "Layer.__init__"]
    assert made["name"] == "Layer.__init__ (script.py:7)" and made["own"]["Total"] == 0
    assert [(child["what"], child["name"]) for child in made["children"]] == [("operator", "torch.nn.Linear")]


def test_torchs_reader_of_snapshots_finds_the_same_stacks(run, folder):
    from torch.cuda import _memory_viz  # of torch: it writes folded stacks too

    run("export 8.msc -f -o peak.pickle --at peak")
    snapshot = pickle.loads((folder / "peak.pickle").read_bytes())
    theirs: Counter[tuple[str, ...]] = Counter()
    for line in _memory_viz.memory(snapshot, format_flamegraph=lambda rows: rows).splitlines():
        stack, _, size = line.rpartition(" ")
        lines = re.findall(r"script\.py:(\d+):([\w.<>]+)", stack)
        # of backward it has the line of backward() outside that of the forward
        lines = lines[1:] if lines[:1] == lines[1:2] else lines
        theirs[tuple(f"{function} (script.py:{number})" for number, function in lines)] += int(size)
    ours: Counter[tuple[str, ...]] = Counter()
    for line in run("flame 8.msc --by line --folded").splitlines():
        stack, _, size = line.rpartition(" ")
        ours[tuple(part for part in stack.split(";") if "(script.py:" in part)] += int(size)
    theirs.pop((), None)  # what is reserved and not held
    assert {stack: size for stack, size in theirs.items() if size} == ours


def test_layers_together_are_the_sum_of_the_layers(run):
    tree = {node["fqn"]: node["subtree"]["Total"] for node in nodes(json.loads(run("tree 8.msc --json"))["tree"])}
    flame = {
        node["fqn"]: node["subtree"]["Total"]
        for node in nodes(json.loads(run("flame 8.msc --json --by layers"))["tree"])
        if node["fqn"]
    }
    assert flame["Net.layers.*.up"] == sum(tree[f"Net.layers.{i}.up"] for i in range(3))
    assert flame["Net.layers.*"] == tree["Net.layers"] and not any("0" in fqn for fqn in flame)
    (alone,) = json.loads(run("flame 8.msc --json --by layers --module Net.layers.1"))["tree"]
    assert (alone["name"], alone["subtree"]["Total"]) == ("Net.layers.*", tree["Net.layers.1"])


def test_below_an_operator_of_backward_is_the_line_of_the_forward(run):
    (linear,) = [
        node for node in json.loads(run("flame 8.msc --json --by operator"))["tree"] if node["name"] == "AddmmBackward0"
    ]
    assert {(below["function"], below["line"]) for below in linear["children"]} == {("Layer.forward", 10)}


# ---- folded ----


@pytest.mark.parametrize("by", ["module", "layers", "line", "operator", "category"])
def test_folded_stacks_add_up_and_have_the_form_that_other_tools_read(run, by):
    total = json.loads(run("tree 8.msc --json"))["total"]
    lines = run(f"flame 8.msc --folded --by {by}").splitlines()
    read = [re.fullmatch(r"([^;]+(?:;[^;]+)*) ([1-9][0-9]*)", line) for line in lines]
    assert all(read) and sum(int(line[2]) for line in read if line) == total
    stacks = [line[1] for line in read if line]
    assert len(set(stacks)) == len(stacks)
    if by == "module":
        (made,) = [
            line for line in lines if line.startswith("Net;layers;0;up;") and "Layer.__init__ (script.py:6)" in line
        ]
        assert made.endswith("Layer.__init__ (script.py:6);torch.nn.Linear 526336")


def test_a_depth_keeps_all_bytes(run):
    total = json.loads(run("tree 8.msc --json"))["total"]
    lines = run("flame 8.msc --folded --depth 2").splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == total
    assert max(line.count(";") for line in lines) == 1 and any(line.startswith("Net;layers ") for line in lines)


def test_a_module_alone(run):
    tree = {node["fqn"]: node["subtree"]["Total"] for node in nodes(json.loads(run("tree 8.msc --json"))["tree"])}
    for by in ("module", "layers", "line", "operator", "category"):
        flame = json.loads(run(f"flame 8.msc --json --module Net.layers.1 --by {by}"))
        assert flame["shown"] == tree["Net.layers.1"] and flame["below"] == "Net.layers.1"
    err = run("flame 8.msc --module Net.layer.1", status=1)
    assert "No module 'Net.layer.1' holds anything on cpu at this moment. Did you mean Net.layers.1" in " ".join(
        err.split()
    )
    assert "choose one" in run("flame 8.msc --folded --json", status=2)


def test_names_cannot_break_a_line_of_folded_stacks(run, folder):
    names: dict[str, Any] = {}
    exec(compile("import torch\ndef f(): return torch.zeros(500_000)\n", "<a;b\nc 7>", "exec"), names)
    with modscope.record(folder / "odd.msc"):
        kept = names["f"]()
    (line,) = [line for line in run("flame odd.msc --folded").splitlines() if line.endswith(f" {4 * kept.numel()}")]
    assert "f (<a:b\\x0ac 7>:2)" in line
    assert "<a;b" in run("flame odd.msc")


def test_a_place_of_a_module_has_the_bytes_of_its_blocks(folder):
    snapshot = modscope.load(folder / "8.msc").snapshot("peak")
    blocks: Counter[tuple[object, ...]] = Counter()
    for block in snapshot.blocks(device="cpu"):
        blocks[block.module, block.place, block.category] += block.bytes
    found: Counter[tuple[object, ...]] = Counter()
    for fqn, place, raw in snapshot.by_module_and_place("cpu"):
        for category, held in zip(modscope.Category, raw):
            found[fqn, place, category] += held
    assert +found == blocks


def test_a_forged_stack_of_a_million_frames_is_cut():
    table = [None, None, *(("a.py", "f", i, 0, 0, 0, i) for i in range(1, 1_000_000))]
    place = Places(table).find(len(table) - 1)
    assert place is not None and 64 <= len(place.frames) <= 130  # as many as a recording keeps, with a library's


# ---- search ----


def test_what_matches_counts_once(run):
    tree = {node["fqn"]: node["subtree"]["Total"] for node in nodes(json.loads(run("tree 8.msc --json"))["tree"])}
    found = json.loads(run("flame 8.msc --json --find LAYERS.1"))
    assert found["find"]["bytes"] == tree["Net.layers.1"]
    matching = [node["fqn"] for node in nodes(found["tree"]) if node["matches"]]
    assert {"Net.layers.1", "Net.layers.1.up", "Net.layers.1.down"} == {fqn for fqn in matching if fqn}
    assert json.loads(run("flame 8.msc --json --find layer.__init__"))["find"]["bytes"] >= 3 * 256 * 512 * 8
    everything = json.loads(run("flame 8.msc --json --find script.py"))
    assert everything["find"]["bytes"] == everything["total"]


def test_matches_are_marked_in_the_picture(run):
    out = run("flame 8.msc --find layers.1", columns=160)
    assert "'layers.1' matches" in out and "marked with ▶" in out
    marked = [cell for line in picture(out) for cell in line.split("│") if "▶" in cell]
    assert marked and marked[0].startswith("▶1 ")
    assert "▶" not in "".join(picture(run("flame 8.msc --find nowhere"))) and "Nothing matches" in run(
        "flame 8.msc --find nowhere"
    )


# ---- the picture ----


def cells(row: str) -> Iterator[tuple[str, int]]:
    """The text and the width of each rectangle of a row, with one of its two edges."""
    edges = [i for i, char in enumerate(row) if char == "│"]
    for begin, end in zip(edges, edges[1:]):
        yield row[begin + 1 : end].strip(), end - begin


@pytest.mark.parametrize("columns", [60, 80, 143, 400])
@pytest.mark.parametrize(
    ("by", "name", "pattern"), [("module", r"Net|layers|[012]", r"\w+"), ("line", r"main \(.*", r"main.*:\d+")]
)
def test_widths_are_bytes(run, columns, by, name, pattern):
    flame = json.loads(run(f"flame 8.msc --json --by {by}"))
    rows = picture(run(f"flame 8.msc --by {by} --no-group", columns))
    assert len(rows) > 5 and max(map(len, rows)) == columns
    exact = sorted(
        node["subtree"]["Total"] / flame["total"] for node in nodes(flame["tree"]) if re.fullmatch(name, node["name"])
    )
    drawn = sorted(
        width for row in rows for text, width in cells(row) if (label := re.match(pattern, text))
        and re.fullmatch(name, label[0] if by == "module" else f"{label[0].partition(' ')[0].partition(':')[0]} (")
    )  # fmt: skip
    wide = [share for share in exact if share * (columns - 1) >= 6]
    assert len(wide) >= 2
    for width, share in zip(reversed(drawn), reversed(wide)):
        assert abs(width - share * (columns - 1)) <= 1, rows


def test_a_picture_at_80_columns(run):
    out = run("flame 1.msc")
    rows = picture(out)
    assert rows[0].startswith("│cpu ") and "100%" in rows[0] and len(rows[0]) == 80
    assert any("1-2 (2 alike)" in row for row in rows), rows
    assert "Width is bytes: a column is" in out and "--stacks 8 records those around it too" in out
    assert re.search(r"^ +Bytes +Share +The largest stacks$", out, re.M)
    assert "Too narrow to draw (+)" in out and any("+" in row for row in rows)
    assert NO_LINES in " ".join(run("flame 0.msc").split())
    assert len(picture(run("flame 1.msc --depth 2"))) in (2, 3)


def test_a_module_with_a_number_is_drawn_with_the_name_before_it():
    from modscope._read.groups import last_named_part

    ends = {
        "Net.layers.*": "layers.*",
        "Net.layers.0": "layers.0",
        "Net.layers.0.up": "up",
        "Net": "Net",
        "0": "0",
        "*": "*",
        "Net.a.1.2": "a.1.2",
    }
    assert {name: last_named_part(name) for name in ends} == ends


def test_a_narrow_module_is_not_only_its_number(tmp_path, monkeypatch, capsys):
    capture = Capture(("cpu",), program="train.py")
    for i in range(3):
        capture.claim(capture.add(400), "Parameter", capture.module(f"Net.layers.{i}"))
    capture.claim(capture.add(7000), "Parameter", capture.module("Net.head"))
    (tmp_path / "x.msc").write_bytes(capture.end(how="finished"))
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["flame", str(tmp_path / "x.msc"), "--by", "line"]) == 0
    assert picture(capsys.readouterr().out)[-1].rstrip("│ ").endswith("│layers.*")


@pytest.mark.parametrize("width", ["10", "401", "x"])
def test_a_width_that_cannot_be_drawn_names_both_limits(run, width):
    assert f"must be a number from 60 to 400, not '{width}'" in " ".join(
        run(f"flame 8.msc --width {width}", status=2).split()
    )


def test_it_is_as_wide_as_asked_for_and_needs_no_line_drawing(run, folder):
    assert max(map(len, run("flame 8.msc --width 120").splitlines()[3:6])) == 120
    from modscope._show.terminal import Screen

    plain = Screen(80, drawing=False)
    assert plain.edge + plain.mark == "|*"
    coloured = Screen(80, colour=True)
    assert unicodedata.east_asian_width(coloured.mark) in "NA"
    assert coloured.filled("x", "Parameter", False).startswith("\x1b[4;7;")


def coloured(run, monkeypatch, columns: int) -> list[str]:
    """The lines of a flame graph in colour on a screen of so many columns, without their colour."""
    from modscope._show import terminal

    monkeypatch.setattr(terminal.Screen, "of", classmethod(lambda cls, stream: cls(columns, colour=True)))
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", run("flame 8.msc --find up")).splitlines()]


def test_colour_does_not_change_the_text(run, monkeypatch):
    plain = run("flame 8.msc --find up").splitlines()
    lines = coloured(run, monkeypatch, 80)
    begin = next(i for i, line in enumerate(lines) if line.startswith("Colour is what most of it is:"))
    legend = lines[begin : begin + len(lines) - len(plain)]
    assert "Gradient" in " ".join(legend)
    assert [*lines[:begin], *lines[begin + len(legend) :]] == plain


def test_the_legend_of_colours_fits_the_screen(run, monkeypatch):
    *lines, command = coloured(run, monkeypatch, 60)
    assert max(map(len, lines)) <= 60 and command.startswith("Closer:  modscope flame ")
    assert {"Parameter", "Gradient", "Temp", "Other"} <= set(" ".join(lines).split())
