"""The module tree and the treemap: sorted, searched, opened and closed, and chosen from."""

import json

import pytest
from modscope._read.text import size

GPT = "GPT.blocks.1.mlp"


@pytest.fixture
def gpt(shown):
    return shown.open("gpt").show_each_layer()


def levels(page):
    """The name and the level of each row."""
    script = "return [...document.querySelectorAll('#rows .row')].map((e) => [e.dataset.fqn, Number(e.ariaLevel)])"
    return page.browser.run(script)


def children(page, fqn):
    return [each for each in page.fqns() if each.rpartition(".")[0] == fqn]


def subtree(page):
    return {row["fqn"]: int(row["subtree"]) for row in page.rows()}


def expanded(page, fqn):
    return page.browser.run("return document.querySelector(arguments[0]).ariaExpanded", page.row(fqn))


# ---- rows ----


def test_rows_are_as_deep_as_their_names(gpt):
    gpt.browser.click_on("#open-all")
    for fqn, level in levels(gpt):
        assert level == fqn.count(".") + 1


def test_a_row_tells_its_figures(gpt):
    texts = gpt.browser.texts("#rows .row")
    for row, text in zip(gpt.rows(), texts):
        assert size(int(row["subtree"])) in text and (row["own"] == "0" or size(int(row["own"])) in text)
    assert "Global (outside any module)" in "\n".join(texts)


def test_a_bar_is_divided_as_the_categories_are(gpt):
    row = next(row for row in gpt.rows() if row["fqn"] == "GPT.blocks")
    script = """
        const parts = [...document.querySelectorAll(arguments[0])];
        return parts.map((part) => [part.dataset.category, part.getBoundingClientRect().width]);
    """
    parts = gpt.browser.run(script, gpt.row("GPT.blocks") + " .bar i")
    by_category = json.loads(row["subtreeBy"])
    assert {word for word, _ in parts} == set(by_category)
    whole = sum(width for _, width in parts)
    for word, width in parts:
        assert width / whole == pytest.approx(by_category[word] / int(row["subtree"]), abs=0.02)


# ---- sorting ----


def test_the_largest_comes_first(gpt):
    sizes = subtree(gpt)
    for parent in ("GPT", "GPT.blocks", GPT):
        below = [sizes[fqn] for fqn in children(gpt, parent)]
        assert below == sorted(below, reverse=True)


@pytest.mark.parametrize("word", ["subtree", "own"])
def test_sorted_by_bytes_up_and_down(gpt, word):
    gpt.browser.click_on("#open-all")
    title = f'[data-sort="{word}"]'
    if word == "own":
        gpt.browser.click_on(title)
    for direction in ("descending", "ascending"):
        assert gpt.browser.attribute(title, "aria-sort") == direction
        figures = {row["fqn"]: int(row[word]) for row in gpt.rows()}
        for parent in ("GPT", "GPT.blocks", "GPT.blocks.0", GPT):
            below = [figures[fqn] for fqn in children(gpt, parent)]
            assert below == sorted(below, reverse=direction == "descending") and len(below) > 1
        gpt.browser.click_on(title)


def test_sorted_by_name_as_people_do(shown):
    shown.open("gpt").show_each_layer()
    shown.browser.click_on('[data-sort="name"]')
    assert children(shown, "GPT.blocks") == [f"GPT.blocks.{i}" for i in range(4)]
    assert [fqn.rpartition(".")[2] for fqn in children(shown, "GPT.blocks.0")] == ["attention", "mlp", "norm1", "norm2"]
    shown.browser.click_on('[data-sort="name"]')
    assert children(shown, "GPT.blocks") == [f"GPT.blocks.{i}" for i in (3, 2, 1, 0)]
    shown.open("wide").browser.click_on('[data-sort="name"]')
    shown.browser.click_on("#open-all")
    assert children(shown, "Wide")[:12] == [f"Wide.{i}" for i in range(12)]


def test_an_order_stays_when_the_moment_changes(gpt):
    gpt.browser.click_on('[data-sort="name"]')
    gpt.browser.press("]", "]")
    assert children(gpt, "GPT.blocks") == [f"GPT.blocks.{i}" for i in range(4)]


# ---- searching ----


def test_a_search_leaves_what_is_found_and_what_is_above_it(gpt):
    gpt.browser.press("/")
    assert gpt.browser.focus() == "search"
    gpt.browser.press(*"MLP.up")
    found = gpt.fqns()
    assert [fqn for fqn in found if "mlp.up" in fqn.lower()] == [f"GPT.blocks.{i}.mlp.up" for i in range(4)]
    for fqn in found:
        assert any(each.startswith(fqn) and "mlp.up" in each for each in found)
    assert gpt.browser.text("#found") == "4 modules"


def test_a_search_for_what_is_not_there(gpt):
    before = gpt.fqns()
    gpt.browser.press("/", *"nosuch")
    assert gpt.fqns() == [] and gpt.browser.visible("#tree-none") and gpt.browser.text("#found") == "0 modules"
    gpt.browser.press("Escape")
    assert gpt.fqns() == before and not gpt.browser.visible("#tree-none")
    assert gpt.browser.run("return document.getElementById('search').value") == ""
    assert gpt.browser.focus() != "search"


def test_enter_chooses_what_is_found_first(gpt):
    gpt.browser.press("/", *"attention.qkv", "Enter")
    assert gpt.module.endswith("attention.qkv")
    assert gpt.browser.run("return document.activeElement.dataset.fqn") == gpt.module


def test_down_goes_from_the_search_to_the_rows(gpt):
    gpt.browser.press("/", *"head", "ArrowDown")
    assert gpt.browser.run("return document.activeElement.dataset.fqn") in gpt.fqns()


def test_keys_typed_into_the_search_are_text(gpt):
    before = gpt.moment, gpt.view
    gpt.browser.press("/", *"p0+-t?]")
    assert gpt.browser.run("return document.getElementById('search').value") == "p0+-t?]"
    assert (gpt.moment, gpt.view) == before
    assert not gpt.browser.run("return document.getElementById('help').open")


# ---- opening and closing ----


def test_a_click_on_the_sign_closes_and_opens_and_chooses_nothing(gpt):
    sign = gpt.row("GPT.blocks") + " .arrow"
    before = gpt.fqns()
    gpt.browser.click_on(sign)
    assert expanded(gpt, "GPT.blocks") == "false" and not children(gpt, "GPT.blocks") and gpt.module == ""
    gpt.browser.click_on(sign)
    assert expanded(gpt, "GPT.blocks") == "true" and gpt.fqns() == before


def test_open_all_and_close(gpt):
    gpt.browser.click_on("#open-all")
    every = gpt.fqns()
    assert "GPT.blocks.3.attention.out" in every
    gpt.browser.click_on("#close-all")
    assert set(gpt.fqns()) == {fqn for fqn in every if "." not in fqn}
    gpt.browser.click_on("#open-all")
    assert gpt.fqns() == every


def test_what_was_closed_stays_closed_at_other_moments(gpt):
    gpt.browser.click_on(gpt.row("GPT.blocks") + " .arrow")
    gpt.browser.press("]")
    assert not children(gpt, "GPT.blocks")


def test_keys_in_the_tree(gpt):
    def focused():
        return gpt.browser.run("return document.activeElement.dataset.fqn")

    gpt.browser.run("document.querySelector('#rows .row[tabindex=\"0\"]').focus()")
    rows = gpt.fqns()
    assert focused() == rows[0] == "GPT"
    gpt.browser.press("ArrowDown", "ArrowDown")
    assert focused() == rows[2]
    gpt.browser.press("ArrowUp")
    assert focused() == rows[1] == "GPT.blocks"
    gpt.browser.press("ArrowLeft")
    assert expanded(gpt, "GPT.blocks") == "false" and focused() == "GPT.blocks"
    gpt.browser.press("ArrowLeft")
    assert focused() == "GPT"
    gpt.browser.press("ArrowDown", "ArrowRight")
    assert expanded(gpt, "GPT.blocks") == "true" and focused() == "GPT.blocks"
    gpt.browser.press("ArrowRight")
    assert focused() == rows[2]
    gpt.browser.press("End")
    assert focused() == gpt.fqns()[-1]
    gpt.browser.press("Home", "*")
    assert "GPT.blocks.3.attention.out" in gpt.fqns() and focused() == "GPT"
    gpt.browser.press("ArrowDown", "Enter")
    assert gpt.module == "GPT.blocks" and focused() == "GPT.blocks"
    gpt.browser.press("Enter")
    assert gpt.module == ""


def test_a_row_that_keys_come_to_is_on_the_screen(gpt):
    gpt.browser.run("document.querySelector('#rows .row[tabindex=\"0\"]').focus()")
    gpt.browser.press("*", "End")
    row, rows = gpt.browser.place(":focus"), gpt.browser.place("#rows")
    assert row.y >= rows.y - 1 and row.y + row.height <= min(rows.y + rows.height, 1000) + 1


def test_more_rows_than_are_shown_can_be_asked_for(shown):
    shown.open("wide")
    shown.browser.click_on("#open-all")
    assert len(shown.fqns()) == 400
    assert shown.browser.text("#tree-more") == "Show 101 more rows"
    shown.browser.click_on("#tree-more")
    assert len(shown.fqns()) == 501 and not shown.browser.visible("#tree-more")


# ---- choosing ----


def lit(page):
    """What is chosen: its row, and what is said of it."""
    rows = [row["fqn"] for row in page.browser.data("#rows [aria-selected=true]")]
    return rows, page.browser.text("#selection-text") if page.browser.visible("#selection") else None


def test_choosing_a_row_lights_it_everywhere(gpt):
    before = gpt.picture_of("#treemap"), gpt.picture_of("#timeline-base")
    gpt.browser.click_on(gpt.row(GPT))
    rows, text = lit(gpt)
    assert gpt.module == GPT and rows == [GPT] and text.startswith(GPT)
    after = gpt.picture_of("#treemap"), gpt.picture_of("#timeline-base")
    assert before[0] != after[0] and before[1] != after[1]
    gpt.browser.click_on(gpt.row(GPT))
    gpt.browser.move(3, 3)
    assert gpt.module == "" and lit(gpt) == ([], None)
    assert (gpt.picture_of("#treemap"), gpt.picture_of("#timeline-base")) == before


def test_its_share_over_time_is_in_the_tip(gpt):
    gpt.choose(GPT)
    capture = gpt.pages.load("gpt")
    for part in (0.2, 0.5):
        x, y = gpt.on_timeline(part)
        gpt.browser.move(x, y)
        held = capture.snapshot(gpt.moment_at(x)).by_module(children=True).get("cpu", {})
        total = held[GPT]["Total"] if GPT in held else 0
        assert f"{GPT}: {size(total)}" in gpt.browser.text("#tip")


def test_a_small_share_can_be_drawn_on_the_scale_of_the_whole(gpt):
    gpt.choose("GPT.blocks.0.norm1")
    own = gpt.picture_of("#timeline-base")
    gpt.browser.click_on("#own-scale")
    assert gpt.picture_of("#timeline-base") != own


@pytest.mark.parametrize("way", ["Escape", "#selection-clear"])
def test_letting_go(gpt, way):
    gpt.choose(GPT)
    gpt.browser.click_on(way) if way.startswith("#") else gpt.browser.press(way)
    assert gpt.module == "" and lit(gpt) == ([], None)


def test_a_choice_stays_when_the_moment_changes(gpt):
    gpt.choose(GPT)
    gpt.browser.press("[")
    assert gpt.module == GPT and lit(gpt)[0] == [GPT]


def test_choosing_from_the_largest_blocks(gpt):
    gpt.browser.click_on("#close-all")
    gpt.show_each_layer()
    gpt.browser.click_on("#blocks tbody tr button.link")
    assert gpt.module and lit(gpt)[0] == [gpt.module]


def boxes(page):
    script = """
        const { treemap, capture } = window.modscope;
        const fqn = (box) => capture.modules.fqn[box.module];
        return treemap.boxes.map((box) => [fqn(box), box.group, box.bytes, box.x, box.y, box.width, box.height]);
    """
    return page.browser.run(script)


def on_treemap(page, x, y):
    box = page.browser.box("#treemap")
    return box.x + x, box.y + y


def part_of(page, module):
    """Somewhere in what the module holds itself."""
    fqn, _, _, x, y, width, height = next(box for box in boxes(page) if box[0] == module and box[1] >= 0)
    return on_treemap(page, x + width / 2, y + height / 2)


def test_areas_are_as_large_as_what_they_show(gpt):
    parts = [box for box in boxes(gpt) if box[1] >= 0 and min(box[5:]) > 12]
    assert len(parts) > 10 and int(gpt.browser.data("#treemap")[0]["boxes"]) == len(boxes(gpt))
    within = [box for box in parts if box[0] == "GPT.blocks.0.mlp.up"]
    areas = [width * height / held for _, _, held, _, _, width, height in within]
    assert len(areas) > 1 and max(areas) == pytest.approx(min(areas), rel=0.02)


def test_areas_do_not_leave_the_box_of_their_module(gpt):
    outer = {box[0]: box[3:] for box in boxes(gpt) if box[1] < 0}
    for fqn, _, _, x, y, width, height in boxes(gpt):
        left, top, wide, high = outer.get(fqn.rpartition(".")[0], (0, 0, 9999, 9999))
        assert x >= left - 0.01 and x + width <= left + wide + 0.01
        assert y >= top - 0.01 and y + height <= top + high + 0.01


def test_choosing_an_area_lights_the_row(gpt):
    gpt.browser.click_on("#close-all")
    gpt.show_each_layer()
    where = part_of(gpt, "GPT.blocks.2.mlp.up")
    gpt.browser.move(*where)
    assert "GPT.blocks.2.mlp.up" in gpt.browser.text("#tip")
    gpt.browser.click(*where)
    assert gpt.module == "GPT.blocks.2.mlp.up"
    assert lit(gpt)[0] == ["GPT.blocks.2.mlp.up"], "its row is not on the screen"
    gpt.browser.click(*where)
    assert gpt.module == ""


def test_a_double_click_goes_into_a_module_and_back(gpt):
    far = gpt.picture_of("#treemap")
    gpt.browser.click(*part_of(gpt, "GPT.blocks.2.mlp.up"), times=2)
    assert "GPT.blocks.2.mlp.up" in gpt.browser.text("#crumbs")
    assert {box[0] for box in boxes(gpt)} == {"GPT.blocks.2.mlp.up"}
    gpt.browser.click_on("#crumbs button")
    gpt.browser.press("Escape")
    gpt.browser.move(3, 3)
    assert gpt.browser.text("#crumbs") == "" and gpt.picture_of("#treemap") == far


# ---- like layers as one ----


def test_layers_that_hold_the_same_are_one_row_and_one_click_away(shown):
    """In the tree, the treemap and among the blocks, with the sums of all of them."""
    shown.open("gpt")
    figures = shown.pages.load("gpt").snapshot("peak").by_module(children=True)["cpu"]
    totals = {i: figures[f"GPT.blocks.{i}"]["Total"] for i in range(4)}
    rows = [row for row in shown.rows() if row["fqn"].startswith("GPT.blocks.") and row["fqn"].count(".") == 2]
    counts = {row["fqn"]: int(row["count"]) for row in rows}
    folded = next(name for name, count in counts.items() if count > 1)
    members = [int(part) for part in folded[len("GPT.blocks.{") : -1].replace("-", ", ").split(", ")]
    members = list(range(members[0], members[-1] + 1))
    row = next(row for row in rows if row["fqn"] == folded)
    assert sum(counts.values()) == 4 and int(row["subtree"]) == sum(totals[i] for i in members)
    assert f"({len(members)} alike)" in shown.browser.text(shown.row(folded))
    whole = [box for box in boxes(shown) if box[1] < 0 and box[0] == f"GPT.blocks.{members[0]}"]
    assert [box[2] for box in whole] == [int(row["subtree"])]
    blocks = shown.browser.data("#blocks tbody tr")
    assert max(int(block["count"]) for block in blocks) > 1
    assert "GPT.blocks.*.mlp" in "".join(shown.browser.texts("#blocks tbody tr"))
    shown.browser.click_on(shown.row(folded))
    assert shown.module == "" and {f"GPT.blocks.{i}" for i in members} < set(shown.fqns())
    shown.browser.click_on(shown.row(folded))
    assert f"GPT.blocks.{members[-1]}" not in shown.fqns()


def test_a_module_that_is_chosen_is_not_hidden_among_those_that_are_alike(shown):
    shown.open("gpt")
    shown.choose(GPT)
    assert lit(shown)[0] == [GPT]
    shown.reload()
    assert shown.module == GPT and lit(shown)[0] == [GPT]


def test_a_leaf_that_fills_the_treemap_is_shown_block_by_block(gpt):
    leaf = "GPT.blocks.2.mlp.up"
    gpt.browser.run("window.modscope.setTreemapRoot(window.modscope.capture.modules.byFqn.get(arguments[0]))", leaf)
    gpt.browser.settle()
    held = [block.bytes for block in gpt.pages.load("gpt").snapshot("peak").blocks() if block.module == leaf]
    assert sorted(box[2] for box in boxes(gpt)) == sorted(held) and len(held) > 1
