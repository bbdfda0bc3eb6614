"""The allocator model from Python, against torch's own allocator where there is a GPU, and on traces of real jobs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from modscope import _capture

import torch

MIB = 1 << 20


def test_a_full_device_refuses() -> None:
    allocator = _capture.Allocator(capacity=10 * MIB)
    assert allocator.malloc("a", 10 * MIB) is not None
    assert allocator.malloc("b", 1) is None
    allocator.free("a")
    assert allocator.malloc("b", 1) is not None
    stats = allocator.stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 2)
    assert stats["reserved_bytes"]["all"] == {
        "current": 2 * MIB,
        "peak": 10 * MIB,
        "allocated": 12 * MIB,
        "freed": 10 * MIB,
    }


def test_a_request_that_no_expandable_segment_can_hold_fails() -> None:
    """It is larger than the range of addresses, which is as large as the device's memory and an eighth more."""
    allocator = _capture.Allocator("2.13", "expandable_segments:True", total_memory=64 * MIB)
    assert allocator.malloc("a", 100 * MIB) is None
    assert _capture.Allocator("2.13", "expandable_segments:True").malloc("a", 1 << 60) is None
    assert allocator.malloc("b", 20 * MIB) is not None
    allocator.check()


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="'newest' is not a version of torch"):
        _capture.Allocator("newest")
    with pytest.raises(ValueError, match="PYTORCH_CUDA_ALLOC_CONF=split:1: 'split' is not a key that is known"):
        _capture.Allocator(conf="split:1")
    allocator = _capture.Allocator()
    with pytest.raises(KeyError):
        allocator.free("never allocated")
    allocator.malloc(1, 100)
    with pytest.raises(ValueError, match="1 was allocated already"):
        allocator.malloc(1, 100)


AS_TORCH_COUNTS = """
import random, sys, torch
from modscope import _capture
MIB = 1 << 20
def addresses():
    return {segment["address"] for segment in torch.cuda.memory_snapshot()}
for seed in range(20):
    choice, kept = random.Random(seed), {}
    allocator = _capture.Allocator(torch.__version__)
    for i in range(600):
        if kept and choice.random() < 0.45:
            key = choice.choice(sorted(kept))
            del kept[key]
            allocator.free(key)
        else:
            size = choice.choice([1, 700, 4096, MIB // 2, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 11 * MIB, 33 * MIB])
            before = addresses()
            kept[i] = torch.empty(size, dtype=torch.uint8, device="cuda")
            for address in addresses() - before:
                allocator.place_next(address)
            assert allocator.malloc(i, size) == kept[i].data_ptr()
        if i % 100 == 99:
            torch.cuda.empty_cache()
            allocator.empty_cache()
        real, model = torch.cuda.memory_stats_as_nested_dict(), allocator.stats()
        for name in ("allocation", "allocated_bytes", "reserved_bytes", "segment", "inactive_split", "requested_bytes"):
            for pool in ("all", "small_pool", "large_pool"):
                got, wanted = model[name][pool]["current"], real[name][pool]["current"]
                assert got == wanted, (seed, i, name, pool, got, wanted)
    kept.clear()
    torch.cuda.empty_cache()
print("equal")
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_as_torch_counts() -> None:
    """In a process of its own, in which nothing else is allocated."""
    ran = subprocess.run([sys.executable, "-c", AS_TORCH_COUNTS], capture_output=True, text=True, timeout=600)
    assert ran.stdout == "equal\n", ran.stderr


# ---- traces of real jobs ----


TRUTH = pathlib.Path(__file__).resolve().parents[4] / "shared" / "truth"


JOBS = sorted(path.stem for path in (TRUTH / "h200").glob("*.npz"))


with_traces = pytest.mark.skipif(not JOBS, reason="the traces are not beside this checkout")


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


@with_traces
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


@with_traces
@pytest.mark.parametrize("job", JOBS)
def test_peak_without_the_real_addresses(job: str) -> None:
    truth = json.loads((TRUTH / "truth.json").read_text())[job]
    assert replay(job, _capture.Allocator("2.11")) == truth["reserved_peak"]


@with_traces
@pytest.mark.parametrize("job", JOBS)
def test_peak_with_expandable_segments(job: str) -> None:
    variants = json.loads((TRUTH / "variants.json").read_text())[job]
    if "expandable" not in variants:
        pytest.skip("this job was not run with expandable segments")
    allocator = _capture.Allocator("2.11", "expandable_segments:True", total_memory=TOTAL)
    assert replay(job, allocator) == variants["expandable"]["reserved_peak"]
