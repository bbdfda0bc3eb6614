"""What is written and marked on the timeline: no two texts overlap, and marks belong to what is drawn."""

import itertools

import pytest
from modscope._read.text import size

NAMES = ["out-at-the-peak", "peak-at-the-end", "peak-at-the-start", "peak-in-the-middle", "many-failures"]
NAMES += ["slow-start", "cuda-oom", "oom", "lost", "gpt", "one", "million"]
WIDTHS = [1300, 1000, 480, 320]


def labels(page):
    return page.browser.run("return window.modscope.timeline.labels.map(({ style, ...label }) => label)")


def marks(page):
    return page.browser.run("return window.modscope.timeline.marks")


def kinds(page):
    return {label["kind"] for label in labels(page)}


def overlap(a, b):
    return (
        a["x"] < b["x"] + b["width"]
        and b["x"] < a["x"] + a["width"]
        and a["y"] < b["y"] + b["height"]
        and b["y"] < a["y"] + a["height"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_two_labels_overlap(shown, name):
    shown.open(name, width=WIDTHS[0])
    for width in WIDTHS:
        shown.resize(width)
        for axis in ("time", "events"):
            shown.browser.click_on(f'#axes [data-axis="{axis}"]')
            found = labels(shown)
            assert [(a["text"], b["text"], width) for a, b in itertools.combinations(found, 2) if overlap(a, b)] == []
            canvas = shown.browser.place("#timeline-base")
            for label in found:
                assert label["x"] >= 0 and label["x"] + label["width"] <= canvas.width, (label, width)
                assert label["y"] >= 0 and label["y"] + label["height"] <= canvas.height, (label, width)


@pytest.mark.parametrize("width", [1300, 480])
def test_important_labels_are_never_left_out(shown, width):
    shown.open("out-at-the-peak", width=width)
    assert {"oom", "peak"} <= kinds(shown)
    for name in ("peak-at-the-end", "peak-at-the-start", "peak-in-the-middle"):
        shown.open(name, width=width)
        assert {"peak", "reserved"} <= kinds(shown), name
    shown.open("many-failures", width=width)
    assert {"oom", "peak"} <= kinds(shown)


def test_a_peak_label_stays_beside_its_mark(shown):
    for name in NAMES[:5]:
        shown.open(name)
        (label,) = [each for each in labels(shown) if each["kind"] == "peak"]
        peak = marks(shown)["peak"]
        assert label["x"] <= peak["x"] + 12 and label["x"] + label["width"] >= peak["x"] - 12, name
        assert abs(label["y"] - peak["y"]) < 90, name


# ---- a module on its own scale ----

SMALL = "GPT.h.3.mlp"


@pytest.fixture
def own_scale(shown):
    shown.open("cuda").choose(SMALL)
    if shown.browser.attribute("#own-scale", "aria-pressed") == "false":
        shown.browser.click_on("#own-scale")
    return shown


def share(page, moment):
    held = page.pages.load("cuda").snapshot(moment).by_module(children=True)["cuda:0"]
    return held[SMALL]["Total"]


def y_of(page, bytes):
    return page.browser.run("return window.modscope.timeline.y(arguments[0])", bytes)


def test_on_its_own_scale_the_peak_mark_is_at_the_modules_share(own_scale):
    peak = marks(own_scale)["peak"]
    expected = share(own_scale, int(own_scale.state["peakMoment"]))
    assert 0 < expected < int(own_scale.state["peak"]) / 2
    assert peak["bytes"] == expected and peak["y"] == pytest.approx(y_of(own_scale, expected))
    assert peak["text"] == f"at the peak of cuda:0: {size(expected)}"
    assert size(int(own_scale.state["peak"])) not in "".join(label["text"] for label in labels(own_scale))


def test_a_share_of_next_to_nothing_is_labelled_too(shown):
    for name in ("GPT.blocks.0.norm1", "GPT.blocks.3.norm2", "GPT.norm"):
        shown.open("gpt").choose(name)
        assert shown.browser.attribute("#own-scale", "aria-pressed") == "true"
        assert "peak" in kinds(shown), name


def test_on_its_own_scale_the_selected_dot_is_at_the_modules_share(own_scale):
    for part in (0.3, 0.7):
        own_scale.browser.click(*own_scale.on_timeline(part))
        selected = marks(own_scale)["selected"]
        expected = share(own_scale, own_scale.moment)
        assert selected["bytes"] == expected and selected["y"] == pytest.approx(y_of(own_scale, expected))


def test_on_its_own_scale_nothing_is_said_of_reserved_memory(own_scale):
    assert "reserved" not in kinds(own_scale)
    own_scale.browser.click_on("#own-scale")
    assert "reserved" in kinds(own_scale)


def test_on_its_own_scale_the_axis_ends_near_the_modules_share(own_scale):
    capture = own_scale.pages.load("cuda")
    drawn = own_scale.browser.run("""
        const { timeline, capture } = window.modscope;
        return [...new Set(timeline.drawn)].map((tick) => capture.momentOf(tick));
    """)
    most = max(
        capture.snapshot(moment).by_module(children=True).get("cuda:0", {}).get(SMALL, {"Total": 0})["Total"]
        for moment in drawn
    )
    top = own_scale.browser.run("return window.modscope.timeline.top")
    assert most < top <= 1.5 * most


def test_on_the_scale_of_the_device_marks_are_the_devices(own_scale):
    own_scale.browser.click_on("#own-scale")
    peak = marks(own_scale)["peak"]
    assert peak["bytes"] == int(own_scale.state["peak"]) and peak["text"] == f"peak {size(peak['bytes'])}"
    assert marks(own_scale)["selected"]["bytes"] == int(own_scale.state["total"])


def test_a_failed_allocation_is_a_line_of_full_height_on_any_scale(shown):
    shown.open("cuda-oom").choose(SMALL)
    texts = set()
    for _ in range(2):
        (oom,) = marks(shown)["ooms"]
        texts.add(oom["text"])
        assert "y" not in oom and "bytes" not in oom
        shown.browser.click_on("#own-scale")
    assert texts == {"✕ out of memory: 2.00 GiB requested"}
