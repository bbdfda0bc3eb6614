"""Kinds on the page: beside the categories, and in the table of blocks."""

import warnings

import modscope
import pytest
import torch.distributed as dist

import torch
from torch import nn

pytestmark = pytest.mark.slow


def record_ddp(path):
    """A rank of DDP: the only kind is Bucket. The buckets are made in the recording, and rebuilt in the second step."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with modscope.record(path), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.parallel.DistributedDataParallel(
                nn.Sequential(*[nn.Linear(96, 96) for _ in range(3)]), bucket_cap_mb=0.05
            )
            for _ in range(3):
                model(torch.randn(2, 96)).sum().backward()
                model.zero_grad()
            del model
    finally:
        dist.destroy_process_group()


@pytest.fixture
def ddp(shown, pages):
    if not (pages.folder / "ddp.msc").exists():
        record_ddp(pages.folder / "ddp.msc")
    return shown.open("ddp")


def test_the_page_has_the_kinds_of_a_moment(ddp, pages):
    capture = pages.load("ddp")
    seen = set()
    for moment in range(0, capture.event_count + 1, max(1, capture.event_count // 25)):
        expected = capture.snapshot(moment)
        ddp.go(moment)
        legend = {each["kind"]: int(each["bytes"]) for each in ddp.browser.data("#legend .kind")}
        assert legend == expected.kinds.get("cpu", {})
        rows = [(int(row["bytes"]), row["kind"]) for row in ddp.browser.data("#blocks tbody tr[data-kind]")]
        shown_rows = len(ddp.browser.data("#blocks tbody tr"))
        assert rows == [(block.bytes, block.kind) for block in expected.blocks(shown_rows, "cpu") if block.kind]
        seen.add(len(rows))
    assert seen >= {0, 1} and max(seen) > 1  # before, one bucket, several


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kinds_are_readable(ddp, pages, scheme):
    ddp.browser.media(**{"prefers-color-scheme": scheme})
    ddp.go(pages.load("ddp").peaks["cpu"].moment)
    words = ddp.browser.run("return document.querySelector('#legend .kind').innerText")
    assert words.startswith("Bucket ")
    colour, paper = ddp.browser.run(
        "return [document.querySelector('#legend .kind'), document.body].map((e, i) => getComputedStyle(e)[i ? "
        "'backgroundColor' : 'color'])"
    )
    assert colour != paper
