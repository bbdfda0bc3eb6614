"""The flame graph of the page: its figures are those of `modscope flame`, and pointer, keys and search do what they
say."""

import pytest
from modscope._show.lines import NO_LINES

STACKS = """
    const { tree, held } = window.modscope.flame, found = [];
    const pathOf = (node) => node < 0 ? [] : [...pathOf(tree.parent[node]), tree.name[node]];
    tree.name.forEach((_, node) => {
        const below = tree.children[node].reduce((sum, child) => sum + held.total[child], 0);
        if (held.total[node] > below) found.push([pathOf(node).join(";"), held.total[node] - below]);
    });
    return found;
"""
BOXES = """
    const { flame } = window.modscope;
    return flame.boxes.map(({ node, x, y, width, bytes, others }) => ({ name: node < 0 ? "" : flame.tree.pathOf(node), node, x, y, width, bytes, others }));
"""


@pytest.fixture
def lines(shown):
    return shown.open("lines")


def folded(tree, above=()):
    """Names and bytes of each stack, as `modscope flame --json` has them."""
    for node in tree:
        stack = *above, node["name"]
        if node["own"]["Total"]:
            yield ";".join(stack), node["own"]["Total"]
        yield from folded(node["children"], stack)


def boxes(page):
    return page.browser.run(BOXES)


def box_of(page, name):
    return next(box for box in boxes(page) if box["name"] == name and not box["others"])


def state(page):
    return page.browser.data("#flame-box")[0]


def set_order(page, order):
    page.browser.click_on(f'#flame-orders [data-order="{order}"]')
    page.browser.settle()


def click(page, name):
    """In the middle of the rectangle."""
    page.browser.run("document.getElementById('flame').scrollIntoView()")
    place, box = page.browser.place("#flame-box canvas"), box_of(page, name)
    page.browser.click(place.x + box["x"] + box["width"] / 2, place.y + box["y"] + 10)
    page.browser.settle()


# ---- figures ----


@pytest.mark.parametrize("name", ["lines", "gpt", "no-lines", "cuda", "lost"])
def test_the_stacks_are_those_of_the_command(shown, pages, name):
    shown.open(name)
    for order in ("module", "layers", "line"):
        set_order(shown, order)
        for at in ("peak", "step:1"):
            report = pages.figures("flame", name, "--by", order, "--at", at, "--device", shown.state["device"])
            shown.look(report["moment"])
            found = shown.browser.run(STACKS)
            assert sorted(map(tuple, found)) == sorted(folded(report["tree"])), (order, at)
            assert int(state(shown)["bytes"]) == report["total"]


def test_rectangles_are_as_wide_as_their_bytes_and_lie_inside_their_parents(shown):
    for width in (1400, 400):
        shown.open("gpt", width=width, height=800)
        found = boxes(shown)
        top = found[0]
        assert top["name"] == "" and top["width"] == pytest.approx(shown.browser.place("#flame-box").width, abs=1)
        parents = shown.browser.run("return window.modscope.flame.tree.parent")
        by_node = {box["node"]: box for box in found if not box["others"]}
        for box in found[1:]:
            assert box["width"] == pytest.approx(top["width"] * box["bytes"] / top["bytes"], abs=0.1)
            around = by_node[parents[box["node"]]]
            assert box["x"] >= around["x"] - 0.1 and box["x"] + box["width"] <= around["x"] + around["width"] + 0.1
            assert box["y"] == around["y"] + 20
            assert box["width"] >= 3 or box["others"]
        rows = sorted((box["y"], box["x"], box["width"]) for box in found)
        for (y, x, length), (next_y, next_x, _) in zip(rows, rows[1:]):
            assert y != next_y or next_x >= x + length - 0.1, "two overlap"
        assert shown.browser.place("#flame-box canvas").height == pytest.approx(max(rows)[0] + 21)


def test_it_follows_the_moment_and_the_device(shown):
    shown.open("cuda")
    before = state(shown)["bytes"]
    assert before == shown.state["total"]
    shown.browser.click_on("#step-back")
    shown.browser.settle()
    assert state(shown)["bytes"] == shown.state["total"] != before
    other = shown.browser.run(
        "const other = [...document.querySelectorAll('#devices button')].find((b) => b.ariaChecked !== 'true'); "
        "other?.click(); return Boolean(other)"
    )
    if other:
        shown.browser.settle()
        assert state(shown)["bytes"] == shown.state["total"]


# ---- zoom ----


def test_a_click_zooms_and_selects_the_module(lines):
    click(lines, "Net.inner")
    assert lines.module == "Net.inner" and state(lines)["root"] == "Net.inner"
    assert box_of(lines, "Net.inner")["width"] == pytest.approx(boxes(lines)[0]["width"])
    inside = [box for box in boxes(lines) if " > " in box["name"]]
    frame = next(box["name"] for box in inside if "Net.__init__" in box["name"] and not box["others"])
    click(lines, frame)
    assert state(lines)["root"] == frame and lines.module == "Net.inner", "a frame is not a module"
    lines.browser.click_on("#flame-out")
    assert state(lines)["root"] == frame.rpartition(" > ")[0]
    click(lines, "Net")
    assert lines.module == "Net" and state(lines)["root"] == "Net"
    click(lines, "")
    assert (lines.module, state(lines)["root"]) == ("", "") and not lines.browser.visible("#flame-out")


def test_it_follows_the_selected_module(lines, pages):
    lines.choose("Net.inner")
    held = pages.figures("flame", "lines", "--module", "Net.inner")["shown"]
    assert state(lines)["root"] == "Net.inner" and int(state(lines)["bytes"]) == held
    set_order(lines, "line")
    assert int(state(lines)["bytes"]) == held and boxes(lines)[0]["bytes"] == held, "only what it owns is drawn"
    lines.browser.press("Escape")
    assert lines.module == "" and int(state(lines)["bytes"]) == int(lines.state["total"])


def test_layers_together(shown, pages):
    shown.open("gpt")
    set_order(shown, "layers")
    up = box_of(shown, "GPT.blocks.*.mlp.up")
    tree = pages.figures("tree", "gpt")["tree"]
    blocks = next(child for root in tree for child in root["children"] if child["fqn"] == "GPT.blocks")
    held = [part for block in blocks["children"] for part in block["children"] if part["name"] == "mlp"]
    assert up["bytes"] == sum(
        part["subtree"]["Total"] for each in held for part in each["children"] if part["name"] == "up"
    )
    click(shown, "GPT.blocks.*.mlp")
    assert state(shown)["root"] == "GPT.blocks.*.mlp" and shown.module == "", "it is several modules"
    shown.browser.click_on("#flame-out")
    assert state(shown)["root"] == "GPT.blocks.*"
    shown.choose("GPT.blocks.1")
    held = next(block["subtree"]["Total"] for block in blocks["children"] if block["name"] == "1")
    assert int(state(shown)["bytes"]) == held
    click(shown, "")
    assert shown.module == "" and int(state(shown)["bytes"]) == int(shown.state["total"])


def test_a_module_that_holds_nothing_at_a_moment_gives_way_to_those_around_it(lines):
    lines.choose("Net.inner")
    lines.look(0)
    assert int(state(lines)["bytes"]) == int(lines.state["total"]) and "Net.inner" not in state(lines)["root"]


# ---- search ----


def test_a_search_says_how_many_bytes_match(lines, pages):
    plain = lines.picture_of("#flame-box canvas")
    lines.browser.press("f")
    assert lines.browser.focus() == "flame-search"
    lines.browser.press(*"inner")
    report = pages.figures("flame", "lines", "--find", "inner")["find"]
    assert int(state(lines)["found"]) == report["bytes"]
    said = lines.browser.text("#flame-found")
    assert said.endswith(f"in {report['count']} matches") or report["count"] == 1 and said.endswith("in 1 match")
    assert lines.picture_of("#flame-box canvas") != plain, "matches are marked"
    lines.browser.press(*"xyz")
    assert lines.browser.text("#flame-found") == "No match" and state(lines)["found"] == "0"
    lines.browser.press("Escape")
    assert (
        lines.browser.focus() == "flame-box"
        and state(lines)["found"] == ""
        and lines.browser.text("#flame-found") == ""
    )


# ---- keys ----


def test_the_keys_go_from_part_to_part(lines):
    lines.browser.give_focus("#flame-box")
    lines.browser.press("ArrowDown")
    first = state(lines)["current"]
    assert first and lines.browser.text("#flame-now").startswith(f"{first}: ")
    lines.browser.press("ArrowDown", "ArrowRight")
    second = state(lines)["current"]
    lines.browser.press("ArrowLeft", "ArrowUp")
    assert state(lines)["current"] == first != second
    lines.browser.press("ArrowUp", "ArrowUp")
    assert state(lines)["current"] == ""
    lines.browser.press("ArrowDown", "Enter")
    assert state(lines)["root"] == first and lines.browser.visible("#flame-out")
    lines.browser.press("Escape")
    assert state(lines)["root"] == "" and lines.browser.focus() == "flame-box"


# ---- looks ----


def test_a_narrow_module_is_not_only_its_number(shown):
    shown.open("gpt")
    set_order(shown, "line")
    names = shown.browser.run(
        "const { flame } = window.modscope; return flame.tree.name.map((_, node) => flame.namesOf(node))"
    )
    numbered = {name: short for name, *_, short in names if name.endswith(".0")}
    assert numbered and all(short == ".".join(name.split(".")[-2:]) for name, short in numbered.items()), names


def test_the_tooltip_has_the_bytes_the_line_and_its_source(lines):
    set_order(lines, "line")
    lines.browser.run("document.getElementById('flame').scrollIntoView()")
    place = lines.browser.place("#flame-box canvas")
    box = next(box for box in boxes(lines) if box["name"].endswith("Net.__init__ (lines.py:8)"))
    lines.browser.move(place.x + box["x"] + 5, place.y + box["y"] + 10)
    said = lines.browser.text("#tip")
    assert "Net.__init__ (lines.py:8)" in said and "lines.py:8" in said and "self.inner = nn.Linear(256, 256)" in said
    assert "257.00 KiB" in said and "Parameter 257.00 KiB" in said


def test_it_is_drawn_in_light_and_dark_and_says_what_was_not_recorded(shown):
    shown.browser.media(prefers_color_scheme="light")
    shown.open("no-lines")
    light = shown.picture_of("#flame-box canvas")
    assert shown.browser.text("#flame-lines") == NO_LINES
    shown.browser.press("t")
    assert shown.picture_of("#flame-box canvas") != light
    shown.open("mlp")
    assert "Only the innermost line was recorded" in shown.browser.text("#flame-lines")
    shown.open("lines")
    assert shown.browser.text("#flame-lines") == ""


def test_many_narrow_parts_share_one(shown):
    shown.open("wide", width=400, height=800)
    narrow = [box for box in boxes(shown) if box["others"]]
    assert (
        narrow
        and sum(box["others"] for box in narrow)
        + len([box for box in boxes(shown) if box["name"].startswith("Wide.") and not box["others"]])
        == 500
    )


@pytest.mark.slow
def test_it_is_drawn_fast(shown):
    """Five thousand rectangles, and a million events."""
    shown.open("million")
    script = """
        const { flame } = window.modscope, times = [];
        for (let i = 0; i < 10; i++) {
            const began = performance.now();
            flame.draw(window.modscope.theme);
            times.push(performance.now() - began);
        }
        return Math.min(...times);
    """
    assert shown.browser.run(script) < 5_000  # tens of milliseconds are usual
