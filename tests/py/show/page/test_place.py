"""A selected line, operator or other group: the panel, its source text, the blocks, and the lines of leaks."""

import shutil
from collections import Counter

import pytest
from helpers import INTERCEPTION
from modscope._read import lines as _lines_read
from page_helpers import READY, attributed_line, key_of, modscope

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")


def script_of(pages):
    return pages.capture("lines").with_suffix(".py")


def line_of(pages, text):
    """The key of the line with this text."""
    lines = script_of(pages).read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if text in line)
    function = {"relu": "Net.forward", "a @ b": "mix", "zeros": "main"}[text]
    return f"{script_of(pages)}:{number} in {function}", number


def select(shown, by, key):
    shown.browser.run("window.modscope.selectGroup({ by: arguments[0], key: arguments[1] })", by, key)
    shown.browser.settle()


def forget_sources():
    """The notes about files are read once for each process."""
    _lines_read._source_note.cache_clear()


@pytest.fixture
def opened(shown):
    return shown.open("lines")


def owners(capture, moment, by, key):
    sums = Counter()
    for block in capture.snapshot(moment).blocks():
        if key_of(block, by) == key:
            sums[block.module, str(block.category)] += block.bytes
    return sums


def test_blocks_have_their_line_and_operator(opened, pages):
    opened.show_each_layer()
    said = pages.figures("blocks", "lines", "--at", "peak")
    rows = [
        tuple(row[word] for word in ("file", "line", "function", "operator"))
        for row in opened.browser.data("#blocks tbody tr")
    ]
    assert rows == [
        tuple(str(word or "") for word in (*attributed_line(block), block["operator"])) for block in said["blocks"]
    ]
    assert "lines.py:11" in opened.browser.text("#blocks") and "torch.relu" in opened.browser.text("#blocks")


def test_a_block_selects_its_line(opened, pages):
    key, number = line_of(pages, "relu")
    before = opened.browser.place("#blocks-title").y
    row = next(i for i, each in enumerate(opened.browser.data("#blocks tbody tr"), 1) if each["line"] == str(number))
    opened.browser.click_on(f"#blocks tbody tr:nth-child({row}) td:first-child")
    moved = opened.browser.run("return scrollY") + opened.browser.place("#blocks-title").y - before
    assert moved == 0 and opened.state["group"] == f"line:{key}"
    assert opened.browser.text("#place-title").endswith(f"lines.py:{number} in Net.forward")
    text = opened.browser.text("#place-text")
    assert "torch.relu" in text and "self.inner" in text and "lead here" not in text, (
        "one stack of frames, two places in the line"
    )
    shown = opened.browser.data("#blocks tbody tr")
    assert shown and all(each["line"] == str(number) for each in shown)
    (panel,) = opened.browser.data("#place")
    assert int(panel["bytes"]) == sum(owners(pages.load("lines"), opened.moment, "line", key).values())
    assert int(panel["count"]) == len(shown)
    opened.browser.press("Escape")
    assert not opened.browser.visible("#place") and len(opened.browser.data("#blocks tbody tr")) > len(shown)


@pytest.mark.parametrize("by", ["line", "operator", "module", "category"])
def test_the_panel_tells_who_owns_it_and_which_lines_made_it(shown, pages, by):
    capture = pages.load("gpt")
    shown.open("gpt", f"#by={by}")
    keys = [
        key
        for key in (row.get("group") or row.get("category") for row in shown.browser.data("#legend li"))
        if key != "others"
    ]
    for key in keys[:4]:
        select(shown, by, key)
        held, made = Counter(), Counter()
        for block in capture.snapshot(shown.moment).blocks():
            if key_of(block, by) == key:
                held[block.module, str(block.category)] += block.bytes
                made[key_of(block, "line")] += block.bytes
        rows = {
            (row["fqn"], row["category"]): int(row["bytes"]) for row in shown.browser.data("#place-owners tbody tr")
        }
        assert rows.items() <= held.items() and sorted(rows.values()) == sorted(held.values())[-6:]
        assert int(shown.browser.data("#place")[0]["bytes"]) == held.total()
        lines = {row["key"]: int(row["bytes"]) for row in shown.browser.data("#place-made-rows tbody tr")}
        assert by == "line" or (lines.items() <= made.items() and sorted(lines.values()) == sorted(made.values())[-6:])
        assert (
            int(shown.browser.run("return window.modscope.timeline.share.totalAt(window.modscope.tick)"))
            == held.total()
        )


def test_source_text_with_the_line_marked_and_the_frames_above(opened, pages):
    key, number = line_of(pages, "a @ b")
    select(opened, "line", key)
    text = script_of(pages).read_text().splitlines()
    assert opened.browser.text("#place-code [aria-current]").split() == [str(number), *text[number - 1].split()]
    shown = {int(row["line"]) for row in opened.browser.data("#place-code span")}
    assert shown == {line for line in range(number - 3, number + 4) if line <= len(text)}
    frames = opened.browser.texts("#place-frames li")
    assert [frame.rpartition(" in ")[2] for frame in frames][:3] == ["mix", "Net.forward", "main"]
    opened.browser.click_on("#place-frames li:nth-child(2) button")
    assert "mix(hidden, hidden.mT)" in opened.browser.text("#place-code [aria-current]")
    assert opened.browser.attribute("#place-frames li:nth-child(2) button", "aria-pressed") == "true"


def test_source_that_changed_or_is_gone_is_not_shown(shown, pages, tmp_path):
    key, number = line_of(pages, "relu")
    script, kept = script_of(pages), tmp_path / "kept.py"
    shutil.copy2(script, kept)
    for note in ("changed since", "source not found"):
        script.write_text("x\n") if note == "changed since" else script.unlink()
        page = tmp_path / f"{note.split()[0]}.html"
        try:
            forget_sources()
            assert modscope("report", str(pages.capture("lines")), "-o", str(page))[0] == 0
        finally:
            shutil.copy2(kept, script)
            forget_sources()
        shown.browser.open(page.as_uri(), READY)
        select(shown, "line", key)
        assert note in shown.browser.text("#place-note") and not shown.browser.visible("#place-code")
        assert shown.browser.text("#place-title").endswith(f":{number} in Net.forward")


def test_an_area_of_the_timeline_selects_its_line(shown, pages):
    capture = pages.load("gpt")
    shown.open("gpt", "#by=line")
    x, _ = shown.on_timeline(0.5)
    box = shown.browser.box("#timeline")
    script = """
        const { left, right, columns, grouping, stacks, top, bottom } = window.modscope.timeline;
        const column = Math.floor(((arguments[0] - left) / (right - left)) * columns);
        return [grouping.order.map((group) => stacks[column * grouping.count + group]), top, bottom];
    """
    sums, top, bottom = shown.browser.run(script, round(x) - box.x)
    group = max(range(9), key=lambda each: sums[each])
    middle = sum(sums[:group]) + sums[group] / 2
    y = box.y + bottom - middle / top * (bottom - 22)
    key = shown.browser.run("return window.modscope.timeline.grouping.key(arguments[0])", group)
    shown.browser.move(x, y)
    assert [row["group"] for row in shown.browser.data("#tip tr.marked")] == [key]
    shown.browser.click(x, y)
    assert shown.state["group"] == f"line:{key}"
    assert int(shown.browser.data("#place")[0]["bytes"]) == sums[group]
    assert sum(owners(capture, shown.moment, "line", key).values()) == sums[group]
    select(shown, "line", key)
    shown.browser.press("Escape")
    shown.browser.click(x, box.y + 30)  # above the areas
    assert shown.state["group"] == ""
    shown.open("gpt")
    shown.browser.click(x, y)
    assert shown.state["group"] == "" and not shown.browser.visible("#place")


def test_the_legend_selects_by_mouse_and_keyboard(shown):
    shown.open("gpt", "#by=operator")
    first = shown.browser.data("#legend li")[0]["group"]
    shown.browser.click_on("#legend li button")
    assert shown.state["group"] == f"operator:{first}"
    assert shown.browser.attribute("#legend li button", "aria-pressed") == "true"
    assert "group=operator" in shown.browser.address()
    shown.reload()
    assert shown.state["group"] == f"operator:{first}" and shown.browser.visible("#place")
    shown.browser.give_focus("#legend li button")
    shown.browser.press("Enter")
    assert shown.state["group"] == "" and shown.browser.focus() == "button.entry"
    shown.browser.press("Enter")
    assert shown.state["group"] == f"operator:{first}"
    shown.browser.give_focus("#place-made-rows button")
    shown.browser.press("Enter")
    assert shown.state["group"].startswith("line:") and shown.browser.focus() == "place-title"
    shown.browser.give_focus("#place-clear")
    shown.browser.press("Escape")
    assert shown.state["group"] == "" and shown.browser.focus() == "timeline"
    select(shown, "operator", first)
    shown.choose("GPT.blocks.1")
    assert shown.state["group"] == "" and shown.module == "GPT.blocks.1" and not shown.browser.visible("#place")
    select(shown, "operator", first)
    assert shown.module == "" and not shown.browser.visible("#selection")


def test_leaks_tell_their_line_which_can_be_selected(opened, pages):
    key, number = line_of(pages, "zeros")
    (group,) = pages.figures("leaks", "lines")["groups"]
    (row,) = opened.browser.data("#survivors tbody tr")
    assert (row["file"], row["line"], row["function"]) == (group["lines"][0]["file"], str(number), "main")
    assert f"lines.py:{number} in main" in opened.browser.text("#survivors")
    opened.browser.click_on("#survivors td.line button")
    assert opened.state["group"] == f"line:{key}"


def test_names_of_files_and_functions_are_only_text(shown, pages):
    shown.open("hostile-lines", "#by=line")
    keys = [row["group"] for row in shown.browser.data("#legend li") if row["group"] != "others"]
    assert sum("alert(" in key for key in keys) >= 3
    for key in keys:
        select(shown, "line", key)
        assert shown.state["group"] == f"line:{key}" and "source not found" in shown.browser.text("#place")
        assert not any(char in shown.browser.text("#place-title") for char in "\x00\x07\x1b\u202e")
    assert shown.browser.dialog() is None and not shown.browser.run(
        "return document.querySelectorAll('#place img, #place svg, #legend img').length"
    )


@pytest.mark.parametrize("width", [400, 1400])
def test_the_panel_fits_the_window_and_moves_nothing(shown, pages, width):
    shown.open("lines", "#by=line", width=width, height=800)
    ids = "['timeline', 'legend', 'tree', 'blocks']"
    places = f"return {ids}.map((id) => document.getElementById(id).getBoundingClientRect().y + scrollY)"
    before = shown.browser.run(places)
    select(shown, "line", line_of(pages, "relu")[0])
    assert shown.browser.run(places) == before
    box = shown.browser.place("#place")
    assert box.x >= 0 and box.x + box.width <= width and 350 < box.y and box.y + box.height <= 800
    assert shown.browser.run("return document.documentElement.scrollWidth") <= width
    assert shown.browser.run(
        "return document.getElementById('place').scrollWidth <= document.getElementById('place').clientWidth"
    )
    shown.browser.click_on("#place-scale")
    assert (
        shown.browser.attribute("#place-scale", "aria-pressed")
        == str(shown.browser.run("return window.modscope.timeline.ownScale")).lower()
    )
    shown.browser.click_on("#place-clear")
    assert not shown.browser.visible("#place")
