"""Names that would harm, figures that are not sure, and captures with next to nothing in them."""

import shutil

import pytest
from page_by_hand import HOSTILE
from page_helpers import modscope

# ---- names ----

SHAPE = """
    const all = [...document.querySelectorAll("*")];
    const count = (selector) => all.filter((each) => each.matches(selector)).length;
    return {
        scripts: count("script:not([data-pack])"),
        packs: count("script[data-pack]"),
        strange: count("img, svg:not(#plan-svg, #epoch-curve, #epoch-bars), iframe, object, embed, base, video, form:not(dialog form)"),
        handlers: all.filter((each) => each.getAttributeNames().some((name) => name.startsWith("on"))).length,
    };
"""


def is_inert(page):
    assert page.browser.dialog() is None
    assert page.browser.run(SHAPE) == {"scripts": 1, "packs": 1, "strange": 0, "handlers": 0}


def test_hostile_names_do_nothing_wherever_they_are_shown(shown):
    shown.open("hostile")
    is_inert(shown)
    for number in (1, 2):
        shown.browser.click_on(f"#devices button:nth-child({number})")
        shown.browser.click_on("#open-all")
        is_inert(shown)
    for part in (0.1, 0.5, 0.9):
        shown.browser.move(*shown.on_timeline(part))
        is_inert(shown)
    for fqn in filter(lambda fqn: fqn.isprintable() or fqn.startswith("Evil"), HOSTILE):
        shown.choose(fqn)
        is_inert(shown)
    box = shown.browser.box("#treemap")
    for i in range(1, 8):
        shown.browser.click(box.x + box.width * i / 8, box.y + box.height * i / 8)
        is_inert(shown)
    shown.browser.press("/", *"<script>", "Enter")
    is_inert(shown)
    shown.reload()
    is_inert(shown)


def test_hostile_names_are_shown_as_text(shown):
    shown.open("hostile")
    shown.browser.click_on("#open-all")
    texts = shown.browser.text("#rows")
    assert "</script><script>alert(1)</script>" in texts
    assert "<img src=x onerror=alert(2)>" in texts
    assert "{script}{data}${alert(5)}`" in texts
    assert "<!--" in texts and "javascript:alert(4)" in texts
    assert "</script><script>alert(6)</script>" in shown.browser.text("#program")
    assert shown.browser.title() == "modscope: hostile.msc"
    assert "onerror=alert(7)" in shown.browser.text("#moment-title")


def test_a_file_name_is_text_too(shown, pages):
    name = "<img src=x onerror=alert(8)>\"'&\u202e.msc"
    shutil.copy(pages.capture("mlp"), pages.folder / name)
    page = pages.folder / "named.html"
    status, _, err = modscope("report", str(pages.folder / name), str(pages.capture("gpt")), "-o", str(page), "-f")
    assert status == 0, err
    shown.open("named")
    assert shown.browser.title() == "modscope: <img src=x onerror=alert(8)>\"'&\\u202e.msc"
    assert shown.browser.texts("#captures option")[0] == "<img src=x onerror=alert(8)>\"'&\\u202e.msc"
    assert shown.browser.run(SHAPE)["strange"] == 0 and shown.browser.dialog() is None


def test_what_turns_a_line_around_is_not_shown(shown):
    """Overrides and control characters are escaped; what is written from the right stays isolated."""
    shown.open("hostile")
    shown.browser.click_on("#open-all")
    text = shown.browser.run("return document.body.innerText")
    for char in "\u202e\u202c\u2066\x00\x07\x1b\x85":
        assert char not in text
    assert "\\u202e" in text
    script = """
        const names = [...document.querySelectorAll("#rows .fqn, #blocks .module bdi")];
        return new Set(names.map((name) => getComputedStyle(name).unicodeBidi)).size === 1
            && getComputedStyle(names[0]).unicodeBidi === "isolate";
    """
    assert shown.browser.run(script)


def test_very_long_names_stay_in_their_place(shown):
    shown.open("hostile")
    long = "L" * 10_000
    shown.choose(long)
    assert shown.module == long
    assert shown.browser.run("return document.documentElement.scrollWidth") <= 1300
    script = "return Math.max(...[...document.querySelectorAll(arguments[0])].map((each) => each.offsetHeight))"
    assert shown.browser.run(script, "#rows .row, #blocks tbody tr, #selection") < 120
    shown.browser.move(*shown.on_timeline(0.9))
    assert shown.browser.place("#tip").height < 400


def test_only_its_own_script_may_run(shown):
    """Whatever came into the page would be refused."""
    shown.open("mlp")
    ran = shown.browser.wait("""(async () => {
        const script = document.createElement("script");
        script.textContent = "window.ran = 1";
        document.body.append(script);
        const image = document.createElement("img");
        image.setAttribute("onerror", "window.ran = 2");
        image.src = "data:image/png;base64,";
        document.body.append(image);
        const asked = await fetch("https://example.com/").then(() => "answered", () => "refused");
        return [window.ran ?? 0, asked];
    })()""")
    assert ran == [0, "refused"]
    said = shown.browser.complaints()
    assert said and all("Content Security Policy" in line for line in said)
    shown.browser.forget()


# ---- what is not sure ----


def test_without_losses_nothing_is_at_least(shown):
    shown.open("cuda")
    assert "at least" not in shown.browser.text("body") and not shown.browser.visible("#notes")


@pytest.mark.parametrize("name,note", [("lossy", "12 events"), ("lost", "40 events"), ("damaged", "cannot be read")])
def test_losses_are_owned_up_to(shown, name, note):
    shown.open(name)
    assert note in shown.browser.text("#notes")
    assert "at least" in shown.browser.text("#sentence")
    shown.browser.give_focus("#timeline")
    shown.browser.press("End")
    assert shown.state["isLowerBound"] == "true" and "at least" in shown.browser.text("#moment-title")
    shown.browser.move(*shown.on_timeline(1.0))
    assert "at least" in shown.browser.text("#tip")
    shown.browser.press("Home")
    assert shown.state["isLowerBound"] == "false" and "at least" not in shown.browser.text("#moment-title")


def test_what_was_lost_is_seen_in_the_timeline(shown):
    shown.open("lost")
    ticks = shown.browser.run("return window.modscope.capture.jumpTicks")
    assert len(ticks) == 2
    hatched = shown.picture_of("#timeline-base")
    shown.browser.run("window.modscope.capture.jumpTicks.length = 1; window.modscope.redraw()")
    shown.browser.settle()
    assert shown.picture_of("#timeline-base") != hatched


def test_what_was_lost_at_the_end_is_seen_in_the_timeline(shown):
    """The last figures are not drawn on to the run's end as if nothing had happened."""
    shown.open("damaged_end")
    assert "peak: at least" in " ".join(
        shown.browser.run("return window.modscope.timeline.labels.map((label) => label.text)")
    )
    gap, left, right = shown.browser.run(
        "const { timeline } = window.modscope; return [timeline.gaps(), timeline.left, timeline.right]"
    )
    assert len(gap) == 1 and gap[0]["end"] == right and left < gap[0]["begin"] < right - 100
    shown.browser.move(*shown.on_timeline(0.99))
    assert "at least" in shown.browser.text("#tip")


# ---- next to nothing ----


def test_an_empty_capture_makes_no_page(pages):
    out = pages.folder / "empty.html"
    status, said, err = modscope("report", str(pages.capture("empty")), "-o", str(out))
    assert status == 1 and said == "" and "no memory in it" in err and not out.exists()


def test_one_event_is_enough(shown):
    shown.open("one")
    assert shown.state["total"] == "1" and shown.fqns() == ["Global"]
    shown.browser.give_focus("#timeline")
    shown.browser.press("ArrowLeft", "ArrowRight", "Home", "End", "[", "]", "+", "-", "0", "p")
    shown.browser.move(*shown.on_timeline(0.5))
    shown.browser.wheel(*shown.on_timeline(0.5), down=-200)
    assert int(shown.state["total"]) in (0, 1)


def test_a_moment_that_holds_nothing_says_so(shown):
    shown.open("twice", "#moment=0")
    assert shown.state["total"] == "0" and shown.fqns() == []
    assert shown.browser.text("#tree-none") == "No memory is allocated at this moment." and shown.browser.visible(
        "#blocks-none"
    )


def test_numbers_of_any_size(shown):
    """2**60 bytes: the page has numbers of 53 bits, and says nothing that is wrong by more than that."""
    shown.open("huge")
    assert float(shown.state["total"]) == 2.0**60
    assert "1024.00 PiB" in shown.browser.text("#moment-title")
