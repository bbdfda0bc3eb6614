"""The epoch that `modscope predict --epoch` predicted, on the page: its curves, its shapes and the batch that fails."""

from __future__ import annotations

import pytest
from modscope._show.pages.epoch import page_of

GIB = 1 << 30


def batch(number, length):
    return {"batch": number, "step": number + 1, "shape": [2, length], "unit": "tokens", "longest_sample": None}


def bins(*lengths):
    """Each length in a bin of its own, as often as its position says."""
    shapes = [{"shape": [2, length], "unit": "tokens"} for length in lengths]
    return [
        {
            "elements_from": 2 * length,
            "elements_to": 2 * length + 64,
            "batches": count,
            "smallest": each,
            "largest": each,
        }
        for count, (length, each) in enumerate(zip(lengths, shapes), 1)
    ]


def figures(capacity, fits, lengths=(100, 200, 300)):
    failure = {**batch(20, 300), "needs": 3 * GIB, "requested": GIB, "allocated": GIB, "reserved": 2 * GIB}
    row = {
        "gpu": "tiny",
        "title": "Tiny GPU",
        "may_reserve": capacity,
        "reserved_peak": 3 * GIB,
        "reserved_at": batch(20, 300),
        "left_behind": 0,
        "retries": 0,
        "failures": 2,
        "failure": None if fits else failure,
        "cap": None,
        "expandable": {"fits": fits, "reserved_peak": 3 * GIB, "failures": 2},
        "verdict": "fits" if fits else "does not fit",
        "margin": 0,
        "why": "",
    }
    points = [(0, 1, 1), (10, 2, 1), (20, 3, 2), (30, 3, 1)]
    return {
        "loader": "train.py:7",
        "batches": 40,
        "batches_of_loader": 40,
        "is_whole_epoch": True,
        "read_seconds": 1.0,
        "read_error": "",
        "shapes": len(lengths),
        "smallest": batch(0, lengths[0]),
        "largest": batch(0, lengths[-1]),
        "predicted_shapes": 3,
        "inexact_blocks": 0,
        "blocks": 9,
        "batches_per_step": 1,
        "longest_sample": None,
        "notes": ["A <note>."],
        "script_notes": [],
        "seconds": 2.0,
        "torch": "2.13",
        "gpus": [row],
        "curve": [{"batch": at, "reserved": most * GIB, "allocated": held * GIB} for at, most, held in points],
        "distribution": bins(*lengths),
    }


@pytest.fixture
def epoch(shown, pages):
    def show(name, *what, **more):
        made = page_of("jobs/train.py", pages.load("cuda"), figures(*what, **more))
        (pages.folder / f"{name}.html").write_text(made.html, encoding="utf-8", newline="")
        return shown.open(name)

    return show


def height(page, selector):
    """The y of a line, or of the highest point of a path."""
    return page.browser.run(f"return document.querySelector('{selector}').getBBox().y")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_batch_that_fails_is_drawn_above_the_capacity(epoch, scheme):
    page = epoch("epoch-fails", 2 * GIB + GIB // 2, False)
    page.browser.media(prefers_color_scheme=scheme)
    text = page.browser.text
    assert text("#sentence").startswith("Batch 20 (step 21) would run out of memory: 2 x 300 tokens need 3.0 GiB")
    label = "return document.querySelector('#epoch-curve text.failure').textContent"
    assert page.browser.run(label) == "batch 20 (step 21)"
    assert "40 batches of the DataLoader at train.py:7 were read" in text("#epoch-text")
    assert "A <note>." in text("#epoch-text")
    reserved, capacity = height(page, "#epoch-curve path.reserved"), height(page, "#epoch-curve line.capacity")
    assert reserved < capacity < height(page, "#epoch-curve path.allocated")
    bars = page.browser.data("#epoch-bars .batches")
    assert [bar["batches"] for bar in bars] == ["1", "2", "3"]
    marked = "return [...document.querySelectorAll('#epoch-bars .decides')].map((bar) => bar.dataset.batches)"
    assert page.browser.run(marked) == ["3"]
    assert "runs out of memory first: 2 x 300 tokens" in text("#epoch-bars-lines")
    assert page.browser.attribute("#epoch-curve", "aria-label") == text("#sentence")
    box = page.browser.box("#epoch-curve")
    page.browser.move(box.x + box.width * 0.6, box.y + box.height / 2)
    page.browser.settle()
    assert text("#tip").splitlines() == ["batches 20 to 29 (steps 21 to 30)", "3.00 GiB reserved", "2.00 GiB allocated"]
    for width in (760, 400):
        page.resize(width)
        assert page.browser.run("return document.documentElement.scrollWidth") <= width
        assert page.browser.box("#epoch-curve").width <= width


def test_a_capacity_far_above_is_told_and_not_drawn(epoch):
    page = epoch("epoch-fits", 80 * GIB, True, lengths=(100,))
    assert "every batch fits, with 77" in page.browser.text("#sentence")
    assert "80.00 GiB, above the picture" in page.browser.text("#epoch-lines")
    assert page.browser.run("return document.querySelectorAll('#epoch .capacity:not(i), #epoch .failure').length") == 0
    assert not page.browser.visible("#epoch-shapes")


def test_other_pages_have_no_epoch(shown):
    assert not shown.keep("gpt").browser.visible("#epoch")
