"""Memory that known objects hold and that is not from torch's allocator (numpy, files, shared memory) is in Total
and in `outside`: Total less `outside` is the allocator's own figure."""

import gc

import numpy as np
import pytest
from helpers import mlp, needs_interception
from memory_helpers import CATEGORIES, CPU, Counted, nonzero, now, outside, parameter_bytes, reading, wrong_sums
from modscope import MemTracker

import torch
from torch import nn

pytestmark = needs_interception  # the dispatcher does not know where a storage's memory is from


def with_weight(values):
    mod = nn.Linear(8, 8, bias=False)
    mod.weight = nn.Parameter(values)
    return mod


def from_numpy(tmp_path):
    return with_weight(torch.from_numpy(np.zeros((8, 8), dtype=np.float32)))


def from_buffer(tmp_path):
    return with_weight(torch.frombuffer(bytearray(256), dtype=torch.float32).view(8, 8))


def from_shared_memory(tmp_path):
    return with_weight(torch.zeros(8, 8).share_memory_())


def from_a_mapped_file(tmp_path):
    return with_weight(torch.from_file(str(tmp_path / "weight"), size=64, shared=True).view(8, 8))


def from_dlpack(tmp_path):
    return with_weight(torch.from_dlpack(np.zeros((8, 8), dtype=np.float32)))


KINDS = [from_numpy, from_buffer, from_shared_memory, from_a_mapped_file, from_dlpack]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", ["given", "called"])
def test_a_parameter_is_counted_and_is_in_outside(kind, known, tmp_path):
    mod = kind(tmp_path)
    mt = MemTracker("allocator")
    if known == "given":
        mt.track_external(mod)
    with mt:
        if known == "called":
            with torch.no_grad():
                mod(torch.zeros(1, 8))
        assert nonzero(reading(mt)) == {"Parameter": 256, "Total": 256}
        assert nonzero(mt.outside[CPU]) == {"Parameter": 256, "Total": 256}


def test_outside_has_every_category_and_the_total():
    mt = MemTracker("allocator")
    kept = torch.from_numpy(np.zeros(10))
    mt.track_external(kept)
    with mt:
        assert sorted(mt.outside[CPU]) == sorted([*CATEGORIES, "Total"])
        assert nonzero(mt.outside[CPU]) == {"Other": 80, "Total": 80}
    del kept


def test_what_the_allocator_holds_is_not_outside():
    mod = mlp(1, 8)
    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt:
        mod(torch.randn(2, 8)).sum().backward()
        assert outside(mt) == 0


def test_total_less_outside_is_the_allocators_own_figure(tmp_path):
    """In a model half of the parameters are in numpy's memory."""
    mod = nn.Sequential(from_numpy(tmp_path), nn.Linear(8, 8))
    opt = torch.optim.Adam(mod.parameters())
    x = torch.randn(4, 8)
    mt = MemTracker("allocator")
    mt.track_external(mod, opt, x)
    with mt:
        with Counted(mt) as count:
            for _ in range(2):
                mod(x).sum().backward()
                opt.step()
                count.mark()
                assert outside(mt) == 256
                opt.zero_grad()
        assert count.tracked == count.counted
        assert now(mt) - outside(mt) == parameter_bytes(mod[1]) + x.nbytes + 2 * parameter_bytes(mod) + 3 * 4
        assert wrong_sums(mt) == []


def test_parameters_of_a_mapped_checkpoint(tmp_path):
    """As `from_pretrained` loads them: torch.load(mmap=True), then assign=True."""
    saved = mlp(2, 16)
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    state = torch.load(tmp_path / "weights.pt", mmap=True, weights_only=True)
    mod = mlp(2, 16)
    mod.load_state_dict(state, assign=True)
    del state
    size = sum(p.numel() * p.element_size() for p in mod.parameters())
    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt:
        assert mt.memory_tracking.get(mod) is None
        assert now(mt, "Parameter") == outside(mt, "Parameter") == size
        assert now(mt) == outside(mt)
        mod(torch.randn(4, 16)).sum().backward()
        assert now(mt, "Gradient") == size and outside(mt, "Gradient") == 0


def test_shared_memory_taken_inside():
    """The allocator's block is freed, and shared memory replaces it."""
    mod = nn.Linear(8, 8, bias=False)
    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt:
        assert (now(mt, "Parameter"), outside(mt)) == (256, 0)
        mod.share_memory()
        assert (now(mt, "Parameter"), outside(mt)) == (256, 256)
        assert now(mt) == 256


def test_an_outside_block_that_goes_with_its_tensor():
    given = torch.from_numpy(np.zeros(100, dtype=np.float32))
    mt = MemTracker("allocator")
    mt.track_external(given)
    with mt:
        assert (now(mt, "Other"), outside(mt)) == (400, 400)
        del given
        gc.collect()
        assert (now(mt), outside(mt)) == (0, 0)


def test_an_outside_gradient():
    mod = nn.Linear(8, 8, bias=False)
    mod.weight.grad = torch.from_numpy(np.zeros((8, 8), dtype=np.float32))
    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt:
        assert (now(mt, "Gradient"), outside(mt, "Gradient")) == (256, 256)
        mod.weight.grad = None
        assert (now(mt, "Gradient"), outside(mt)) == (0, 0)


def test_what_nobody_known_holds_is_not_counted():
    with MemTracker("allocator") as mt:
        kept = torch.from_numpy(np.zeros(1000))
        assert now(mt) == outside(mt) == 0
    del kept
