"""`modscope summary` and `tree`: what they say."""

import os
import re
import subprocess
import sys

import pytest
from command_helpers import CAPTURES
from modscope._read.summary import describe_end
from odd_captures import MIB


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
        ("huge", "Stopped before the program's own end"),
        ("empty", "No memory was held"),
    ],
)
def test_summary_says_how_it_ended(text, name, says):
    assert says in text(f"summary {name}.msc")


@pytest.mark.parametrize(
    "by,says",
    [
        ("--steps 3", "Stopped after 3 steps, as --steps 3 says"),
        ("--steps 1", "Stopped after 1 step, as --steps 1 says"),
        ("--seconds 60", "Stopped after 60 s, as --seconds 60 says"),
    ],
)
def test_what_stopped_a_program_is_said(by, says):
    assert describe_end({"how": "stopped", "status": "0", "by": by}) == says


def test_summary_of_out_of_memory(text):
    out = text("summary oom.msc")
    assert (
        "Out of memory: an allocation of 2.00 GiB failed on cuda:0\n  in step 5, forward of GPT.h.3.mlp, at 0.468 s\n"
        in out
    )
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
        capture_output=True, timeout=600, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(encoding)


def _as_file(data: bytes):
    import tempfile

    file = tempfile.TemporaryFile()
    file.write(data)
    file.seek(0)
    return file


# ---- what is missing ----


@pytest.mark.parametrize("capture", ["damaged", "damaged_end", "lossy"])
def test_the_peak_of_a_capture_with_losses_is_at_least(text, figures, capture):
    """It may be among what is missing. Every command says so where it names the peak, as the summary does."""
    assert "at least " in text(f"summary {capture}.msc")
    for command in ("tree", "flame", "blocks"):
        assert text(f"{command} {capture}.msc").splitlines()[0].startswith("cuda:0 held at least ")
        assert figures(f"{command} {capture}.msc")["is_lower_bound"]
    assert "Change of what can be read: " in text(f"diff train.msc {capture}.msc")


def test_nothing_is_sure_after_the_last_event_that_can_be_read(text, figures):
    assert not figures("tree damaged_end.msc --at step:1")["is_lower_bound"]
    for at in ("time:2.0", "step:3"):
        assert text(f"tree damaged_end.msc --at {at}").splitlines()[0].startswith("cuda:0 held at least "), at
    assert "that can be read" in text("leaks damaged_end.msc")
    assert ": what can be read of " in text("export damaged_end.msc -f -o x.csv")


def test_a_capture_without_an_end_says_so_below_the_figures(text, figures):
    for command in ("tree", "flame", "blocks", "leaks"):
        assert "The capture has no end" in " ".join(text(f"{command} killed.msc").split())
        assert figures(f"{command} killed.msc")["ended"] is False and figures(f"{command} train.msc")["ended"] is True
        assert "no end" not in text(f"{command} train.msc")
