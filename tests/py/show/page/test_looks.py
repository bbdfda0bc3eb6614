"""Light and dark, a narrow screen, paper, and without colours."""

import re

import pytest

VIEWS = ["gpt", "oom", "cuda-oom", "rank0+rank1", "lost", "hostile", "one"]


def colours(page):
    return page.browser.run("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")


def brightness(colour):
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    """As WCAG defines it."""
    dark, light = sorted((brightness(a), brightness(b)))
    return (light + 0.05) / (dark + 0.05)


def is_dark(page):
    return brightness(colours(page)[0]) < 0.2


# ---- light and dark ----


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_as_the_system_likes_it(shown, scheme):
    shown.browser.media(prefers_color_scheme=scheme)
    shown.open("gpt")
    assert is_dark(shown) is (scheme == "dark")


def test_it_follows_when_the_system_changes(shown):
    shown.browser.media(prefers_color_scheme="light")
    shown.open("gpt")
    light = shown.picture_of("#timeline-base"), shown.picture_of("#treemap")
    shown.browser.media(prefers_color_scheme="dark")
    shown.browser.settle()
    assert is_dark(shown)
    dark = shown.picture_of("#timeline-base"), shown.picture_of("#treemap")
    assert dark[0] != light[0] and dark[1] != light[1]
    shown.browser.media(prefers_color_scheme="light")
    shown.browser.settle()
    assert (shown.picture_of("#timeline-base"), shown.picture_of("#treemap")) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("way", ["t", "#theme"])
def test_the_button_and_the_key_turn_it(shown, scheme, way):
    shown.browser.media(prefers_color_scheme=scheme)
    shown.open("mlp")
    was = is_dark(shown)
    for expected in (not was, was):
        shown.browser.click_on(way) if way.startswith("#") else shown.browser.press(way)
        assert is_dark(shown) is expected


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(shown, scheme):
    """Every text stands out from what is behind it, 4.5 to 1, as WCAG AA has it."""
    shown.browser.media(prefers_color_scheme=scheme)
    shown.open("cuda-oom").choose("GPT.h.3")
    found = shown.browser.run("""
        const behind = (element) => {
            for (let each = element; each; each = each.parentElement) {
                const colour = getComputedStyle(each).backgroundColor;
                if (!/, 0\\)$|transparent/.test(colour)) return colour;
            }
            return "rgb(255, 255, 255)";
        };
        const off = "script, .swatch, li.none, li.none *, :disabled";
        const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        const texts = [...document.querySelectorAll("body *")].filter(hasText);
        return texts.filter((each) => each.checkVisibility() && !each.matches(off))
            .map((each) => [each.innerText.slice(0, 40), getComputedStyle(each).color, behind(each)]);
    """)
    assert len(found) > 50
    assert [each for each in found if contrast(each[1], each[2]) < 4.5] == []


def test_categories_are_told_without_colours(shown):
    """By a letter and a pattern of their own each."""
    shown.open("gpt")
    texts = shown.browser.texts("#legend li")
    letters = shown.browser.texts("#legend .swatch")
    assert len(set(letters)) == len(letters) == len(texts) > 3
    script = "return [...document.querySelectorAll('#legend .swatch')].map((e) => getComputedStyle(e).backgroundImage)"
    patterns = shown.browser.run(script)
    assert len(set(patterns)) == len(patterns)


# ---- a narrow screen ----


SIDEWAYS = """
    const scrolls = (element) => {
        for (let up = element.parentElement; up; up = up.parentElement)
            if (getComputedStyle(up).overflowX !== "visible") return true;
        return false;
    };
    const out = (each) => {
        const { left, right, width } = each.getBoundingClientRect();
        return width && each.checkVisibility() && !each.matches(".skip") && (right > innerWidth + 1 || left < -1);
    };
    const all = [...document.querySelectorAll("body *")];
    const found = all.filter((each) => out(each) && !scrolls(each));
    return found.map((each) => `${each.localName}#${each.id}.${each.className}`);
"""


@pytest.mark.parametrize("name", VIEWS)
def test_a_narrow_screen_needs_no_scrolling_sideways(shown, name):
    shown.open(name, width=400, height=800)
    for width in (400, 320, 768):
        shown.resize(width, 800)
        assert shown.browser.run("return document.documentElement.scrollWidth") <= width
        assert shown.browser.run(SIDEWAYS) == []


def test_on_a_narrow_screen_everything_is_reached(shown):
    shown.open("cuda-oom", width=400, height=800)
    shown.browser.click_on("#open-all")
    wanted = ["#theme", "#help-open", "#timeline", "#zoom-in", "#go-peak", "#go-oom", "#step-back", "#search"]
    wanted += ["#rows .row", "#treemap", "#blocks tr", "#survivors-text", "#devices button"]
    for selector in wanted:
        box = shown.browser.box(selector)
        assert box.width > 10 and box.height > 10 and box.x >= 0 and box.x + 10 < 400, selector
    shown.browser.click_on("#go-peak")
    assert shown.moment == int(shown.state["peakMoment"])
    shown.browser.click(*shown.on_timeline(0.2))
    assert shown.moment != int(shown.state["peakMoment"])
    shown.browser.click_on("#rows .row:nth-child(3)")
    assert shown.module


def test_figures_are_whole_on_a_narrow_screen(shown):
    """Names may be cut; numbers may not."""
    shown.open("cuda-oom", width=400, height=800)
    shown.browser.click_on("#open-all")
    script = """
        const all = [...document.querySelectorAll("#rows .figure, #oom dt")];
        const figures = all.filter((each) => each.checkVisibility());
        return [figures.length, figures.filter((each) => each.scrollWidth > each.clientWidth + 1).length];
    """
    figures, cut = shown.browser.run(script)
    assert figures > 20 and cut == 0


def test_wide_tables_scroll_by_themselves(shown):
    shown.open("rank0+rank1", width=400, height=800)
    for table in ("#blocks", "#changes", "#peaks"):
        shown.browser.until(f"document.querySelector('{table} tbody tr')")
        assert shown.browser.place(f".wide-table:has({table})").width <= 400


CUT = """
    const names = [...document.querySelectorAll("#rows .row .name")];
    const cut = (name) => name.scrollWidth > name.clientWidth || name.lastChild.scrollWidth > name.lastChild.clientWidth;
    return [names.length, names.filter(cut).map((name) => name.innerText)];
"""


@pytest.mark.parametrize(
    "name, width", [*(("deep", width) for width in (980, 1000, 1100, 1200, 1300)), ("gpt", 980), ("gpt", 1300)]
)
def test_names_have_their_room_before_bars_do(shown, name, width):
    """At first, and when all rows are shown."""
    shown.open(name, width=width)
    for fewest in (5, 10):
        count, cut = shown.browser.run(CUT)
        assert count > fewest and cut == []
        shown.browser.click_on("#open-all")
    assert "GPT.blocks.11.attention.qkv" in shown.fqns() or name == "gpt"


def test_bars_are_never_narrower_than_they_can_be_read(shown):
    bar = "return parseFloat(getComputedStyle(document.querySelector('#rows .row')).gridTemplateColumns.split(' ')[1])"
    shown.open("hostile", width=1000)
    assert shown.browser.run(bar) == 60
    shown.open("wide", width=1300)
    assert shown.browser.run(bar) == 140


def drawn_width(page, selector):
    return page.browser.run("return document.querySelector(arguments[0]).width", selector)


def test_wide_screens(shown):
    shown.open("gpt")
    for width in (1000, 1920, 3000):
        shown.browser.screen(width, 1000)
        shown.browser.until(f"innerWidth === {width}")
        shown.browser.settle()
        assert shown.browser.run("return document.documentElement.scrollWidth") <= width
        assert drawn_width(shown, "#timeline-base") == pytest.approx(shown.browser.place("#timeline-base").width, abs=1)


def test_a_window_that_is_resized_is_drawn_anew(shown):
    shown.open("gpt", width=1300)
    shown.browser.screen(700, 900)
    shown.browser.until("document.getElementById('timeline-base').width < 700")
    shown.browser.settle()
    assert shown.browser.run("return document.documentElement.scrollWidth") <= 700
    x, y = shown.on_timeline(0.5)
    shown.browser.click(x, y)
    assert shown.moment == shown.moment_at(x)


# ---- on paper ----


def test_on_paper_there_are_no_buttons_and_all_rows(shown):
    shown.open("gpt")
    shown.browser.click_on("#open-all")
    shown.browser.media("print")
    for selector in (
        "#theme",
        "#help-open",
        "#search",
        "#zoom-in",
        "#go-peak",
        "#open-all",
        "#groupings-box",
        "#timeline-how",
    ):
        assert not shown.browser.visible(selector), selector
    for selector in (
        "#sentence",
        "#timeline-base",
        "#legend .swatch",
        "#legend .label",
        "#rows .row",
        "#treemap",
        "#blocks tbody tr",
    ):
        assert shown.browser.visible(selector), selector
    assert shown.browser.run("const r = document.getElementById('rows'); return r.scrollHeight <= r.clientHeight + 1")


@pytest.mark.parametrize("name", ["gpt", "cuda-oom"])
def test_it_prints(shown, name):
    shown.browser.media(prefers_color_scheme="dark")
    shown.open(name)
    paper = shown.browser.paper()
    pages = len(re.findall(rb"/Type\s*/Page\b", paper))
    assert paper.startswith(b"%PDF") and 1 <= pages <= 8
    shown.browser.settle()
    assert is_dark(shown), "after printing it is as it was"


def test_on_paper_it_is_light(shown):
    shown.browser.media(prefers_color_scheme="dark")
    shown.open("mlp")
    shown.browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert not is_dark(shown)
    shown.browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert is_dark(shown)


# ---- on other screens ----


def test_fine_screens_are_drawn_finely(shown):
    shown.open("mlp")
    shown.browser.screen(1300, 1000, scale=2)
    shown.reload()
    assert drawn_width(shown, "#treemap") == pytest.approx(2 * shown.browser.place("#treemap").width, abs=2)


def test_without_javascript_the_sentence_is_there(shown):
    shown.browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        shown.browser.go(shown.pages["gpt"].as_uri())
        snapshot = shown.browser.devtools("DOMSnapshot.captureSnapshot", computedStyles=[])
    finally:
        shown.browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
    texts = "\n".join(snapshot["strings"])
    assert "The peak is " in texts and "needs JavaScript" in texts
