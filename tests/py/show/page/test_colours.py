"""Colours by module, operator and line: the areas, the legend, the tooltip and the treemap have the figures of
snapshots."""

import random
from collections import Counter

import pytest
from helpers import INTERCEPTION
from page_helpers import key_of

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")

GROUPS = 9  # beside "others"


def held(capture, moment, by):
    sums = Counter()
    for block in capture.snapshot(moment).blocks():
        sums[key_of(block, by)] += block.bytes
    return sums


def shown_in(rows):
    return {row["group"]: int(row["bytes"]) for row in rows if int(row["bytes"])}


def with_others(sums, keys):
    """What is expected where these keys have areas of their own."""
    expected = {key: value for key, value in sums.items() if key in keys}
    rest = sum(sums.values()) - sum(expected.values())
    return {**expected, **({"others": rest} if rest else {})}


def colour_by(shown, by):
    shown.browser.click_on(f'#groupings [data-by="{by}"]')
    assert shown.state["by"] == by
    assert shown.browser.attribute(f'#groupings [data-by="{by}"]', "aria-checked") == "true"


def keys_of(shown):
    script = (
        "const { grouping } = window.modscope.timeline; return grouping.order.map((group) => "
        "grouping.key(group)).filter((key) => key !== null)"
    )
    return set(shown.browser.run(script))


@pytest.mark.parametrize("by", ["module", "operator", "line"])
def test_the_legend_and_the_tooltip_are_exact_at_any_moment(shown, pages, by):
    capture = pages.load("gpt")
    colour_by(shown.open("gpt"), by)
    keys = keys_of(shown)
    at_peak = held(capture, capture.moment("peak"), by)
    largest = sorted(at_peak.values(), reverse=True)[:GROUPS]
    assert sorted((at_peak[key] for key in keys), reverse=True) == largest
    assert shown_in(shown.browser.data("#legend li")) == with_others(at_peak, keys)
    for moment in random.Random(by).sample(range(capture.event_count), 6):
        shown.go(moment)
        assert shown_in(shown.browser.data("#legend li")) == with_others(held(capture, shown.moment, by), keys)
    for part in (0.1, 0.5, 0.8):
        x, y = shown.on_timeline(part)
        shown.browser.move(x, y)
        assert shown_in(shown.browser.data("#tip tr")) == with_others(held(capture, shown.moment_at(x), by), keys)


def test_what_is_drawn_is_the_highest_of_each_pixel_and_all_of_it(shown):
    shown.open("gpt", "#by=line")
    script = """
        const { drawn, series, stacks, grouping, columns } = window.modscope.timeline;
        const sum = (i) => stacks.subarray(i * grouping.count, (i + 1) * grouping.count).reduce((a, b) => a + b, 0);
        return { columns, wrong: [...drawn].filter((tick, i) => series.totalAt(tick) !== sum(i)).length, most: Math.max(...[...drawn.keys()].map(sum)) };
    """
    found = shown.browser.run(script)
    assert found["columns"] > 500 and found["wrong"] == 0 and found["most"] == int(shown.state["peak"])


def test_the_groups_are_those_of_the_shown_part_and_keep_their_colours(shown, pages):
    capture = pages.load("gpt")
    shown.open("gpt", "#by=line")
    script = "const { grouping } = window.modscope.timeline; return grouping.order.map((group) => grouping.key(group))"
    before = shown.browser.run(script)
    zoom = "timeline.setAxis('events'); timeline.setRange(0, capture.stepTicks[1] / 2)"
    shown.browser.run(f"const {{ timeline, capture }} = window.modscope; {zoom}; window.modscope.redraw()")
    shown.browser.settle()
    after = shown.browser.run(script)
    first, last = (
        shown.browser.run("return window.modscope.capture.momentOf(Math.floor(arguments[0]))", end)
        for end in shown.view
    )
    peak = max(range(first, last + 1), key=lambda moment: capture.snapshot(moment).totals["cpu"]["Total"])
    expected = held(capture, peak, "line")
    assert sorted(expected[key] for key in after if key) == sorted(expected.values())[-GROUPS:]
    assert set(after) != set(before) and any(key in before for key in after if key)
    assert all(before.index(key) == after.index(key) for key in after if key and key in before)


def test_of_a_selected_module_its_own_lines_have_the_colours(shown, pages):
    shown.open("gpt", "#by=line").choose("GPT.blocks.1")
    series = (
        "const { capture, module, device, timeline } = window.modscope; const series = capture.series(device, module);"
    )
    peak = "series.maximumIn(series.changeAt(timeline.tickAt(timeline.range().from)), series.count - 1)"
    moment = shown.browser.run(f"{series} return capture.momentOf(series.tick[{peak}])")
    sums = Counter()
    for block in pages.load("gpt").snapshot(moment).blocks():
        if f"{block.module}.".startswith("GPT.blocks.1."):
            sums[key_of(block, "line")] += block.bytes
    assert sorted(sums[key] for key in keys_of(shown)) == sorted(sums.values())[-GROUPS:]


def test_the_treemap_has_the_same_groups(shown, pages):
    capture = pages.load("gpt")
    shown.open("gpt", "#by=operator").show_each_layer()
    script = """
        const { treemap, timeline, capture } = window.modscope;
        const key = (box) => timeline.grouping.key(box.group) ?? "others";
        return treemap.boxes.filter((box) => box.group >= 0 && !box.isWhole).map((box) => [capture.modules.fqn[box.module], key(box), box.bytes]);
    """
    keys, expected = keys_of(shown), Counter()
    for block in capture.snapshot(shown.moment).blocks():
        key = key_of(block, "operator")
        expected[block.module, key if key in keys else "others"] += block.bytes
    parts = shown.browser.run(script)
    assert len(parts) > 20
    for module, key, size in parts:
        assert expected[module, key] == size


def test_keys_and_the_address_switch_the_colours(shown):
    shown.open("gpt")
    for expected in ("module", "operator", "line", "category"):
        shown.browser.press("c")
        assert shown.state["by"] == expected
        assert (f"by={expected}" in shown.browser.address()) is (expected != "category")
    shown.browser.press("C")
    shown.reload()
    assert shown.state["by"] == "line"
    picture = shown.picture_of("#timeline-base")
    shown.open("gpt", "#by=nonsense&group=line:nothing")
    assert shown.state["by"] == "category" and shown.state["group"] == ""
    assert shown.picture_of("#timeline-base") != picture


def test_a_capture_without_lines_shows_nothing_of_them(shown):
    shown.open("no-lines", "#by=line")
    assert shown.state["by"] == "category"
    assert shown.browser.texts("#groupings button:not([hidden])") == ["category", "module"]
    shown.browser.press("c", "c")
    assert shown.state["by"] == "category"
    assert "Line" not in shown.browser.text("#blocks thead tr") and not shown.browser.visible("#place")
    shown.browser.click_on("#blocks tbody tr td")
    assert shown.state["group"] == ""


def test_colours_are_distinct_with_and_without_colour(shown):
    shown.open("gpt", "#by=line")
    script = """
        const swatches = [...document.querySelectorAll("#legend .swatch")].map((each) => [each, getComputedStyle(each)]);
        return swatches.map(([each, style]) => [each.innerText, style.backgroundColor, style.backgroundImage]);
    """
    for dark in ("light", "dark"):
        shown.browser.run("window.modscope.setTheme(arguments[0])", dark)
        letters, colours, patterns = zip(*shown.browser.run(script))
        for each in (letters, colours, patterns):
            assert len(set(each)) == len(each) == GROUPS + 1


def test_several_captures_keep_the_colours(shown):
    shown.open("lines+no-lines+gpt", "#by=line")
    assert shown.state["by"] == "line"
    for index, by in ((2, "line"), (1, "category")):
        shown.browser.run("window.modscope.switchTo(arguments[0])", index)
        shown.browser.settle()
        assert shown.state["by"] == by
