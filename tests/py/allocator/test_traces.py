"""The allocator model against what torch's allocator did on a GPU: every block's address and every segment of the
traces of real training jobs, and the peaks of the same jobs with expandable segments."""

from __future__ import annotations

import json
import pathlib

import pytest
from modscope import _capture

TRUTH = pathlib.Path(__file__).resolve().parents[4] / "shared" / "truth"
JOBS = sorted(path.stem for path in (TRUTH / "h200").glob("*.npz"))
pytestmark = pytest.mark.skipif(not JOBS, reason="the traces are not beside this checkout")
ALLOC, FREE, SEGMENT = 0, 1, 3
TOTAL = 150_000_000_000  # an H200's memory, about


def events(job: str) -> list[tuple[int, int, int, int]]:
    numpy = pytest.importorskip("numpy")
    trace = numpy.load(TRUTH / "h200" / f"{job}.npz")
    return list(zip(*(trace[name].tolist() for name in ("kind", "addr", "size", "stream")), strict=True))


def replay(job: str, allocator: _capture.Allocator) -> int:
    """Replay requests and frees. Returns the peak of reserved."""
    for kind, address, size, stream in events(job):
        if kind == ALLOC:
            assert allocator.malloc(address, size, stream) is not None
        elif kind == FREE:
            allocator.free(address)
    allocator.check()
    return int(allocator.stats()["reserved_bytes"]["all"]["peak"])


@pytest.mark.parametrize("job", JOBS)
def test_every_block_and_segment(job: str) -> None:
    allocator = _capture.Allocator("2.11")
    expected = []
    for kind, address, size, stream in events(job):
        if kind == SEGMENT:
            allocator.place_next(address)
            expected.append(("taken", address, size, stream))
        elif kind == ALLOC:
            assert allocator.malloc(address, size, stream) == address
            assert allocator.segment_changes() == expected
            expected = []
        elif kind == FREE:
            allocator.free(address)
    allocator.check()


@pytest.mark.parametrize("job", JOBS)
def test_peak_without_the_real_addresses(job: str) -> None:
    truth = json.loads((TRUTH / "truth.json").read_text())[job]
    assert replay(job, _capture.Allocator("2.11")) == truth["reserved_peak"]


@pytest.mark.parametrize("job", JOBS)
def test_peak_with_expandable_segments(job: str) -> None:
    variants = json.loads((TRUTH / "variants.json").read_text())[job]
    if "expandable" not in variants:
        pytest.skip("this job was not run with expandable segments")
    allocator = _capture.Allocator("2.11", "expandable_segments:True", total_memory=TOTAL)
    assert replay(job, allocator) == variants["expandable"]["reserved_peak"]
