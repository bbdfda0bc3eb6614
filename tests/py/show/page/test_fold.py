"""The page begins at the first step: what comes before it is folded into a band, one click away."""

import pytest

SECOND = 1_000_000
BEGIN = 8_200_000


@pytest.fixture
def slow(shown):
    return shown.open("slow-start")


def is_folded(page):
    assert page.browser.visible("#unfold") is (page.state["folded"] == "true")
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
