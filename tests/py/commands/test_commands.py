"""`modscope summary`, `tree`, `blocks`, `diff`, `leaks`: what they say, how wide, and how they end."""

import json
import os
import pathlib
import pty
import random
import re
import subprocess
import sys
import unicodedata

import pytest
from capture_helpers import Capture, header, payloads, seal, train
from odd_captures import MIB, damaged, hostile, huge, long_names, lossy, nameless_devices, out_of_memory

from modscope.__main__ import main

CAPTURES = {
    "train": lambda: train(6).end(how="finished", status="0"),
    "leaky": lambda: train(6, blocks=12, leak=1_000_000).end(how="exception", error="ValueError: no\nmore", status="1"),
    "oom": lambda: out_of_memory().end(how="exception", error="OutOfMemoryError: " + "long " * 90, status="1"),
    "killed": lambda: train(2, device="cpu").killed(),
    "cut": lambda: train(9).killed()[:-100],
    "damaged": lambda: damaged(),
    "nameless": lambda: nameless_devices(),
    "lossy": lambda: lossy().end(how="finished"),
    "hostile": lambda: hostile().end(how="\x1b[2J", error="\x1b[2J\u202e"),
    "names": lambda: long_names().end(how="interrupted"),
    "empty": lambda: Capture().end(how="finished"),
    "huge": lambda: huge().end(how="stopped"),
}


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    for name, make in CAPTURES.items():
        (folder / f"{name}.msc").write_bytes(make())
    return folder


@pytest.fixture
def modscope(captures, capsys, monkeypatch):
    """Run a command in the folder of captures; its status, output and errors."""
    monkeypatch.chdir(captures)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(line: str, columns: int = 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        try:
            status = main(line.split())
        except SystemExit as left:
            status = left.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def text(modscope):
    def run(line: str, columns: int = 80) -> str:
        status, out, err = modscope(line, columns)
        assert (status, err) == (0, ""), err
        return out

    return run


@pytest.fixture
def figures(text):
    return lambda line: json.loads(text(line + " --json"))


def apart(*args: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "modscope", *args], capture_output=True, text=True, timeout=60, env={**os.environ, **env}
    )


def columns_of(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


COMMANDS = ["summary {}", "tree {}", "tree {} --by category --all --depth 9", "blocks {}", "leaks {}", "diff {} train.msc"]

# ---- all commands on all captures ----


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
@pytest.mark.parametrize("name", [name for name in CAPTURES if name != "empty"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_line_fits_and_is_harmless(text, command, name, columns):
    out = text(command.format(name + ".msc"), columns)
    *lines, rule, following = out.rstrip("\n").split("\n")
    for line in [*lines, rule]:
        assert columns_of(line) <= columns, line
        assert line == line.rstrip(), repr(line)
        assert all(char.isprintable() for char in line), repr(line)
        assert not any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in line), repr(line)
    assert rule == "" and re.match(r"[A-Z].*:  modscope \w+ \w+\.msc", following)


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("name", CAPTURES)
def test_a_summary_is_one_screen(text, name, columns):
    assert len(text(f"summary {name}.msc", columns).splitlines()) <= 42


@pytest.mark.parametrize("name", [name for name in CAPTURES if name != "empty"])
@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_json(figures, command, name):
    report = figures(command.format(name + ".msc"))
    assert report["command"] == command.split()[0]
    assert isinstance(report["is_lower_bound"], bool)


def keys_of(value: object) -> set[str]:
    """The keys of a report. Categories, phases, devices and what programs say of themselves are data."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    data = {"info", "end", "own", "subtree", "others"}
    below = [each for key, each in value.items() if key not in data and not (key == "categories" and isinstance(each, dict))]
    below = [list(each.values()) if each is value.get("phases") and isinstance(each, dict) else each for each in below]
    return {*value, *keys_of(below)}


@pytest.mark.parametrize("line", ["summary oom.msc", "tree train.msc", "blocks train.msc", "diff train.msc leaky.msc", "leaks leaky.msc"])
def test_the_docs_list_the_keys(figures, line):
    docs = (pathlib.Path(__file__).parents[3] / "docs" / "reading.md").read_text(encoding="utf-8")
    table = docs[docs.index("## JSON") :]
    (row,) = re.findall(rf"^\| `{line.split()[0]}` \|(.*)", table, re.M)
    everywhere = re.findall(r"`(\w+)`", table[: table.index("| `summary`")])
    tree = re.findall(r"^\| `tree` \|(.*)", table, re.M)[0] if "`tree`" in row or "the same keys" in row else ""
    assert keys_of(figures(line)) <= {*everywhere, *re.findall(r"`(\w+)`", row), *re.findall(r"`(\w+)`", tree)}


@pytest.mark.parametrize("command", ["summary", "tree", "blocks", "leaks"])
def test_figures_say_at_least_when_something_was_lost(text, figures, command):
    out = text(f"{command} lossy.msc")
    assert "at least" in out and "12 events" in out
    assert figures(f"{command} lossy.msc")["is_lower_bound"] is True and figures(f"{command} lossy.msc")["lost"] == 12
    assert "at least" not in text(f"{command} train.msc")


def test_what_is_damaged_says_so(text):
    for command in ("summary", "tree", "blocks"):
        out = text(f"{command} damaged.msc")
        assert "at least" in out and "of the file cannot be read" in out
    assert "at least" not in text("summary cut.msc")


@pytest.mark.parametrize("seed", range(60))
def test_a_wrong_file_never_breaks_a_command(modscope, captures, seed):
    """Bytes changed at random, in half of them with checksums that fit; some are cut short."""
    chance = random.Random(seed)
    data = bytearray(out_of_memory().end(how="finished"))
    places = [i for place in payloads(data) for i in place] if seed % 2 else range(16, len(data))
    for _ in range(chance.choice((1, 2, 5, 20))):
        data[chance.choice(places)] = chance.randrange(256)
    wrong = seal(data) if seed % 2 else bytes(data)[: chance.randrange(len(data) // 2, 2 * len(data))]
    (captures / "wrong.msc").write_bytes(wrong)
    for command in [*COMMANDS, "tree {} --at oom", "blocks {} --at step:2", "tree {} --at time:0.2", "summary {} --json"]:
        status, out, err = modscope(command.format("wrong.msc"))
        assert status in (0, 1) and bool(out) == (status == 0) and err.startswith("modscope: ") == (status == 1)


def test_the_following_command_works(text):
    seen, line = [], "summary oom.msc"
    for _ in range(4):
        following = text(line).splitlines()[-1].partition(":  modscope ")[2]
        assert following
        seen.append(following.split()[0])
        line = following
    assert seen[:3] == ["tree", "blocks", "leaks"]


# ---- what each says ----


def test_summary(text):
    out = text("summary train.msc")
    assert "train.py --epochs 1" in out and "6 steps, 6 optimizer steps" in out and "Finished" in out
    assert re.search(r"cuda:0 +167\.85 MiB +in step 2, backward of GPT\.h\.3\.mlp, at 0\.175 s", out)
    assert re.search(r"cpu +64\.00 KiB +before the first step", out)
    assert "256.00 MiB reserved" in out
    assert re.search(r"68\.66 MiB +41% +Activation +█", out)
    assert re.search(r"23\.84 MiB +14% +█+ +GPT\.h\.3\.mlp", out)
    assert re.search(r"backward +336\.0 ms +48% +183\.11 MiB in 48 blocks", out)
    assert out.endswith("Which modules hold it:  modscope tree train.msc --at peak\n")


def test_summary_shows_equal_modules_in_one_row(text):
    out = text("summary train.msc")
    assert re.search(r"80\.11 MiB +48% +█+ +4 x 20\.03 MiB +GPT\.h\.\*\.attn\n", out)
    assert re.search(r"60\.08 MiB +36% +█\S+ +3 x 20\.03 MiB +GPT\.h\.\*\.mlp\n", out) and "GPT.h.0" not in out


@pytest.mark.parametrize(
    "name,says",
    [
        ("leaky", "Ended by an exception: ValueError: no\n"),
        ("killed", "killed, or still runs"),
        ("names", "Interrupted"),
        ("huge", "Stopped as asked"),
        ("empty", "No memory was held"),
    ],
)
def test_summary_says_how_it_ended(text, name, says):
    assert says in text(f"summary {name}.msc")


def test_summary_of_out_of_memory(text):
    out = text("summary oom.msc")
    assert "Out of memory: an allocation of 2.00 GiB failed on cuda:0\n  in step 5, forward of GPT.h.3.mlp, at 0.468 s\n" in out
    assert "  95.38 MiB was held, 256.00 MiB reserved\n" in out
    assert out.endswith("tree oom.msc --at oom\n")


def test_summary_in_json(figures):
    report = figures("summary train.msc")
    main, cpu = report["devices"]
    assert main["device"] == "cuda:0" and main["peak"]["bytes"] == 176_000_000 == main["categories"]["Total"]
    assert main["peak"]["phase"] == "backward" and main["peak"]["module"] == "GPT.h.3.mlp"
    assert main["peak_reserved"] == 256 * MIB
    assert main["modules"][0] == {
        "module": "GPT.h.3.mlp",
        "own": {"Parameter": 4_000_000, "Buffer": 0, "Gradient": 4_000_000, "Activation": 9_000_000, "Temp": 0,
                "Optstate": 8_000_000, "Other": 0, "Total": 25_000_000},
    }  # fmt: skip
    assert cpu["peak"]["bytes"] == 65_536
    assert report["steps"] == report["optimizer_steps"] == 6 and report["end"]["how"] == "finished"
    assert report["phases"]["forward"]["bytes"] == 6 * 8 * 9_000_000
    assert report["last_oom"] is None


def test_tree(text):
    out = text("tree train.msc", 120)
    assert out.startswith("cuda:0 held 167.85 MiB at its peak (256.00 MiB reserved)\nin step 2, backward of")
    assert re.search(r"167\.85 MiB +0 B +█+ +GPT +41% Activation, 36% Optstate", out)
    assert re.search(r"23\.84 MiB +23\.84 MiB +█.* │     ├─ mlp", out)
    assert "cpu 64.00 KiB (--device cpu)" in out


def test_tree_shows_equal_siblings_in_one_row_with_all_their_bytes(text):
    out = text("tree train.msc")
    assert re.search(r"120\.16 MiB +0 B +█\S* +│  ├─ 0-2 \(3 alike, 40\.05 MiB each\)\n", out)
    assert re.search(r"60\.08 MiB +60\.08 MiB +█\S* +│  │  ├─ attn\n", out)


@pytest.mark.parametrize("option", ["--no-group", "--all"])
def test_tree_shows_equal_siblings_one_by_one_when_asked(text, option):
    out = text(f"tree train.msc {option}")
    assert "alike" not in out and all(re.search(rf"40\.05 MiB .*─ {i}\n", out) for i in range(3))


def test_tree_joins_a_module_with_its_only_group(text):
    """Here all blocks are equal, so the list of them holds one group and nothing else."""
    assert "├─ h.0-3 (4 alike, 22.89 MiB each)" in text("tree train.msc --at step:3")


def test_tree_groups_by_category_too(text):
    assert "0-3 (4 alike, 17.17 MiB each)" in text("tree train.msc --by category")

def test_tree_at_moments(figures):
    assert figures("tree train.msc --at step:0")["total"] == 36_000_000
    assert figures("tree train.msc --at step:3")["step"] == 3
    at = figures("tree train.msc --at time:0.175")
    assert (at["total"], at["time"], at["step"]) == (167_000_000, 0.175, 2)
    oom = figures("tree oom.msc --at oom")
    assert oom["requested"] == 2 << 30 and oom["device"] == "cuda:0" and oom["module"] == "GPT.h.3.mlp"


def test_tree_in_json_adds_up(figures):
    def check(node):
        for word, value in node["subtree"].items():
            assert value == node["own"][word] + sum(child["subtree"][word] for child in node["children"])
        for child in node["children"]:
            check(child)

    report = figures("tree leaky.msc")
    for node in report["tree"]:
        check(node)
    assert sum(node["subtree"]["Total"] for node in report["tree"]) == report["total"]


def test_tree_by_category_holds_the_same(figures):
    by_module = figures("tree leaky.msc")
    by_category = figures("tree leaky.msc --by category")
    sums = {node["name"]: node["subtree"]["Total"] for node in by_category["tree"]}
    assert sum(sums.values()) == by_module["total"]
    assert sums["Activation"] == by_module["tree"][0]["subtree"]["Activation"]
    for node in by_category["tree"]:
        assert sum(child["subtree"]["Total"] for child in node["children"]) == node["subtree"]["Total"]


def test_tree_to_a_depth(text, figures):
    assert len(re.findall(r"[├└]─", text("tree train.msc --depth 2"))) == 2
    assert figures("tree train.msc --depth 1")["tree"][0]["children"] == []
    assert "Deeper:  modscope tree names.msc --at peak --depth 2" in text("tree names.msc")


def test_tree_joins_what_does_not_branch(text):
    out = text("tree names.msc --depth 9", 120)
    assert "VeryLongModelName.transformer.encoder.layers" in out and "├─ 59.attention.projection" in out


def test_tree_shows_all_levels_when_all_are_asked_for(text):
    assert text("tree names.msc --all") == text("tree names.msc --all --depth 9")


def test_tree_goes_deeper_with_the_same_options(text):
    assert "Deeper:  modscope tree names.msc --at peak --no-group --depth 2" in text("tree names.msc --no-group")


def test_tree_names_the_moment_that_was_asked_for(text):
    assert text("tree train.msc --at step:3").startswith("cuda:0 held 95.37 MiB at the end of step 3 ")
    assert text("tree train.msc --at step:0").startswith("cuda:0 held 34.33 MiB just before the first step ")
    lines = text("tree train.msc --at time:0.1755").splitlines()
    assert lines[0].startswith("cuda:0 held ") and " at 0.175 s" in lines[0] and not lines[1].endswith(" s")


def test_tree_leaves_out_what_does_not_fit_of_the_categories(text):
    out = text("tree train.msc", 120)
    assert "41% Activation, 36% Optstate, …\n" in out and not re.search(r"\b0% |%…", out)


def test_tree_puts_small_ones_together_unless_all_are_asked_for(text):
    out = text("tree names.msc --depth 9")
    assert "smaller ones)" in out and "smaller ones)" not in text("tree names.msc --depth 9 --all")
    assert len(re.findall("─", text("tree names.msc --depth 9 --all"))) == 60


def test_tree_without_line_drawing():
    """An output that cannot show it."""
    assert "|- h" in draw("ascii") and "├─ h" in draw("utf-8")


def draw(encoding: str) -> str:
    path = "/dev/stdin"
    done = subprocess.run(
        [sys.executable, "-m", "modscope", "tree", path], input=None, stdin=_as_file(CAPTURES["train"]()),
        capture_output=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(encoding)


def _as_file(data: bytes):
    import tempfile

    file = tempfile.TemporaryFile()
    file.write(data)
    file.seek(0)
    return file


def test_a_device_by_the_beginning_of_its_name(figures):
    assert figures("tree train.msc --device cuda")["device"] == "cuda:0"
    assert figures("tree train.msc --device cpu")["total"] == 65_536


def test_blocks(text, figures):
    out = text("blocks train.msc -n 3 --no-group")
    assert re.search(r"8\.58 MiB +Activation +forward +2 +43\.0 ms +GPT\.h\.0\.attn", out)
    assert "3 blocks: 25.75 MiB of 167.85 MiB" in out
    blocks = figures("blocks train.msc -n 0")["blocks"]
    assert len(blocks) == 26 and sum(block["bytes"] for block in blocks) == 176_000_000
    assert blocks[0] == {
        "bytes": 9_000_000, "category": "Activation", "module": "GPT.h.0.attn", "phase": "forward", "step": 2,
        "made_at": 0.132, "age": 0.043, "outside": False,
    }  # fmt: skip
    assert len(figures("blocks train.msc")["blocks"]) == 20


def test_blocks_that_are_equal_are_one_row(text):
    out = text("blocks train.msc -n 3", 120)
    assert re.search(r"34\.33 MiB +4 x 8\.58 MiB +Activation +forward +2 +43\.0 ms +GPT\.h\.\*\.attn\n", out)
    assert re.search(r"30\.52 MiB +4 x 7\.63 MiB +Optstate +optimizer +1 +61\.0 ms +GPT\.h\.\*\.attn\n", out)
    assert "12 blocks: 99.18 MiB of 167.85 MiB" in out


def test_blocks_leave_out_the_age_where_there_is_no_room_for_it(text):
    assert "Age" not in text("blocks train.msc", 80) and "Age" in text("blocks train.msc", 120)


def test_the_label_of_global_is_shown_whole_or_as_one_word(tmp_path, text):
    c = Capture()
    for _ in range(2):
        c.add(10 * MIB)
    (tmp_path / "global.msc").write_bytes(c.end())
    assert text(f"blocks {tmp_path}/global.msc", 75).splitlines()[4].endswith("  Global")
    assert text(f"blocks {tmp_path}/global.msc", 120).splitlines()[4].endswith("  Global (outside any module)")


def test_blocks_from_outside_are_marked(tmp_path, text):
    c = Capture()
    c.add(10, category="Other", outside=True)
    (tmp_path / "outside.msc").write_bytes(c.end())
    out = text(f"blocks {tmp_path}/outside.msc")
    assert "Other *" in out and "* from outside torch's allocators" in out


def test_diff(text, figures):
    report = figures("diff train.msc leaky.msc")
    assert report["change"] == report["b"]["total"] - report["a"]["total"] > 0
    assert sum(row["change"] for row in report["modules"]) == report["change"]
    assert sum(row["change"] for row in report["categories"]) == report["change"]
    changes = [abs(row["change"]) for row in report["modules"]]
    assert changes == sorted(changes, reverse=True)
    out = text("diff train.msc leaky.msc")
    assert "Change: +326.16 MiB (+194%)" in out
    assert re.search(r"\+143\.05 MiB +68\.66 MiB +211\.72 MiB +Activation", out)
    assert re.search(r"\+14\.31 MiB +0 B +14\.31 MiB +Activation +GPT\.h\.11\.mlp", out)
    assert "rows with smaller changes: -n 0 shows all" in text("diff train.msc leaky.msc -n 3")


def test_diff_shows_equal_changes_in_one_row(text):
    out = text("diff train.msc leaky.msc")
    assert re.search(r"\+68\.66 MiB +0 B +68\.66 MiB +Activation +GPT\.h\.\*\.attn \(8 alike\)\n", out)
    assert "alike" not in text("diff train.msc leaky.msc --no-group")


def test_diff_of_a_capture_with_itself(text, figures):
    assert figures("diff train.msc train.msc")["modules"] == []
    assert "No module holds more or less" in text("diff train.msc train.msc")


def test_diff_the_other_way_round(figures):
    there, back = figures("diff train.msc leaky.msc"), figures("diff leaky.msc train.msc")
    assert there["change"] == -back["change"]


def test_diff_at_a_moment(figures):
    report = figures("diff train.msc leaky.msc --at step:0")
    assert (report["a"]["total"], report["b"]["total"]) == (36_000_000, 100_000_000)


def test_diff_of_two_ranks_compares_their_own_devices(tmp_path, figures):
    for rank in range(2):
        (tmp_path / f"{rank}.msc").write_bytes(train(2, device=f"cuda:{rank}").end())
    report = figures(f"diff {tmp_path}/0.msc {tmp_path}/1.msc")
    assert (report["a"]["device"], report["b"]["device"], report["change"]) == ("cuda:0", "cuda:1", 0)


# ---- leaks ----


def test_leaks(text, figures):
    (group,) = figures("leaks leaky.msc")["groups"]
    assert group == {
        "device": "cuda:0", "module": "GPT.h.11.mlp", "category": "Activation", "bytes": 4_000_000, "count": 4,
        "steps": 4, "first_step": 1, "last_step": 4, "outside": 0, "phases": ["forward"], "sizes": [{"bytes": 1_000_000, "count": 4}],
    }  # fmt: skip
    out = text("leaks leaky.msc")
    assert "3.81 MiB from earlier steps is still held at the end of step 5" in out
    assert "Activation of GPT.h.11.mlp" in out and "4 blocks allocated in 4 steps (1 to 4), in forward" in out
    assert "4 x 976.56 KiB" in out


def growing(steps: int, grows_in=lambda step: True) -> bytes:
    """What is held in Global is replaced in each step by a block that is larger or as large."""
    made, held, last = Capture(), 8 * 4096, None
    for step in range(1, steps + 1):
        made.step()
        held += 4096 * grows_in(step)
        new = made.add(held)
        if last is not None:
            made.drop(last)
        last = new
    return made.end(how="finished")


def test_growth_by_replacement(captures, text, figures):
    (captures / "growing.msc").write_bytes(growing(11))
    report = figures("leaks growing.msc")
    assert report["groups"] == [] and report["growth"] == [{
        "device": "cpu", "module": "Global", "category": "Activation", "bytes_per_step": 4096,
        "first_step": 1, "first_bytes": 9 * 4096, "last_step": 10, "last_bytes": 18 * 4096,
    }]  # fmt: skip
    out = " ".join(text("leaks growing.msc").split())
    assert "Activation of Global grows by 4.00 KiB a step: 36.00 KiB after step 1, 72.00 KiB after step 10" in out and "No leaks" not in out


@pytest.mark.parametrize(
    "steps, grows_in, first",
    [
        (1000, lambda step: True, 1),
        (21, lambda step: step % 6 > 0, 1),
        (41, lambda step: step > 18, None),
        (5, lambda step: True, 0),
        (20, lambda step: step % 2, 0),
        (20, lambda step: step < 15, 0),
    ],
)
def test_when_growth_is_reported(captures, figures, steps, grows_in, first):
    """``first``: 1 if it is of the whole run, None if it is of the second half, 0 if it is none."""
    (captures / "growing.msc").write_bytes(growing(steps, grows_in))
    growth = figures("leaks growing.msc")["growth"]
    assert [each["first_step"] > 1 if first is None else each["first_step"] for each in growth] == ([] if first == 0 else [first or True])


def test_what_is_in_a_group_is_not_in_growth_too(figures):
    report = figures("leaks leaky.msc")
    assert report["groups"] and report["growth"] == []


def test_no_leaks(text, figures):
    """Parameters, optimizer state, and what the last step still holds are none."""
    assert "No leaks" in text("leaks train.msc")
    report = figures("leaks train.msc")
    assert report["groups"] == [] and report["step"] == 5


def test_too_few_steps_to_tell(text, figures):
    assert "Too few steps to tell" in text("leaks killed.msc")
    assert figures("leaks killed.msc")["step"] is None


def test_devices_without_a_name(tmp_path, text):
    c = Capture(("cpu",))
    c.add(100, 5)
    c.oom(1, 2, 3, 63)
    (tmp_path / "odd.msc").write_bytes(c.end())
    assert "device 5  100 B" in text(f"summary {tmp_path}/odd.msc")
    assert "Nothing is held" in text(f"tree {tmp_path}/odd.msc --at oom")
    assert "Wrote " in text(f"report {tmp_path}/odd.msc -o {tmp_path}/odd.html")


def test_leaks_of_different_sizes(tmp_path, figures):
    c = Capture()
    for step in range(1, 6):
        c.step()
        c.where("forward", c.module("Model"))
        c.add(1000 * step)
        c.where()
        c.add(64)
    (tmp_path / "sizes.msc").write_bytes(c.end())
    groups = figures(f"leaks {tmp_path}/sizes.msc")["groups"]
    assert [(group["module"], group["bytes"], group["count"]) for group in groups] == [
        ("Model", 6_000, 3),
        ("Global", 192, 3),
    ]


def test_what_was_made_in_two_steps_only_is_no_leak(tmp_path, figures):
    c = Capture()
    for step in range(1, 7):
        c.step()
        if step in (2, 5):
            c.add(1000)
    (tmp_path / "two.msc").write_bytes(c.end())
    assert figures(f"leaks {tmp_path}/two.msc")["groups"] == []


# ---- how they end ----


@pytest.mark.parametrize(
    "line,says",
    [
        ("summary none.msc", "no file none.msc"),
        ("summary .", "folder: give the name of a capture"),
        ("summary script.py", "To run and record a script:  modscope run script.py"),
        ("summary no_capture.msc", "no_capture.msc"),
        ("summary newer.msc", "newer"),
        ("summary /dev/null", "not a file"),
        ("diff train.msc none.msc", "no file none.msc"),
        ("tree train.msc --at step:99", "no step 99: the last is 6"),
        ("tree train.msc --at time:99", "ends at"),
        ("tree train.msc --at oom", "no allocation failed"),
        ("tree train.msc --device xpu", "no device 'xpu'. It has: cpu, cuda:0"),
        ("tree empty.msc", "no peak"),
        ("blocks empty.msc", "no peak"),
        ("leaks train.msc --device xpu", "no device"),
        ("diff train.msc train.msc --at time:0 --device xpu", "no device"),
    ],
)
def test_what_is_not_there(modscope, captures, line, says):
    for name in ("no_capture.msc", "script.py"):
        (captures / name).write_text("import torch\n")
    (captures / "newer.msc").write_bytes(header(major=9))
    status, out, err = modscope(line)
    assert (status, out) == (1, "")
    assert err.startswith("modscope: ") and says in err and err.count("\n") == 1


def test_a_hostile_file_name(modscope):
    status, _, err = modscope("summary no\x1b[2J\u202ene.msc")
    assert status == 1 and "\x1b" not in err and "\u202e" not in err


@pytest.mark.parametrize(
    "line",
    [
        "summary",
        "summary train.msc more.msc",
        "diff train.msc",
        "tree train.msc --at foo",
        "tree train.msc --at step:x",
        "tree train.msc --depth 0",
        "tree train.msc --by colour",
        "blocks train.msc -n few",
        "blocks train.msc -n -1",
        "report train.msc --steps few",
        "tree train.msc --what",
    ],
)
def test_bad_usage(modscope, line):
    status, out, err = modscope(line)
    assert (status, out) == (2, "") and err.startswith(f"usage: modscope {line.split()[0]} ")


def test_a_wrong_number_is_answered_with_the_right_ones(modscope):
    assert "-n: must be a number, 0 or more, not '-1'" in modscope("blocks train.msc -n -1")[2]
    assert "--depth: must be a number, 1 or more, not '0'" in modscope("tree train.msc --depth 0")[2]
    assert "--steps: must be A:B, A:, :B or A, such as 2:4, not 'x'" in modscope("report train.msc --steps x")[2]


def test_an_option_without_a_command(modscope):
    status, out, err = modscope("--what")
    assert (status, out) == (2, "") and "unrecognized arguments: --what" in err


# ---- help ----


WORDS = ["run", "summary", "tree", "blocks", "diff", "leaks", "report", "export", "doctor", "help"]


def test_the_version(modscope):
    from modscope import __version__

    assert modscope("--version") == (0, f"modscope {__version__}\n", "")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("word", ["", *WORDS])
def test_every_help_ends_with_an_example_and_fits(modscope, word, columns):
    status, out, err = modscope(f"{word} --help", columns)
    assert (status, err) == (0, "") and "Example" in out
    assert out.splitlines()[-1].startswith("  modscope ")
    assert all(len(line) < columns for line in out.splitlines())
    assert "docs/" not in out and ".md" not in out, "pip installs no docs"


def test_help_lists_all_commands(modscope):
    status, out, _ = modscope("--help")
    assert status == 0 and all(re.search(rf"^ +{word} ", out, re.M) for word in WORDS)


def test_no_command_shows_the_help(modscope):
    status, out, err = modscope("")
    assert (status, out) == (2, "") and err == modscope("--help")[1]


def test_the_examples_work(modscope, captures, tmp_path):
    """Of the commands that read captures."""
    for name in ("run", "before", "after", "rank0", "rank1"):
        (captures / f"{name}.msc").write_bytes(CAPTURES["train"]())
    for word in WORDS[1:-2] + ["help"]:
        _, out, _ = modscope(f"{word} --help", 120)
        for line in re.findall(r"^  modscope (.*)", out[out.rindex("Example") :], re.M):
            status, _, err = modscope(line)
            assert status == 0, (line, err)
    for made in ("run.html", "rank0.html", "run.pftrace", "peak.csv"):
        (captures / made).unlink()


def test_help_on_topics(modscope):
    status, out, _ = modscope("help")
    topics = re.findall(r"^  (\w+) ", out, re.M)
    assert status == 0 and "moments" in topics and "steps" in topics
    for topic in topics:
        status, out, err = modscope(f"help {topic}")
        assert (status, err) == (0, "") and len(out.splitlines()) > 2 and max(map(len, out.splitlines())) < 85
    assert modscope("help tree") == modscope("tree --help")
    status, out, err = modscope("help nonsense")
    assert (status, out) == (2, "") and "There is no help on 'nonsense'" in err and "moments" in err


@pytest.mark.parametrize(
    "line, suggestion",
    [
        ("train.py", "modscope run train.py"),
        ("train.py --epochs 3", "modscope run train.py"),
        ("train.msc", "modscope summary train.msc"),
        ("none.msc", "modscope summary none.msc"),
        ("script", "modscope run script"),
        ("ev;il.py", "modscope run 'ev;il.py'"),
        ("sumary train.msc", "modscope summary"),
    ],
)
def test_a_word_that_is_no_command_brings_a_suggestion(modscope, captures, line, suggestion):
    (captures / "script").write_text("print()\n")
    status, out, err = modscope(line)
    assert (status, out) == (2, "") and err.endswith(f":  {suggestion}\n") and err.count("\n") == 1


def test_a_word_that_is_like_no_command_brings_the_list_of_them(modscope):
    status, out, err = modscope("nonsense")
    assert (status, out) == (2, "") and err == f"modscope: There is no command 'nonsense'. The commands are: {', '.join(WORDS)}\n"


def test_run_is_handed_on_whole(monkeypatch):
    monkeypatch.setattr("modscope._run.main", lambda words: 40 + len(words))
    assert main(["run", "--help", "x"]) == 42


def test_an_interrupt_ends_quietly(modscope, monkeypatch):
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("modscope._load.load", interrupt)
    assert modscope("summary train.msc") == (130, "", "")


def test_a_closed_pipe_ends_quietly(captures):
    program = f"{sys.executable} -m modscope tree names.msc --all --depth 9"
    done = subprocess.run(
        ["sh", "-c", f"{{ {program}; echo $? >&2; }} | true"], capture_output=True, text=True, timeout=60, cwd=captures
    )
    assert done.stderr == "0\n"


def test_a_full_disk_is_told(captures):
    done = subprocess.run(
        f"{sys.executable} -m modscope tree names.msc > /dev/full", shell=True, capture_output=True, text=True, timeout=60,
        cwd=captures,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr == "modscope: The output cannot be written: No space left on device\n"


def test_no_output_at_all(captures):
    done = subprocess.run(
        f"{sys.executable} -m modscope tree names.msc >&- 2>&-", shell=True, capture_output=True, timeout=60, cwd=captures
    )
    assert done.returncode == 0


def test_reading_imports_no_torch(captures, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    for command in COMMANDS:
        words = command.format(captures / "train.msc").replace(" train.msc", f" {captures / 'train.msc'}").split()
        done = apart(*words, PYTHONPATH=path)
        assert (done.returncode, done.stderr) == (0, "")


def test_reading_imports_little(captures):
    """Python starts in 20 ms; what takes as long to import does not belong here."""

    def imported(*words: str) -> set[str]:
        command = [sys.executable, "-X", "importtime", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=captures)
        return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    ours = imported("-m", "modscope", "tree", "train.msc") - imported("-c", "")
    assert "modscope._load" in ours
    assert not ours & {"torch", "numpy", "dataclasses", "inspect", "json", "asyncio", "modscope._native"}


# ---- terminals ----


def in_terminal(*words: str, **env: str) -> str:
    """What a command shows in a terminal of 80 columns."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **env}
    child = subprocess.Popen([sys.executable, "-m", "modscope", *words], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    out = b""
    try:
        while data := os.read(master, 65536):
            out += data
    except OSError:  # its end
        pass
    os.close(master)
    assert child.wait(60) == 0
    return out.decode()


def test_colour_on_a_terminal_only(captures):
    file = str(captures / "train.msc")
    coloured = in_terminal("tree", file)
    assert "\x1b[32m█" in coloured and "\x1b[1m" in coloured
    for plain in (in_terminal("tree", file, NO_COLOR="1"), in_terminal("tree", file, TERM="dumb"), apart("tree", file).stdout):
        assert "\x1b" not in plain
    bare = re.sub(r"\x1b\[\d+m", "", coloured).replace("\r\n", "\n")
    assert bare == apart("tree", file, COLUMNS="80", PYTHONIOENCODING="utf-8").stdout


def test_progress_is_shown_on_a_terminal_when_it_takes_long(monkeypatch, capsys):
    from modscope._commands import terminal

    clock = iter([0.0, 0.1, 0.5])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = terminal.Progress()
    progress(0.1)
    assert capsys.readouterr().err == ""
    progress(0.5)
    progress.done()
    progress.done()
    assert capsys.readouterr() == ("", "\rreading: 50%\r\x1b[K")


def test_no_progress_elsewhere(monkeypatch, capsys):
    from modscope._commands import terminal

    progress = terminal.Progress()
    monkeypatch.setattr(terminal.time, "monotonic", lambda: 1e9)
    progress(0.5)
    progress.done()
    assert capsys.readouterr().err == ""


# ---- devices without names ----


@pytest.mark.parametrize("line", ["report", "export --format perfetto", "export --format speedscope", "export --format torch-snapshot",
                                  "export --format csv", "export --format csv --at peak", "export --format json"])  # fmt: skip
def test_files_of_a_capture_whose_device_names_are_damaged(modscope, line):
    status, out, err = modscope(f"{line} nameless.msc -f -o nameless.out")
    assert status == 0 and err == "" and out.startswith("Wrote nameless.out (")


def test_a_notebook_shows_a_capture_whose_device_names_are_damaged(captures):
    from modscope._load import load

    capture = load(str(captures / "nameless.msc"))
    assert "device 1" in capture._repr_html_() and "device 1" in capture.snapshot("peak")._repr_html_()
