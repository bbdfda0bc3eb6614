"""The timeline under the pointer, the wheel and the keys."""

import re

import pytest


def close(a, b):
    return a == pytest.approx(b, rel=1e-6, abs=1)


def place_at(view, part):
    return view[0] + part * (view[1] - view[0])


@pytest.fixture
def gpt(shown):
    """The whole run: how long it takes to build the model is different each time."""
    shown.open("gpt")
    shown.browser.press("0")
    return shown


@pytest.fixture
def by_event(gpt):
    """Where things are is then the same in every run."""
    gpt.browser.click_on('#axes [data-axis="events"]')
    return gpt


def nothing_else_changed(page, before):
    words = ("capture", "device", "moment", "module", "total")
    assert [page.state[word] for word in words] == [before[word] for word in words]


# ---- pointing ----


def test_hovering_shows_the_moment_and_selects_nothing(by_event):
    before = by_event.state
    assert not by_event.browser.visible("#tip")
    by_event.browser.move(*by_event.on_timeline(0.2))
    assert by_event.browser.visible("#tip") and by_event.tip()
    assert "in step" in by_event.browser.text("#tip")
    nothing_else_changed(by_event, before)


def test_the_tip_goes_when_the_pointer_leaves(gpt):
    gpt.browser.move(*gpt.on_timeline(0.2))
    gpt.browser.move(3, 3)
    assert not gpt.browser.visible("#tip")


@pytest.mark.parametrize("width", [400, 1300])
def test_the_tip_is_on_the_screen_wherever_it_points(shown, width):
    shown.open("gpt", width=width)
    for part in (0.0, 0.5, 1.0):
        shown.browser.move(*shown.on_timeline(part))
        x, y, wide, high = shown.browser.place("#tip")
        assert x >= 0 and x + wide <= width and y >= 0 and y + high <= 1000


def test_a_click_selects_what_the_tip_told(by_event):
    for part in (0.15, 0.35):
        x, y = by_event.on_timeline(part)
        by_event.browser.move(x, y)
        told, moment = by_event.tip(), by_event.moment_at(x)
        by_event.browser.click(x, y)
        assert by_event.moment == moment
        assert by_event.legend() == told


def test_a_click_keeps_the_view_and_the_module(gpt):
    gpt.choose("GPT.blocks.1")
    gpt.browser.press("+")
    view = gpt.view
    gpt.browser.click(*gpt.on_timeline(0.4))
    assert gpt.view == view and gpt.module == "GPT.blocks.1"


def test_the_other_button_selects_nothing(gpt):
    before = gpt.state
    x, y = gpt.on_timeline(0.2)
    gpt.browser.click(x, y, button=2)
    nothing_else_changed(gpt, before)


# ---- zooming and moving ----


@pytest.mark.parametrize("axis", ["time", "events"])
def test_the_wheel_zooms_about_the_pointer(gpt, axis):
    gpt.browser.click_on(f'#axes [data-axis="{axis}"]')
    for part in (0.25, 0.7, 0.5):
        before = gpt.view
        gpt.browser.wheel(*gpt.on_timeline(part), down=-200)
        after = gpt.view
        assert after[1] - after[0] < 0.7 * (before[1] - before[0])
        wide = (before[1] - before[0]) / 1000  # the pointer stands on whole pixels
        assert abs(place_at(before, part) - place_at(after, part)) < wide
    assert gpt.state["axis"] == axis


def test_the_wheel_back_is_the_whole_again(gpt):
    whole = gpt.view
    for down in (-150, -150, -150):
        gpt.browser.wheel(*gpt.on_timeline(0.4), down=down)
    for _ in range(4):
        gpt.browser.wheel(*gpt.on_timeline(0.4), down=150)
    assert close(gpt.view, whole)


def test_the_wheel_scrolls_the_page_where_there_is_nothing_to_zoom_out_of(gpt):
    gpt.browser.wheel(*gpt.on_timeline(0.4), down=200)
    gpt.browser.until("scrollY > 0")


def test_zoom_ends_somewhere(gpt):
    for _ in range(18):
        gpt.browser.wheel(*gpt.on_timeline(0.4), down=-240)
    start, end = gpt.view
    assert 0 < end - start < 1000
    gpt.browser.move(*gpt.on_timeline(0.4))
    assert gpt.browser.visible("#tip")


def test_a_drag_with_shift_moves_what_is_seen_with_the_pointer(gpt):
    gpt.browser.wheel(*gpt.on_timeline(0.5), down=-400)
    before, state = gpt.view, gpt.state
    (x, y), (to, _) = gpt.on_timeline(0.3), gpt.on_timeline(0.6)
    with gpt.browser.holding("Shift"):
        gpt.browser.drag((x, y), ((x + to) / 2, y), (to, y))
    after = gpt.view
    assert close(after[1] - after[0], before[1] - before[0])
    wide = (before[1] - before[0]) / 500
    assert abs(place_at(before, 0.3) - place_at(after, 0.6)) < wide
    nothing_else_changed(gpt, state)


def test_a_drag_with_shift_ends_at_the_ends_of_the_run(gpt):
    whole = gpt.view
    gpt.browser.wheel(*gpt.on_timeline(0.1), down=-240)
    (left, y), (right, _) = gpt.on_timeline(0.02), gpt.on_timeline(0.98)
    with gpt.browser.holding("Shift"):
        for _ in range(3):
            gpt.browser.drag((left, y), (right, y))
        assert close(gpt.view[0], whole[0])
        for _ in range(6):
            gpt.browser.drag((right, y), (left, y))
        assert close(gpt.view[1], whole[1])


def test_a_drag_zooms_to_the_part_that_it_goes_over(gpt):
    before, state = gpt.view, gpt.state
    for parts in ((0.3, 0.6), (0.7, 0.2)):
        gpt.browser.press("0")
        (start, y), (to, _) = gpt.on_timeline(parts[0]), gpt.on_timeline(parts[1])
        gpt.browser.drag((start, y), ((start + to) / 2, y), (to, y))
        wide = (before[1] - before[0]) / 500
        assert [abs(place_at(before, part) - at) < wide for part, at in zip(sorted(parts), gpt.view)] == [True, True]
    nothing_else_changed(gpt, state)


def test_the_step_and_what_runs_are_said_where_a_range_begins_within_a_step(gpt):
    assert not gpt.browser.visible("#range-text")
    begin = gpt.browser.run("const { capture } = window.modscope; return capture.time[capture.stepTicks[2] + 200]")
    gpt.browser.run(
        "window.modscope.timeline.setRange(arguments[0], arguments[0] + 400); window.modscope.redraw()", begin
    )
    gpt.browser.settle()
    labels = gpt.browser.run("return window.modscope.timeline.labels")
    assert [label["text"] for label in labels if label["kind"] == "step"] == ["step 2"]
    text = gpt.browser.text("#range-text")
    assert re.match(r"Shown: [0-9.]+ us, step 2, (forward|backward) of GPT", text)


def test_the_reserved_label_stands_at_the_highest_part_of_its_line(shown):
    shown.open("cuda-oom")
    shown.browser.press("0")
    script = """
        const { timeline, capture } = window.modscope, { bytes } = capture.reserved[timeline.device];
        const most = Math.max(...bytes), label = timeline.labels.find((each) => each.kind === "reserved");
        const { begin, end } = timeline.mostReservedPart(most), y = timeline.y(most);
        return [Math.abs(label.y + label.height / 2 - y) < 16, label.x + label.width > begin && label.x < end];
    """
    assert shown.browser.run(script) == [True, True]


def test_the_bar_below_moves_the_view(gpt):
    assert not gpt.browser.visible("#scroll")
    gpt.browser.press("+", "+", "+")
    before = gpt.view
    bar = gpt.browser.box("#scroll")
    gpt.browser.click(bar.x + 0.9 * bar.width, bar.y + bar.height / 2)
    assert gpt.view[0] > before[0] and close(gpt.view[1] - gpt.view[0], before[1] - before[0])


def test_two_fingers_zoom(gpt):
    before = gpt.view
    at = [gpt.on_timeline(part) for part in (0.4, 0.3, 0.2, 0.6, 0.7, 0.8)]
    gpt.browser.touch(at[:3], at[3:])
    assert gpt.view[1] - gpt.view[0] < 0.6 * (before[1] - before[0])


def test_buttons_zoom(gpt):
    whole = gpt.view
    assert all(gpt.browser.attribute(selector, "disabled") is not None for selector in ("#zoom-out", "#zoom-all"))
    gpt.browser.click_on("#zoom-in")
    gpt.browser.click_on("#zoom-in")
    once = gpt.view
    assert once[1] - once[0] == pytest.approx((whole[1] - whole[0]) / 4)
    gpt.browser.click_on("#zoom-out")
    assert gpt.view[1] - gpt.view[0] > once[1] - once[0]
    gpt.browser.click_on("#zoom-all")
    assert close(gpt.view, whole)


def test_the_drawing_follows_the_zoom(by_event):
    """Closer, there is more to see than the same picture drawn larger."""
    script = """
        const { timeline } = window.modscope;
        return new Set([...timeline.drawn].filter((tick) => timeline.coordinateOf(tick) < arguments[0])).size;
    """
    for _ in range(2):
        by_event.browser.wheel(*by_event.on_timeline(0), down=-240)
    end = by_event.view[1]
    near = by_event.browser.run(script, end)
    by_event.browser.press("0")
    assert near > 2 * by_event.browser.run(script, end)


def test_by_event_and_by_time_show_the_same_part(shown):
    shown.open("cuda")
    shown.browser.wheel(*shown.on_timeline(0.2), down=-300)
    before = shown.view
    shown.browser.click_on('#axes [data-axis="events"]')
    assert shown.state["axis"] == "events"
    shown.browser.click_on('#axes [data-axis="time"]')
    assert shown.view == pytest.approx(before, abs=30_000)


# ---- keys ----


def test_arrows_go_from_change_to_change(gpt):
    capture = gpt.pages.load("gpt")
    gpt.browser.give_focus("#timeline")
    gpt.go(3000)
    seen = []
    for _ in range(6):
        gpt.browser.press("ArrowRight")
        seen.append(gpt.moment)
    assert seen == sorted(set(seen))
    sums = [capture.snapshot(moment).by_module() for moment in [3000, *seen]]
    assert all(before != after for before, after in zip(sums, sums[1:]))
    for moment in reversed(seen[:-1]):
        gpt.browser.press("ArrowLeft")
        assert gpt.moment == moment


def test_home_and_end_are_the_ends(gpt):
    gpt.browser.give_focus("#timeline")
    gpt.browser.press("End")
    last = gpt.moment
    gpt.browser.press("ArrowRight")
    assert gpt.moment == last
    gpt.browser.press("Home")
    assert gpt.moment == 0 or gpt.moment < 10
    gpt.browser.press("ArrowLeft")
    assert gpt.moment < 10 < last


def test_keys_keep_the_moment_in_view(gpt):
    gpt.browser.give_focus("#timeline")
    gpt.browser.press("+", "+", "+", "+", "End")
    assert gpt.view[0] <= int(gpt.state["time"]) <= gpt.view[1]
    gpt.browser.press("Home")
    assert gpt.view[0] <= int(gpt.state["time"]) <= gpt.view[1]


def test_zoom_keys(gpt):
    whole = gpt.view
    gpt.browser.press("+")
    near = gpt.view
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    assert near[0] <= int(gpt.state["time"]) <= near[1]
    gpt.browser.press("+", "-")
    assert gpt.view[1] - gpt.view[0] == pytest.approx(near[1] - near[0])
    gpt.browser.press("0")
    assert close(gpt.view, whole)


@pytest.mark.parametrize("way", ["keys", "buttons"])
def test_from_step_to_step(gpt, way):
    capture = gpt.pages.load("gpt")
    begins = [0, *(event.number + 1 for event in capture.events("step"))]
    gpt.go(0)

    def go(on):
        if way == "keys":
            gpt.browser.press("]" if on else "[")
        else:
            gpt.browser.click_on("#step-on" if on else "#step-back")
        return capture.snapshot(gpt.moment).step

    assert [go(True) for _ in range(5)] == [1, 2, 3, 4, 4]
    assert [go(False) for _ in range(4)] == [3, 2, 1, 0]
    gpt.go(begins[2] + 5)
    assert go(False) == capture.snapshot(begins[2]).step


def test_to_the_peak_and_to_where_memory_ran_out(shown):
    shown.open("oom")
    oom = shown.moment
    for peak, back in (("p", "o"), ("#go-peak", "#go-oom")):
        for key in (peak, back):
            shown.browser.click_on(key) if key.startswith("#") else shown.browser.press(key)
            assert (shown.moment == oom) is (key == back)
            if key == peak:
                assert shown.moment == int(shown.state["peakMoment"])
                assert shown.state["total"] == shown.state["peak"]


def test_a_run_that_did_not_die_has_no_button_for_it(gpt):
    assert not gpt.browser.visible("#go-oom") and not gpt.browser.visible("#oom")
    before = gpt.moment
    gpt.browser.press("o")
    assert gpt.moment == before


def test_a_slider_says_where_it_is(gpt):
    """For who hears the page."""
    gpt.go(2000)
    now, least, most = (int(gpt.browser.attribute("#timeline", f"aria-value{word}")) for word in ("now", "min", "max"))
    assert least <= now <= most and "cpu held" in gpt.browser.attribute("#timeline", "aria-valuetext")
    assert gpt.browser.attribute("#timeline", "role") == "slider"


# ---- what comes before the first step is folded ----


SECOND = 1_000_000


BEGIN = 8_200_000


@pytest.fixture
def slow(shown):
    return shown.open("slow-start")


def is_folded(page):
    begins = page.browser.run("return window.modscope.timeline.range().from <= window.modscope.timeline.domain().from")
    assert page.browser.visible("#unfold") is (page.state["folded"] == "true" and begins)
    return page.state["folded"] == "true"


def coordinates(page):
    """The labels of the horizontal axis."""
    labels = page.browser.run("return window.modscope.timeline.labels")
    return [label["text"] for label in labels if label["kind"] == "coordinate"]


def test_a_page_begins_at_the_first_step(slow):
    assert is_folded(slow)
    assert slow.view == (BEGIN, BEGIN + 2 * SECOND)


def test_times_are_still_counted_from_the_beginning_of_the_capture(slow):
    assert coordinates(slow)[0].startswith("8.") and coordinates(slow)[-1].startswith("10.")
    slow.browser.click(*slow.on_timeline(0.5))
    assert BEGIN <= int(slow.state["time"]) <= BEGIN + 2 * SECOND


def test_the_band_says_what_it_hides(slow):
    (label,) = slow.browser.run("return window.modscope.timeline.labels.filter((each) => each.kind === 'fold')")
    assert label["text"] == "before step 1, 8.20 s"
    assert slow.browser.attribute("#unfold", "aria-label") == "Show before step 1, 8.20 s"
    band = slow.browser.place("#unfold")
    assert 16 <= band.width <= 32 and band.x + band.width <= slow.on_timeline(0)[0]


@pytest.mark.parametrize("way", ["#unfold", "#zoom-all", "#zoom-out", "0", "-"])
def test_one_click_or_key_shows_the_whole_run(slow, way):
    slow.browser.click_on(way) if way.startswith("#") else slow.browser.press(way)
    assert not is_folded(slow) and slow.view == (0, BEGIN + 2 * SECOND)
    assert all(slow.browser.attribute(each, "disabled") is not None for each in ("#zoom-all", "#zoom-out"))


@pytest.mark.parametrize("way", ["#zoom-steps", "1"])
def test_it_is_folded_again_by_a_button_or_a_key(slow, way):
    assert slow.browser.text("#zoom-steps") == "From step 1"
    assert slow.browser.attribute("#zoom-steps", "disabled") is not None
    slow.browser.press("0")
    slow.browser.click_on(way) if way.startswith("#") else slow.browser.press(way)
    assert is_folded(slow) and slow.view[0] == BEGIN


def test_events_are_folded_too(slow):
    slow.browser.click_on('#axes [data-axis="events"]')
    first = next(slow.pages.load("slow-start").events("step")).number + 1
    assert is_folded(slow) and slow.view[0] == first
    slow.browser.click_on("#unfold")
    assert slow.view[0] == 0


def test_neither_the_wheel_nor_a_drag_goes_into_the_folded_part(slow):
    slow.browser.wheel(*slow.on_timeline(0.2), down=-240)
    (left, y), (right, _) = slow.on_timeline(0.02), slow.on_timeline(0.98)
    with slow.browser.holding("Shift"):
        for _ in range(3):
            slow.browser.drag((left, y), (right, y))
    assert is_folded(slow) and slow.view[0] == pytest.approx(BEGIN)
    for _ in range(4):
        slow.browser.wheel(*slow.on_timeline(0.2), down=240)
    assert is_folded(slow) and slow.view == pytest.approx((BEGIN, BEGIN + 2 * SECOND))


@pytest.mark.parametrize("name", ["no-step", "quick-start", "early-peak", "one", "twice"])
def test_it_is_not_folded_where_that_hides_the_moment_or_gains_nothing(shown, name):
    """There is no step; it is short; the peak, which is selected, lies before the first step."""
    shown.open(name)
    assert not is_folded(shown) and shown.view[0] == 0
    assert shown.browser.visible("#zoom-steps") is (name == "early-peak")


def test_an_address_of_a_moment_before_the_first_step_unfolds(shown):
    shown.open("slow-start", "#moment=1")
    assert shown.moment == 1 and not is_folded(shown)


def test_an_address_of_a_later_moment_does_not(shown):
    shown.open("slow-start", "#moment=12")
    assert shown.moment == 12 and is_folded(shown)


@pytest.mark.parametrize("keys", [["Home"], ["[", "[", "[", "[", "["]])
def test_keys_that_go_before_the_first_step_unfold(slow, keys):
    slow.browser.give_focus("#timeline")
    slow.browser.press(*keys)
    assert int(slow.state["time"]) < BEGIN and not is_folded(slow)


def test_a_part_of_a_run_has_nothing_before_it(shown, pages):
    from page_helpers import modscope

    page = pages.folder / "steps.html"
    assert modscope("report", str(pages.capture("slow-start")), "-o", str(page), "-f", "--steps", "2:3")[0] == 0
    shown.open("steps")
    assert not is_folded(shown)
