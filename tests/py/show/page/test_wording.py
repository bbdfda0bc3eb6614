"""What the page says: headings, buttons and sentences, in the words of docs/glossary.md."""

import re

import pytest
from modscope._read.text import size

HEADINGS = [
    "Memory over time",
    "Modules",
    "Treemap",
    "Flame graph",
    "Largest blocks",
    "Blocks that survive several steps",
]


def test_headings_say_what_is_below_them(shown):
    shown.open("gpt")
    headings = shown.browser.texts("main section:not([hidden]) h2:not(#moment-title)")
    assert headings == HEADINGS
    shown.open("rank0+rank1")
    shown.browser.until("document.querySelector('#changes tbody tr')")
    assert shown.browser.text("#comparison h2") == "Peaks side by side"
    assert "Compared with the first" in shown.browser.texts("#peaks th")
    assert shown.browser.text("#changes-title") == "Difference at the peak, from rank0.msc to rank1.msc"


def test_a_selected_module_is_described_and_can_be_cleared(shown):
    shown.open("gpt").choose("GPT.blocks.1")
    (row,) = [row for row in shown.rows() if row["fqn"] == "GPT.blocks.1"]
    text = shown.browser.text("#selection-text")
    assert text.startswith(f"GPT.blocks.1 and its children own {size(int(row['subtree']))} at this moment (")
    assert shown.browser.text("#selection-clear") == "Clear selection"


def change_at(page, name, moment):
    page.open(name, f"#moment={moment}")
    return page.browser.text("#before")


@pytest.fixture
def by_hand(pages):
    """A block that is allocated, claimed from then on by another module, and freed."""
    from capture_helpers import Capture

    c = Capture()
    c.add(4096)
    c.where("forward", c.module("Net.a"))
    slot = c.add(1 << 20)
    c.claim(slot, "Gradient", c.module("Net.b"), from_now_on=True)
    c.claim(slot, "Optstate", c.module("Net.b"), from_now_on=True)
    c.drop(slot)
    (pages.folder / "changes.msc").write_bytes(c.end(how="finished"))
    return "changes"


def test_the_last_change_is_a_sentence(shown, by_hand):
    texts = [change_at(shown, by_hand, moment) for moment in range(shown.pages.load(by_hand).event_count + 1)]
    assert texts[0] == "This is the first moment on the page."
    assert "Before the last change, it was 4.00 KiB. Then Net.a allocated 1.00 MiB of Activation." in texts
    assert (
        "Before the last change, it was 1.00 MiB. Then 1.00 MiB of Activation of Net.a became Gradient of Net.b."
        in texts
    )
    assert "Before the last change, it was 1.00 MiB. Then 1.00 MiB of Gradient of Net.b became Optstate." in texts
    assert "Before the last change, it was 1.00 MiB. Then Net.b freed 1.00 MiB of Optstate." in texts
    assert any(text.endswith(" Nothing has changed since.") for text in texts)


def test_empty_states_are_sentences(shown):
    shown.open("twice", "#moment=0")
    assert shown.browser.text("#tree-none") == "No memory is allocated at this moment."
    assert shown.browser.text("#blocks-none") == "There are no blocks."
    shown.open("gpt")
    shown.browser.press("/", *"nosuch")
    assert shown.browser.text("#tree-none") == "No module that owns memory matches this name."


def test_the_treemap_tooltip_says_own_and_subtree(shown):
    shown.open("gpt")
    box = shown.browser.box("#treemap")
    shown.browser.move(box.x + 30, box.y + 8)
    assert re.search(r"Subtree: [\d.]+ MiB, \d+% of the device\nOwn: ", shown.browser.text("#tip"))


def test_a_failed_allocation_is_described(shown):
    shown.open("cuda-oom")
    assert shown.browser.text("#oom-text").startswith("An allocation failed in step 5, forward of GPT.h.3.mlp, at ")
    figures = shown.browser.text("#oom-figures")
    for text in ("was requested on cuda:0.", "was allocated at that moment", "was reserved by the allocator, "):
        assert text in figures


def test_nothing_on_the_page_uses_a_metaphor(shown):
    """Texts, titles, labels and the help."""
    shown.open("rank0+rank1").choose("GPT.blocks")
    said = shown.browser.run("""
        const all = [...document.querySelectorAll("body *:not(script)")];
        const attributes = all.flatMap((each) => [each.title, each.ariaLabel, each.placeholder]);
        return [document.body.textContent, ...attributes].filter(Boolean).join("\\n");
    """)
    for phrase in (
        "et go of",
        "as areas",
        "step after step",
        "Than the first",
        "all below it",
        "stood in the way",
        "is called so",
    ):
        assert phrase not in said
