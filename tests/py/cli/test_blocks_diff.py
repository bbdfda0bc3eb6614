"""`modscope blocks` and `diff`: what they say."""

import re

from capture_helpers import Capture, train
from odd_captures import MIB


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
        "bytes": 9_000_000,
        "category": "Activation",
        "kind": None,
        "module": "GPT.h.0.attn",
        "phase": "forward",
        "step": 2,
        "made_at": 0.132,
        "age": 0.043,
        "outside": False,
        "file": None,
        "line": None,
        "function": None,
        "operator": None,
        "node": None,
        "model_file": None,
        "model_line": None,
        "model_function": None,
        "forward_file": None,
        "forward_line": None,
        "forward_function": None,
        "in_custom_backward": False,
        "stack": [],
    }
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


# ---- only some modules ----


def test_modules_by_the_names_that_the_commands_print(figures, text):
    whole = figures("blocks train.msc -n 0")["blocks"]
    attention = sum(block["bytes"] for block in whole if block["module"].endswith(".attn"))
    for pattern in ("GPT.h.*.attn", "GPT.h.0-3.attn", "GPT.h.0-1,2,3.attn"):
        blocks = figures(f"blocks train.msc -n 0 --module {pattern}")
        assert sum(block["bytes"] for block in blocks["blocks"]) == blocks["shown"] == attention > 0
        for by in ("module", "category", "kind", "line", "operator"):
            tree = figures(f"tree train.msc --by {by} --module {pattern}")
            assert sum(node["subtree"]["Total"] for node in tree["tree"]) == tree["shown"] == attention, by
        flame = figures(f"flame train.msc --module {pattern}")
        assert flame["shown"] == attention and {node["fqn"].count(".") for node in flame["tree"]} == {3}
        diff = figures(f"diff train.msc leaky.msc --module {pattern}")
        assert sum(row["a"] for row in diff["categories"]) == attention
        assert all(row["module"].endswith(".attn") for row in diff["modules"])
    some = figures("blocks train.msc -n 0 --module GPT.h.0,2.attn")["blocks"]
    assert {block["module"] for block in some} == {"GPT.h.0.attn", "GPT.h.2.attn"}
    assert "GPT.h.*.attn" in text("blocks train.msc --module GPT.h.*.attn") and "Shown: GPT.h.*.attn" in text(
        "tree train.msc --module GPT.h.*.attn"
    )


def test_a_module_that_there_is_not(modscope):
    for command in ("tree train.msc", "blocks train.msc", "flame train.msc", "diff train.msc leaky.msc"):
        status, out, err = modscope(f"{command} --module GPT.h.*.atn", 120)
        assert (status, out) == (1, "") and "Did you mean GPT.h.*.attn" in err
        assert "GPT.h.0.attn" in modscope(f"{command} --module GPT.h.0.atn")[2]
    assert modscope("tree train.msc --module=")[0] == 2


# ---- rows that look alike ----


def test_blocks_of_several_steps_are_one_row(tmp_path, text):
    c = Capture()
    for step in range(1, 9):
        c.step()
        c.where("forward" if step % 2 else "backward", c.module("Net.layer"))
        c.add(4 * MIB)
    (tmp_path / "kept.msc").write_bytes(c.end())
    for columns in (80, 120):
        table = text(f"blocks {tmp_path}/kept.msc", columns).split("\n\n")[1].splitlines()[1:]
        assert len(set(table)) == len(table) == 2 and "4 x 4.00 MiB" in table[0] and "1-7" in table[0]
    assert len(text(f"blocks {tmp_path}/kept.msc --no-group").split("\n\n")[1].splitlines()) == 9


def test_diff_of_a_damaged_capture(text, figures):
    out = text("diff train.msc damaged.msc")
    assert "Change of what can be read: " in out and "   at least " in out
    assert figures("diff train.msc damaged.msc")["is_lower_bound"]


def test_diff_as_markdown_for_a_pull_request(text, figures):
    out = text("diff train.msc leaky.msc --markdown")
    lines = out.splitlines()
    assert lines[0] == "### +326.16 MiB of memory (+194%) on `cuda:0`"
    assert lines[2].startswith("> No lines were recorded. ") and lines[4:7] == [
        "| | before | after | change |",
        "|---|--:|--:|--:|",
        "| allocated | 167.85 MiB | 494.00 MiB | +326.16 MiB |",
    ]
    assert (
        "Compared at the peak, which is in step " in out
        and "The largest change: +68.66 MiB Activation of `GPT.h" in out
    )
    assert "<details><summary>By module: 9 rows</summary>\n\n| change | before | after | category | |\n" in out
    assert "By module: the 10 of " in text("diff train.msc leaky.msc --markdown --no-group") and "By line" not in out
    assert "| +68.66 MiB | 0 B | 68.66 MiB | Activation | `GPT.h.*.attn (8 alike)` |" in out
    report = figures("diff train.msc leaky.msc --markdown")
    assert report["by_module"] == report["modules"]
    assert report["by_line"] == figures("diff train.msc leaky.msc --by line")["modules"]


def test_markdown_says_what_cannot_be_compared(text):
    out = text("diff train.msc damaged.msc --markdown")
    assert out.startswith("### ") and "\n\n> B: " in out and "at least" in out
    assert text("diff train.msc train.msc --markdown").startswith("### No change of memory on `cuda:0`\n")


def test_names_do_not_break_markdown(tmp_path, text):
    for name in ("a", "b"):
        c = Capture()
        c.where("forward", c.module("evil|`` <script> ]"))
        c.add(10 * MIB if name == "a" else 20 * MIB)
        (tmp_path / f"{name}.msc").write_bytes(c.end())
    out = text(f"diff {tmp_path}/a.msc {tmp_path}/b.msc --markdown")
    row = next(line for line in out.splitlines() if "evil" in line and line.startswith("| +"))
    assert row.endswith("| ```evil\\|`` <script> ]``` |") and len(re.findall(r"(?<!\\)\|", row)) == 6
