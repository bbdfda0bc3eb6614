"""Figures and moments in words are the same in Python, in the page's JavaScript and in the out-of-memory report of the
C library; and each list of words is the same in all places that spell it."""

import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
from importlib import resources

import pytest
from modscope.__main__ import main
from modscope._read import text as _text
from modscope._read.categories import CATEGORIES, PHASES

NODE = shutil.which("node")
SOURCES = pathlib.Path(__file__).parents[3]
PAGE = resources.files("modscope") / "_show" / "page"


def javascript() -> str:
    """The file of the page in which figures become text."""
    files = (file for file in PAGE.iterdir() if file.is_file())
    (found,) = (text for file in files if "\nfunction size(" in (text := file.read_text(encoding="utf-8")))
    return found


@pytest.fixture(scope="module")
def call():
    """Call a function of the page's JavaScript with each of these lists of arguments."""
    if NODE is None:
        pytest.skip("node is not installed")

    def run(function: str, inputs: list[tuple]) -> list[str]:
        script = (
            f"{javascript()}\nconst inputs = "
            f"{json.dumps(inputs)};\nconsole.log(JSON.stringify(inputs.map((each) => {function}(...each))));"
        )
        done = subprocess.run([NODE, "-"], input=script, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


CHANCE = random.Random(11)
SIZES = [0, 1, 999, 1023, 1024, 1025, 1536, 10240, 1 << 20, (1 << 20) - 1, 1 << 30, 3 << 29, 1 << 40, 5 << 39]
SIZES += [round(2 ** CHANCE.uniform(0, 46)) for _ in range(2000)]
SIZES += [(n << 10) + 128 * n for n in range(1, 200)]  # halfway between two hundredths, some of them


def test_sizes(call):
    values = [*SIZES, *(-value for value in SIZES if value)]
    assert call("size", [(value,) for value in values]) == [_text.size(value) for value in values]
    assert call("change", [(value,) for value in values]) == [_text.change(value) for value in values]


def test_percents(call):
    inputs = [(CHANCE.randrange(whole + 1), whole) for whole in SIZES] + [(n, 200) for n in range(201)]
    assert call("percent", inputs) == [_text.percent(*each) for each in inputs]


def test_durations(call):
    seconds = [10 ** CHANCE.uniform(-6, 6) for _ in range(2000)] + [0, 0.001, 1, 60, 99, 100, 119.6, 3600, 86400]
    assert call("duration", [(each,) for each in seconds]) == [_text.duration(each) for each in seconds]


def test_counts(call):
    inputs = [(number, "block") for number in range(300)]
    assert call("counted", inputs) == [_text.counted(*each) for each in inputs]


NAMES = ["Global", "GPT", "GPT.h.11.mlp", "a name.with space", "ctl\x1b[2J\x07", ""]


def test_labels(call):
    assert call("label", [(name,) for name in NAMES]) == [_text.clean(_text.label(name)) for name in NAMES]


def test_moments(call):
    moments = [
        {"step": step, "phase": phase, "module": name, "time": round(CHANCE.uniform(0, 1000), 4)}
        for step in (0, 1, 250)
        for phase in PHASES
        for name in NAMES[:-1]
    ]
    assert call("when", [(each,) for each in moments]) == [_text.describe_moment(**each) for each in moments]


@pytest.mark.parametrize(
    "moment, sentence",
    [
        ((2, "backward", "GPT.h.1"), "in step 2, backward of GPT.h.1"),
        ((2, "recompute", "Global"), "in step 2, recompute outside any module"),
        ((0, "idle", "Global"), "before the first step, outside any module"),
        ((3, "optimizer", "Global", 1.5), "in step 3, in the optimizer's step, at 1.500 s"),
        ((3, "evaluation", "GPT.h.1", 1.5), "in evaluation after step 3, in GPT.h.1, at 1.500 s"),
        ((0, "evaluation", "GPT.h.1"), "in evaluation, in GPT.h.1"),
    ],
)
def test_the_sentence_of_a_moment(moment, sentence):
    assert _text.describe_moment(*moment) == sentence


@pytest.mark.parametrize("columns", [30, 40, 60, 80])
def test_a_moment_in_a_narrow_place_keeps_the_end_of_the_name(columns):
    name = "VeryLongModelName.transformer.encoder.layers.11.attention.projection"
    text = _text.describe_moment(12, "backward", name, 1.531, columns)
    assert len(text) <= columns and "…" in text
    assert columns < 60 or text.endswith("projection, at 1.531 s")


# ---- sizes in the C library's report ----


@pytest.mark.skipif(
    os.environ.get("MODSCOPE_INTERPOSE") == "0", reason="without interception no failed allocation is seen"
)
def test_the_out_of_memory_report_writes_sizes_like_everybody(capfd):
    from modscope import MemTracker, _native

    import torch
    from torch import nn

    sizes = [2**47, 2**47 + 2**45, 3 * 2**46 + 12345, 2**50, 2**50 + 2**47, 7 * 2**48]
    with MemTracker() as tracker:
        held = [nn.Linear(1, n) for n in (1, 100, 3000, 600_000)]
        for size in sizes:
            with pytest.raises(RuntimeError):
                torch.empty(size, dtype=torch.uint8)
            _, report, requested, *_ = _native.out_of_memory()
            assert requested == size and _text.size(size) in report.splitlines()[0], report
        total = tracker.get_tracker_snapshot()[torch.device("cpu")]["Total"]
        assert _text.size(total) in report
    del held


# ---- lists that are spelled in several places ----


def c_lists(first: str) -> list[list[str]]:
    """The lists of strings in the C sources that begin with this word."""
    found = []
    for path in sorted((SOURCES / "src").rglob("*.c")):
        for inside in re.findall(r'= \{("' + first + r'",[^}]*)\}', path.read_text(encoding="utf-8")):
            found.append(re.findall(r'"([^"]*)"', inside))
    return found


def js_list(name: str) -> list:
    (text,) = re.findall(rf"^const {name} = (\[.*\]);$", javascript(), re.M)
    return json.loads(re.sub(r"2 \*\* (\d+)", lambda power: str(2 ** int(power[1])), text))


def test_phases_are_spelled_alike():
    assert not c_lists("idle")  # C has only the macro
    header = (SOURCES / "include" / "modscope.h").read_text(encoding="utf-8")
    assert re.findall(r'X\([A-Z]+, "(\w+)"\)', header) == list(PHASES)
    assert js_list("PHASES") == list(PHASES)


def test_categories_are_spelled_alike():
    header = (SOURCES / "include" / "modscope_ledger.h").read_text(encoding="utf-8")
    in_c = re.findall(r'^ *X\([A-Z]+, "(\w+)"\)', header, re.M)
    assert in_c == list(CATEGORIES) == js_list("CATEGORIES")
    css = (PAGE / "page.css").read_text(encoding="utf-8")
    assert set(re.findall(r'data-category="(\w+)"', css)) == set(CATEGORIES)


def test_the_help_says_which_category_a_phase_gives_a_new_block(capsys):
    """The table of the C test is the rule: that test compares it with what the ledger does."""
    rule = (SOURCES / "tests/c/ledger/test_blocks.c").read_text(encoding="utf-8")
    category_in = {phase.lower(): word.capitalize() for phase, word in re.findall(r"\[MS_(\w+)\] = MS_(\w+)", rule)}
    assert main(["help", "categories"]) == 0
    meanings = dict(re.findall(r"^  ([A-Z]\w+) +(.*(?:\n {4}.*)*)", capsys.readouterr().out, re.M))
    assert list(meanings) == list(CATEGORIES) and set(category_in) == set(PHASES)
    by_phase = {word: text for word, text in meanings.items() if text.startswith("allocated")}
    for phase in PHASES:
        assert [word for word, text in by_phase.items() if phase in text] == [category_in[phase]]


def test_units_are_spelled_alike():
    (in_c,) = c_lists("B")
    assert in_c == list(_text.UNITS)
    assert js_list("UNITS") == [[unit, value] for unit, value in reversed(_text.UNITS.items()) if value > 1]
    assert all(math.log2(value) == 10 * i for i, value in enumerate(_text.UNITS.values()))


def test_colours_of_the_notebook_are_those_of_the_page():
    from modscope._show.notebook import COLOURS

    css = (PAGE / "page.css").read_text(encoding="utf-8")
    assert set(COLOURS) == set(CATEGORIES)
    for word, colour in COLOURS.items():
        assert colour in re.findall(rf"--{word.lower()}: (#\w+)", css), word


# ---- names that are too long ----


def test_the_name_of_a_line_loses_its_folders_first():
    name = "/home/user/project/src/train.py:41 (was 39) in Model.forward, AddmmBackward0"
    assert _text.shorten_line(name, 90) == name
    assert _text.shorten_line(name, 60) == "train.py:41 (was 39) in Model.forward, AddmmBackward0"
    assert _text.shorten_line(name, 40) == "train.py:41 (was 39), AddmmBackward0"
    assert _text.shorten_line(name, 32) == "train.py:41 (was 39)…mmBackward0"
    assert (
        _text.shorten_line("/home/train.py:41 (only in A) in Model.forward", 34) == "train.py:41 (only in A)…el.forward"
    )
    assert _text.shorten_line("line 41: x = self.down(self.up(x))", 20) == "line 41: x = self.d…"
    assert _text.shorten_line("GPT.blocks.*.mlp", 5) is None
    for columns in range(8, 80):
        assert len(_text.shorten_line(name, columns) or "") <= columns


def test_names_that_differ_stay_different():
    names = [f"Model.{side}coder.layers.{i}.attention.projection" for side in ("en", "de") for i in (1, 10)]
    for columns in range(30, 50):
        short = _text.shorten_alike([*names, "Global"], [columns] * 5)
        assert len(set(short)) == 5 and max(map(len, short)) <= columns and short[-1] == "Global"
    assert _text.shorten_alike(names, [40] * 4)[0] == "….encoder.layers.1.attention.projection"
    assert _text.shorten_alike(["short"], [9]) == ["short"] and _text.shorten_alike([], []) == []
