"""Several captures on one page: the switch, the peaks side by side, what changed by module."""

import shutil

import pytest
from modscope._read.text import size
from page_helpers import modscope

BOTH = "rank0+rank1"
THREE = "rank0+cuda+rank1"


@pytest.fixture
def both(shown):
    shown.open(BOTH)
    shown.browser.until("document.querySelector('#changes tbody tr')")
    return shown


def pick(page, selector, value):
    """Choose from a list, as a user does with the keyboard."""
    page.browser.give_focus(selector)
    have = page.browser.run("return Number(document.querySelector(arguments[0]).value)", selector)
    page.browser.press(*["ArrowDown" if value > have else "ArrowUp"] * abs(value - have))


def show(page, number):
    pick(page, "#captures", number)
    page.browser.until(f"document.body.dataset.capture === '{number}'")
    page.browser.settle()


def test_one_capture_has_nothing_to_compare(shown):
    shown.open("rank0")
    for selector in ("#comparison", "#differences", "#captures-label"):
        assert not shown.browser.visible(selector)


def test_the_switch_shows_another_capture(both):
    for number in (1, 0):
        show(both, number)
        name = f"rank{number}"
        said = both.pages.figures("tree", name)
        assert both.moment == said["moment"] and int(both.state["total"]) == said["total"]
        assert both.browser.title() == f"modscope: {name}.msc"
        assert f"rank {number} of 2" in both.browser.text("#program")
        assert size(said["total"]) in both.browser.text("#sentence")
        assert [row["capture"] for row in both.browser.data("#peaks tr[aria-current]")] == [str(number)]


def test_a_switch_keeps_no_moment_of_the_other(both):
    both.go(100)
    show(both, 1)
    assert both.moment == int(both.state["peakMoment"])


def test_peaks_are_compared(both):
    peaks = [both.pages.figures("summary", f"rank{i}")["devices"][0]["peak"]["bytes"] for i in range(2)]
    rows = both.browser.data("#peaks tbody tr")
    told = [(row["capture"], row["device"], int(row["bytes"])) for row in rows]
    assert told == [("0", "cpu", peaks[0]), ("1", "cpu", peaks[1])]
    text = both.browser.text("#peaks tbody tr:nth-child(2)")
    assert f"+{size(peaks[1] - peaks[0])}" in text


def test_a_row_of_the_peaks_shows_its_capture(shown):
    shown.open(THREE)
    rows = [(row["capture"], row["device"]) for row in shown.browser.data("#peaks tbody tr")]
    assert sorted(rows) == [("0", "cpu"), ("1", "cpu"), ("1", "cuda:0"), ("2", "cpu")]
    shown.browser.click_on(f"#peaks tbody tr:nth-child({rows.index(('1', 'cpu')) + 1}) button")
    shown.browser.until("document.body.dataset.capture === '1'")
    shown.browser.settle()
    assert shown.state["device"] == "cpu"


def changes(page):
    rows = page.browser.data("#changes tbody tr")
    return [(row["fqn"], row["category"], int(row["a"]), int(row["b"]), int(row["change"])) for row in rows]


def test_what_changed_is_what_diff_says(both):
    both.show_each_layer()
    if both.browser.visible("#changes-more"):
        both.browser.click_on("#changes-more")
    both.browser.until("document.getElementById('changes-more').hidden")
    said = both.pages.figures("diff", "rank0", str(both.pages.capture("rank1")), "-n", "0")["modules"]
    seen = changes(both)
    assert seen and sorted(seen) == sorted(tuple(row.values()) for row in said)
    sizes = [abs(row[4]) for row in seen]
    assert sizes == sorted(sizes, reverse=True)


def test_the_other_way_round_is_the_opposite(both):
    before = {row[:2]: row[4] for row in changes(both)}
    pick(both, "#changes-a", 1)
    both.browser.settle()
    both.browser.until("document.querySelectorAll('#changes tbody tr').length === 0")
    assert both.browser.visible("#changes-none"), "a capture beside itself has no changes"
    pick(both, "#changes-b", 0)
    both.browser.until("document.querySelectorAll('#changes tbody tr').length > 0")
    after = {row[:2]: row[4] for row in changes(both)}
    assert after == {key: -value for key, value in before.items()}


def test_a_module_is_chosen_from_what_changed(both):
    both.show_each_layer()
    both.browser.click_on("#changes tbody tr button.link")
    row = both.browser.data("#changes tbody tr")[0]
    held = {each["fqn"] for each in both.rows()}
    assert both.module == (row["fqn"] if row["fqn"] in held else "")


def test_captures_of_one_name_are_told_apart(shown, pages):
    folders = [pages.folder / name for name in ("before", "after")]
    for folder, name in zip(folders, ("rank0", "rank1")):
        folder.mkdir(exist_ok=True)
        shutil.copy(pages.capture(name), folder / "run.msc")
    page = pages.folder / "same.html"
    status, _, err = modscope(
        "report", *(str(folder / "run.msc") for folder in folders), "-o", str(page), "-f", "--side-by-side"
    )
    assert status == 0, err
    shown.open("same")
    titles = shown.browser.texts("#captures option")
    assert len(set(titles)) == 2 and "before" in titles[0] and "after" in titles[1]
    shown.browser.screen(400, 800)
    shown.browser.settle()
    assert shown.browser.run("return document.documentElement.scrollWidth") <= 400


def test_many_captures(shown):
    """As of sixteen ranks: the page stays usable."""
    shown.open("+".join(["rank0", "rank1"] * 8), width=1300)
    assert len(shown.browser.texts("#captures option")) == 16
    assert len(shown.browser.data("#peaks tbody tr")) == 16
    assert shown.browser.box("#timeline").y < 1000, "the timeline is on the first screen"
