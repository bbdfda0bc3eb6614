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
        "bytes": 9_000_000, "category": "Activation", "kind": None, "module": "GPT.h.0.attn", "phase": "forward", "step": 2,
        "made_at": 0.132, "age": 0.043, "outside": False,
        "file": None, "line": None, "function": None, "operator": None, "node": None,
        "forward_file": None, "forward_line": None, "forward_function": None, "stack": [],
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
