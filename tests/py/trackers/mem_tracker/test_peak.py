"""The peak: its bytes by category, its step, phase and running module, and the owner of the block that reached it."""

from helpers import leaf, make, mlp
from memory_helpers import CPU, at_peak, every_source, nonzero, now, of_module, parameter_bytes, reading, wrong_sums
from modscope import MemTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


def blow(size):
    """A forward that needs `size` floats for a moment."""
    return lambda m, x: (torch.zeros(size), x)[1]


def when_and_where(mt):
    peak = mt.peak[CPU]
    return peak.step, peak.phase, peak.module, peak.owner


@every_source
def test_bytes_are_the_peaks_total(source):
    with MemTracker(source) as mt:
        torch.zeros(1000)
        kept = torch.zeros(10)
    assert mt.peak[CPU].bytes == at_peak(mt) == 4000
    assert now(mt) == 40
    del kept


@every_source
def test_outside_any_module(source):
    with MemTracker(source) as mt:
        torch.zeros(1000)
    assert when_and_where(mt) == (0, "idle", "Global", "Global")


@every_source
def test_in_forward(source):
    mod = make("Mod", lambda m, x: m.b(m.a(x)), a=leaf(blow(1000)), b=leaf(blow(10)))
    with MemTracker(source) as mt:
        mod(1)
    assert when_and_where(mt) == (1, "forward", "Mod.a", "Mod.a")


@every_source
def test_in_recompute(source):
    """Recomputing needs as much as forward did, and the caller holds more by then."""
    mod = make(
        "Mod",
        lambda m, x: checkpoint(m.a, x, use_reentrant=False),
        a=leaf(lambda m, x: (torch.zeros(1000), x.sin())[1]),
    )
    with MemTracker(source) as mt:
        loss = mod(torch.zeros(4, requires_grad=True)).sum()
        kept = torch.zeros(500)
        loss.backward()
    assert when_and_where(mt) == (1, "recompute", "Mod.a", "Mod.a")
    del kept


@every_source
def test_in_backward(source):
    class Hungry(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return (torch.zeros(1000), grad)[1]

    mod = make("Mod", lambda m, x: m.a(x), a=leaf(lambda m, x: Hungry.apply(x)))
    with MemTracker(source) as mt:
        mod(torch.zeros(4, requires_grad=True)).sum().backward()
    assert when_and_where(mt) == (1, "backward", "Mod.a", "Mod.a")
    assert at_peak(mt, "Temp") >= 4000


@every_source
def test_in_a_step(source):
    mod, x = nn.Linear(32, 32, bias=False), torch.randn(1, 32)
    opt = torch.optim.Adam(mod.parameters())
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt:
        mod(x).sum().backward()
        opt.step()
    step, phase, module, _ = when_and_where(mt)
    assert (step, phase, module) == (1, "optimizer", "Global")


@every_source
def test_the_fqn_is_the_owner_of_what_the_block_became(source):
    """The gradient of a parameter of `Mod.a` reaches the peak."""
    mod = make("Mod", lambda m, x: m.a(x), a=nn.Linear(64, 64, bias=False))
    x = torch.randn(1, 64)
    with MemTracker(source) as mt:
        mod(x).sum().backward()
    assert when_and_where(mt) == (1, "backward", "Mod.a", "Mod.a")


@every_source
def test_the_step_is_that_of_the_largest_batch(source):
    """Only the second of four batches is large."""
    mod = mlp(2, 8)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1)
    with MemTracker(source) as mt:
        for size in (4, 400, 40, 4):
            mod(torch.randn(size, 8)).sum().backward()
            opt.step()
            opt.zero_grad()
    assert mt.peak[CPU].step == 2


@every_source
def test_accumulating_gradients_is_one_step_until_the_optimizer_steps(source):
    mod = mlp(2, 8)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1)
    mt = MemTracker(source)
    mt.track_external(opt)
    seen = []
    with mt:
        for _ in range(2):
            for size in (4, 8):
                mt.reset_peak()
                mod(torch.randn(size, 8)).sum().backward()
                seen.append(mt.peak[CPU].step)
            opt.step()
            opt.zero_grad()
    assert seen == [1, 1, 2, 2]


@every_source
def test_without_an_optimizer_each_root_call_is_a_step(source):
    mod = mlp(2, 8)
    seen = []
    with MemTracker(source) as mt:
        for _ in range(3):
            mt.reset_peak()
            mod(torch.randn(4, 8))
            seen.append(mt.peak[CPU].step)
    assert seen == [1, 2, 3]


@every_source
def test_the_first_of_equal_peaks_counts(source):
    mod = make("Mod", lambda m, x: m.b(m.a(x)), a=leaf(blow(1000)), b=leaf(blow(1000)))
    with MemTracker(source) as mt:
        mod(1)
    assert mt.peak[CPU].owner == "Mod.a"


@every_source
def test_reset_starts_from_what_is_held_now(source):
    with MemTracker(source) as mt:
        kept = torch.zeros(10)
        torch.zeros(1000)
        assert at_peak(mt) == 4040
        mt.reset_peak()
        assert reading(mt, "peak") == reading(mt) and at_peak(mt) == 40
        torch.zeros(5)
        assert at_peak(mt) == 60 == mt.peak[CPU].bytes
    del kept


@every_source
def test_the_peak_is_over_all_stretches(source):
    mt = MemTracker(source)
    with mt:
        torch.zeros(1000)
    torch.zeros(9999)
    with mt:
        torch.zeros(10)
    assert at_peak(mt) == 4000
    mt.reset_peak()
    assert at_peak(mt) == now(mt) == 0


@every_source
def test_the_peak_is_not_below_what_is_held(source):
    mod = mlp(2, 8)
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        assert at_peak(mt) == now(mt) == parameter_bytes(mod)
        batch = torch.zeros(10)
        mt.track_external(batch)
        assert at_peak(mt) >= now(mt) == parameter_bytes(mod) + 40


@every_source
def test_the_breakdown_of_the_peak_by_module(source):
    kept = []
    mod = make(
        "Mod",
        lambda m, x: m.b(m.a(x)),
        a=leaf(lambda m, x: kept.append(torch.zeros(100)) or x),
        b=leaf(lambda m, x: (torch.zeros(1000), x)[1]),
    )
    with MemTracker(source) as mt:
        mod(1)
        kept.clear()
        assert nonzero(of_module(mt, "Mod.a", "peak")) == {"Activation": 400, "Total": 400}
        assert nonzero(of_module(mt, "Mod.b", "peak")) == {"Activation": 4000, "Total": 4000}
        assert nonzero(of_module(mt, "Mod", "peak", children=True)) == {"Activation": 4400, "Total": 4400}
        assert now(mt) == 0
        assert wrong_sums(mt) == []


@every_source
def test_what_comes_after_the_peak_does_not_change_it(source):
    mod, x = mlp(3, 16), torch.randn(8, 16)
    with MemTracker(source) as mt:
        mod(x).square().sum().backward()
        mod.zero_grad()
        before = mt.get_module_snapshot("peak"), mt.get_tracker_snapshot("peak"), mt.peak
        for _ in range(3):
            with torch.no_grad():
                mod(x[:2])
        assert (mt.get_module_snapshot("peak"), mt.get_tracker_snapshot("peak"), mt.peak) == before
        assert wrong_sums(mt) == []


@every_source
def test_a_child_of_the_peak_may_be_dead_by_now(source):
    """Its bytes stay in the breakdown under its name."""
    mod = make("Mod", lambda m, x: m.a(x), a=leaf(blow(1000)))
    with MemTracker(source) as mt:
        mod(1)
        del mod
        assert of_module(mt, "Mod.a", "peak")["Activation"] == 4000
        assert mt.peak[CPU].owner == "Mod.a"
