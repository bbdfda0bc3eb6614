"""The lane of collectives below the timeline."""

import pytest
from capture_helpers import Capture
from modscope import load
from modscope.__main__ import main

MIB = 1 << 20
READY = "window.modscopeReady !== undefined || window.modscopeError !== undefined"
ROW = 18  # pixels, as collectives.js draws them

pytestmark = pytest.mark.slow


def launches() -> Capture:
    """Three steps of 100 ms: in each a gather that takes 40 ms, then a reduction that takes 20 ms, and a barrier whose
    time is not known."""
    c = Capture(("cpu",), program="train.py")
    c.claim(c.add(MIB), "Parameter", c.module("Net.0"))
    c.group(1, 4, "default_pg", "0-3")
    for _ in range(3):
        c.where()
        c.step()
        c.where("forward", c.module("Net.0"))
        c.collective("all_gather", 8 * MIB, nanoseconds=40_000_000)
        c.wait(50_000)
        c.where("backward", c.module("Net.0"))
        c.collective("all_reduce", 4 * MIB, nanoseconds=20_000_000)
        c.wait(25_000)
        c.collective("barrier", 0)
        c.drop(c.add(4096))
        c.wait(25_000)
    return c


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collectives")
    (folder / "x.msc").write_bytes(launches().end(how="finished"))
    assert main(["report", str(folder / "x.msc"), "-o", str(folder / "x.html")]) == 0
    return folder


@pytest.fixture
def page(browser, folder):
    browser.screen(1300, 1000)
    browser.open((folder / "x.html").as_uri(), READY)
    assert browser.run("return window.modscopeError || ''") == ""
    browser.press("0")  # the whole run
    yield browser
    assert browser.complaints() == []


def lane(page):
    (data,) = page.data("#collectives")
    return data


def bar(page, nth):
    """The left and the right end of a bar, in pixels of the window, and the middle of its row."""
    left, right, row = page.run(
        "const lane = window.modscope.collectives; const box = lane.canvas.getBoundingClientRect();"
        f"const [a, b] = lane.ends(lane.timeline, {nth}); return [box.left + a, box.left + b, box.top + "
        f"(lane.data.kind[{nth}] + 0.5) * {ROW}];"
    )
    return left, right, row


def test_it_says_how_many_of_each_kind_and_draws_them(page):
    shown = lane(page)
    assert (shown["count"], shown["drawn"], shown["kinds"]) == ("9", "9", "all_gather all_reduce barrier")
    assert (
        page.text("#collectives-text")
        == "Collectives: 3 × all_gather (24.00 MiB), 3 × all_reduce (12.00 MiB), 3 × barrier."
    )
    assert page.attribute("#collectives canvas", "aria-label") == page.text("#collectives-text")


def test_a_bar_is_as_wide_as_the_collective_took(page):
    page.click_on('#axes [data-axis="time"]')
    gather, reduce, barrier = bar(page, 0), bar(page, 1), bar(page, 2)
    assert gather[1] - gather[0] == pytest.approx(2 * (reduce[1] - reduce[0]), abs=1.5)
    assert reduce[0] - gather[0] == pytest.approx((gather[1] - gather[0]) * 50 / 40, abs=1.5)  # launched 50 ms later
    assert barrier[1] - barrier[0] < 3
    box = page.place("#collectives canvas")
    inside, outside = (gather[0] + gather[1]) / 2 - box.x, (gather[1] + bar(page, 3)[0]) / 2 - box.x
    pixels = page.run(
        "const c = window.modscope.collectives.canvas, s = c.width / c.clientWidth, [a, b, y] = arguments;"
        "const row = c.getContext('2d').getImageData(0, y * s, c.width, 1).data;"
        "return [a, b].map((x) => row.slice(4 * Math.round(x * s), 4 * Math.round(x * s) + 4).join());",
        inside, outside, ROW - 3,
    )  # fmt: skip
    assert pixels[0] != pixels[1]


def test_hovering_names_the_collective_and_a_click_selects_its_moment(page, folder):
    page.click_on('#axes [data-axis="time"]')
    left, right, row = bar(page, 4)  # the second reduction
    page.move((left + right) / 2, row)
    tip = page.text("#tip")
    assert "all_reduce 4.00 MiB" in tip and "backward of Net.0" in tip and "takes 20" in tip
    assert "4 ranks (0-3) of default_pg over nccl" in tip
    page.move(left - 30, row)
    assert not page.visible("#tip")
    page.click((left + right) / 2, row)
    event = load(folder / "x.msc").collectives()[4].event
    assert page.run("return Number(document.body.dataset.moment)") == event - 1


def test_only_those_in_the_range_that_is_shown_are_drawn(page):
    page.click_on('#axes [data-axis="time"]')
    box = page.place("#timeline")
    page.wheel(box.x + box.width - 20, box.y + 50, -400)
    page.settle()
    assert 0 < int(lane(page)["drawn"]) < 9


def test_by_event_bars_stay_where_their_events_are(page):
    page.click_on('#axes [data-axis="events"]')
    left, right, _ = bar(page, 0)
    assert right - left < 3 and bar(page, 1)[0] > left


def test_a_program_without_collectives_has_no_lane(browser, tmp_path):
    c = Capture(("cpu",), program="train.py")
    c.add(MIB)
    (tmp_path / "x.msc").write_bytes(c.end(how="finished"))
    assert main(["report", str(tmp_path / "x.msc"), "-o", str(tmp_path / "x.html")]) == 0
    browser.open((tmp_path / "x.html").as_uri(), READY)
    assert browser.run("return document.getElementById('collectives').hidden") is True
