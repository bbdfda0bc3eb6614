"""Keys that are the whole page's, the order of Tab, the help, and the address that keeps what is selected."""

import urllib.parse

import pytest
from helpers import LONG


@pytest.fixture
def gpt(shown):
    return shown.open("gpt")


def selected(page):
    return {word: page.state[word] for word in ("capture", "device", "moment", "module", "total")}


def address(page):
    fragment = urllib.parse.urlsplit(page.browser.address()).fragment
    return dict(urllib.parse.parse_qsl(fragment, keep_blank_values=True))


# ---- keys ----


def help_is_open(page):
    return page.browser.run("return document.getElementById('help').open")


def test_help_opens_and_closes(gpt):
    before = selected(gpt)
    gpt.browser.press("?")
    assert help_is_open(gpt)
    text = gpt.browser.text("#help")
    for key in ("Home", "Esc", "Enter", "zoom in", "search"):
        assert key in text
    gpt.browser.press("]", "p")
    assert selected(gpt) == before, "keys reach the page below the help"
    gpt.browser.press("Escape")
    assert not help_is_open(gpt)
    gpt.browser.click_on("#help-open")
    assert help_is_open(gpt)
    gpt.browser.click_on("#help button")
    assert not help_is_open(gpt)


def test_escape_closes_the_help_before_it_lets_go_of_a_module(gpt):
    gpt.choose("GPT.blocks")
    gpt.browser.press("?", "Escape")
    assert gpt.module == "GPT.blocks" and not help_is_open(gpt)
    gpt.browser.press("Escape")
    assert gpt.module == ""


def test_keys_with_control_are_the_browsers(gpt):
    view, theme = gpt.view, gpt.browser.run("return document.documentElement.dataset.theme ?? null")
    gpt.browser.press("Control+0", "Alt+t")
    assert gpt.view == view and gpt.browser.run("return document.documentElement.dataset.theme ?? null") == theme


def tabbed(page, most=60):
    """What Tab comes to, from the top until it comes to the end."""
    page.browser.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen = []
    for _ in range(most):
        page.browser.press("Tab")
        now = page.browser.focus()
        if now.startswith("body") or (seen and now == seen[0]):
            break
        seen.append(now)
    return seen


def test_tab_goes_through_all_that_can_be_used_in_the_order_of_the_page(gpt):
    seen = tabbed(gpt)
    wanted = ["theme", "help-open", "zoom-in", "timeline", "go-peak", "step-back", "step-on"]
    wanted += ["search", "open-all", "close-all"]
    assert [each for each in seen if each in wanted] == wanted
    assert seen.count("div.row") == 1, "one stop in the tree; arrows go on from there"
    assert seen.index("close-all") < seen.index("div.row") < len(seen) - 1


def test_what_has_the_focus_is_seen(gpt):
    outlines = []
    for _ in range(12):
        gpt.browser.press("Tab")
        outlines.append(gpt.browser.run("return getComputedStyle(document.activeElement).outline"))
    assert not any("none" in outline or " 0px" in outline for outline in outlines)


def test_a_link_skips_to_the_modules(gpt):
    gpt.browser.press("Tab")
    assert gpt.browser.text(":focus") == "Skip to the modules"
    before = selected(gpt)
    gpt.browser.press("Enter")
    assert selected(gpt) == before
    gpt.reload()
    assert selected(gpt) == before


def test_everything_has_a_name_for_who_hears_the_page(gpt):
    """By the browser's own account of it."""
    tree = gpt.browser.devtools("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "textbox", "searchbox", "combobox", "radio", "link", "img"}
    nodes = [node for node in tree if not node.get("ignored") and node["role"]["value"] in roles]
    unnamed = [node for node in nodes if not node.get("name", {}).get("value")]
    assert len(nodes) > 15 and unnamed == []
    assert {"slider", "treegrid", "row"} <= {node["role"]["value"] for node in tree}


# ---- the address ----


def test_the_address_says_what_is_selected(gpt):
    gpt.browser.click(*gpt.on_timeline(0.3))
    gpt.choose("GPT.blocks.1")
    said = address(gpt)
    assert said["moment"] == gpt.state["moment"] and said["module"] == "GPT.blocks.1" and said["device"] == "cpu"
    assert said["capture"] == "0"


@pytest.mark.parametrize("name", ["gpt", "cuda-oom", "rank0+rank1", "hostile", *["million"] * LONG])
def test_a_link_restores_all_of_it(shown, name):
    """After a reload, and in another window: capture, device, moment and module."""
    shown.open(name)
    if "+" in name:
        shown.browser.give_focus("#captures")
        shown.browser.press("ArrowDown")
        shown.browser.until("document.body.dataset.capture === '1'")
    if shown.browser.visible("#devices"):
        shown.browser.click_on("#devices button:last-child")
    shown.go(int(shown.state["peakMoment"]) + 1)
    shown.browser.click_on("#open-all")
    shown.choose(next(fqn for fqn in reversed(shown.fqns()) if len(fqn) < 2_000))
    before, link = selected(shown), shown.browser.address()
    assert before["module"] or name == "hostile"
    shown.reload()
    assert selected(shown) == before
    shown.browser.open("about:blank")
    shown.open(name, "#" + urllib.parse.urlsplit(link).fragment)
    assert selected(shown) == before
    assert shown.browser.place("#rows [aria-selected=true]").height > 0


def test_an_address_that_is_changed_by_hand_is_followed(gpt):
    gpt.browser.run("location.hash = '#moment=3000&module=GPT.head'")
    gpt.browser.until("document.body.dataset.moment === '3000'")
    gpt.browser.settle()
    assert gpt.module == "GPT.head" and gpt.state["device"] == "cpu"


@pytest.mark.parametrize(
    "fragment",
    [
        "#moment=-1",
        "#moment=99999999999999999999999",
        "#moment=NaN&capture=7&device=tpu:9&module=No.Such",
        "#capture=1e3&moment=0x10",
        "#%E0%A4%A&moment=",
        "#</script><script>alert(1)</script>",
        "#module=__proto__&device=constructor&moment=1e9",
        "#" + "a=b&" * 5_000,
        "#modules",
        "#range=9-3&axis=z&flame=constructor",
    ],
)
def test_an_address_of_nonsense_shows_the_page(shown, fragment):
    shown.open("gpt", fragment)
    assert shown.state["capture"] == "0" and shown.state["device"] == "cpu" and shown.module == ""
    assert int(shown.state["total"]) >= 0 and shown.browser.dialog() is None


def test_a_moment_past_the_end_is_the_last(shown):
    shown.open("gpt", "#moment=9000000000")
    assert shown.moment == shown.pages.load("gpt").event_count


def test_going_about_leaves_no_trail_of_pages_behind(gpt):
    """The way back leads out of the page, not through every moment that was looked at."""
    before = gpt.browser.run("return history.length")
    for part in (0.1, 0.2, 0.3):
        gpt.browser.click(*gpt.on_timeline(part))
    assert gpt.browser.run("return history.length") == before


def test_a_link_restores_the_view(shown):
    """The axis, the range, and the order of the flame graph."""
    shown.open("gpt")
    shown.browser.click_on('#axes [data-axis="events"]')
    shown.browser.press("+", "+")
    shown.browser.click_on('#flame-orders [data-order="line"]')
    view = shown.view
    shown.browser.until("location.hash.includes('range=')")
    said = address(shown)
    assert said["axis"] == "events" and said["flame"] == "line"
    shown.reload()
    assert shown.view == pytest.approx(view, abs=1) and shown.state["axis"] == "events"
    assert shown.browser.data("#flame-box")[0]["order"] == "line"
    shown.browser.press("0")
    shown.browser.until("!location.hash.includes('range=') || location.hash.includes('range=all')")
