"""The picture of segments: its figures are those of the allocator's model and of the page, and pointer and keys find
its parts."""

import json

import pytest

MIB = 1 << 20
PARTS = """
    return window.modscope.segments.segments.map((segment) => ({ ...segment,
        parts: segment.parts.map(({ at, bytes, lifetime }) => [at, bytes, lifetime]) }));
"""
HELD = """
    const { capture, tick, device } = window.modscope, held = [];
    capture.eachHeld(tick, device, (lifetime) => held.push(lifetime));
    return held;
"""


def drawn(page):
    return page.browser.data("#segments-box")[0]


def opened(page, name):
    page.open(name)
    assert page.browser.run("return window.modscope.segments.layout") is None  # nothing is decoded before
    page.browser.click_on("#segments-panel > summary")
    page.browser.until("document.querySelector('#segments-box').dataset.reserved")
    page.browser.settle()
    return page


def current(page):
    part = json.loads(drawn(page)["current"])
    return part["segment"], part["at"] / MIB, part["bytes"] / MIB


def test_a_gap_is_where_a_block_was_freed(shown, pages):
    opened(shown, "gaps")  # at the peak, before the first block is freed; the later claim does not move the second
    parts = shown.browser.run(PARTS)[1]["parts"]
    assert [(at / MIB, size / MIB) for at, size, _ in parts] == [(0, 8), (8, 8), (16, 4)]
    shown.go(int(shown.state["moment"]) + 2)
    assert shown.browser.text("#segments-model").endswith("which reserves as much as the capture says.")

    shown.go(pages.load("gaps").event_count)
    text, model = (shown.browser.text(f"#segments-{each}") for each in ("text", "model"))
    assert text == "50.00 MiB reserved in 2 segments, 38.00 MiB of it allocated; the largest of 2 gaps is 8.00 MiB."
    assert model.endswith("at this moment it differs from the run, which had 60.00 MiB reserved.")
    sizes = [[(at / MIB, size / MIB, of < 0) for at, size, of in each["parts"]] for each in shown.browser.run(PARTS)]
    assert sizes == [[(0, 30, False)], [(0, 8, True), (8, 8, False), (16, 4, True)]]

    shown.browser.give_focus("#segments-box")
    found = []
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "End", "ArrowUp", "g"):
        shown.browser.press(key)
        found.append(current(shown))
    assert found == [(0, 0, 30), (1, 0, 8), (1, 8, 8), (1, 16, 4), (0, 0, 30), (1, 0, 8)]
    said = shown.browser.text("#segments-now")
    assert said == "Gap: 8.00 MiB in segment 2 of 2 (20.00 MiB, 12.00 MiB free), at its beginning."
    shown.browser.press("ArrowRight", "Enter")
    assert shown.module == "Net.layer"

    shown.browser.click_on("#segments-list > summary")
    rows = shown.browser.texts("#segments-list tbody tr")
    assert [row.split() for row in rows] == [
        "1 30.00 MiB 30.00 MiB 1 none Net".split(),
        "2 20.00 MiB 8.00 MiB 1 8.00 MiB Net.layer".split(),
    ]
    box = shown.browser.box("#segments-box canvas")
    shown.browser.move(box.x + 5, box.y + 8)
    tip = shown.browser.text("#tip")
    assert tip.startswith("Net\n") and "Parameter 30.00 MiB" in tip and "segment 1 of 2 (30.00 MiB, full)" in tip


def test_segments_hold_every_block_once_and_as_much_as_the_model(shown, pages):
    opened(shown, "cuda")
    capture = pages.load("cuda")
    curve = capture.replay("cuda:0", points=10**6)["curve"]
    moments = [number for number, *_ in curve][:: max(len(curve) // 8, 1)]
    assert len(moments) >= 8
    for number, _, reserved, _ in curve:
        if number not in moments:
            continue
        shown.go(number + 1)
        segments, held = shown.browser.run(PARTS), shown.browser.run(HELD)
        assert sorted(of for each in segments for *_, of in each["parts"] if of >= 0) == sorted(held)
        for each in segments:
            ends = [0] + [at + size for at, size, _ in each["parts"]]
            assert [at for at, *_ in each["parts"]] == ends[:-1] and ends[-1] == each["bytes"]
        assert sum(each["bytes"] for each in segments) == reserved == int(drawn(shown)["reserved"])


@pytest.mark.parametrize("name, reason", [("lossy", "events of this capture are missing."), ("deep", None)])
def test_what_cannot_be_drawn_is_said_and_without_a_gpu_nothing_is(shown, pages, name, reason):
    shown.open(name)
    assert shown.browser.visible("#segments") == (reason is not None)
    assert shown.browser.run("return document.querySelectorAll('script[data-layout]').length") == 0
    if reason:
        shown.browser.click_on("#segments-panel > summary")
        assert shown.browser.text("#segments-text") == f"There is no picture of segments: {reason}"
        assert not shown.browser.visible("#segments-box")
