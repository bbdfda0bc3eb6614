"""Trackers are entered and left repeatedly, nested, side by side and in any order, while objects are kept and
freed."""

import gc
import weakref

import pytest
from helpers import leaf, make, mlp, needs_interception, run_python
from memory_helpers import (
    CPU,
    at_peak,
    bytes_of,
    every_source,
    held,
    held_by,
    nonzero,
    now,
    of_module,
    parameter_bytes,
    reading,
    wrong_sums,
)
from modscope import MemTracker, ModTracker

import torch
from torch import nn

# ---- after the end ----


@every_source
def test_figures_stay_as_they_were_at_the_end(source):
    with MemTracker(source) as mt:
        kept = torch.zeros(100)
        inside = reading(mt), reading(mt, "peak"), mt.get_module_snapshot()
    other = torch.zeros(1000)
    del kept
    assert (reading(mt), reading(mt, "peak"), mt.get_module_snapshot()) == inside
    assert inside[0]["Total"] == 400
    del other


@every_source
def test_a_tensor_that_outlives_the_tracker_is_freed_safely(source):
    with MemTracker(source) as mt:
        kept = [torch.zeros(100) for _ in range(100)]
    del mt
    gc.collect()
    kept.clear()
    with MemTracker(source) as again:
        assert now(again) == 0
        kept = torch.zeros(10)
        assert now(again) == 40


@every_source
def test_a_graph_that_outlives_the_tracker_walks_backward(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    with MemTracker(source) as mt:
        loss = mod(x).sum()
    loss.backward()
    with mt:
        assert held(mt) == held_by([mod])


# ---- entering again ----


@every_source
def test_entering_again_reads_what_known_objects_hold(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    opt = torch.optim.Adam(mod.parameters())
    mt = MemTracker(source)
    mt.track_external(mod, opt, x)
    with mt:
        assert held(mt) == held_by([mod], [opt])
    mod(x).sum().backward()
    opt.step()
    with mt:
        assert held(mt) == held_by([mod], [opt])
        assert now(mt, "Gradient") > 0 and now(mt, "Optstate") > 0
        assert now(mt) == sum(held_by([mod], [opt]).values()) + bytes_of(x)


@every_source
def test_blocks_of_an_earlier_stretch_that_nobody_known_holds_do_not_count(source):
    mt = MemTracker(source)
    with mt:
        kept = torch.zeros(100)
        assert now(mt) == 400
    with mt:
        assert now(mt) == 0
        del kept
        assert now(mt) == 0


@every_source
def test_modules_called_in_an_earlier_stretch_are_known(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    mt = MemTracker(source)
    with mt:
        mod(x).sum().backward()
    with mt:
        assert held(mt) == held_by([mod]) and now(mt, "Gradient") > 0


@every_source
def test_many_stretches(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    mt = MemTracker(source)
    for _ in range(20):
        with mt:
            mod(x).sum().backward()
            assert held(mt) == held_by([mod])
        mod.zero_grad()


# ---- nested and side by side ----


@every_source
def test_entering_twice_needs_leaving_twice(source):
    mt = MemTracker(source)
    with mt:
        with mt as same:
            assert same is mt
            inner = torch.zeros(10)
        outer = torch.zeros(10)
        assert now(mt) == 80
    kept = torch.zeros(10)
    assert now(mt) == 80
    del inner, outer, kept


@every_source
def test_two_trackers_agree(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    opt = torch.optim.Adam(mod.parameters())
    with MemTracker(source) as one, MemTracker(source) as two:
        for _ in range(2):
            mod(x).sum().backward()
            assert one.get_tracker_snapshot() == two.get_tracker_snapshot()
            opt.step()
            assert one.get_tracker_snapshot() == two.get_tracker_snapshot()
            assert one.get_module_snapshot() == two.get_module_snapshot()
        assert one.get_tracker_snapshot("peak") == two.get_tracker_snapshot("peak")
        assert one.peak == two.peak
        assert wrong_sums(one) == wrong_sums(two) == []


@every_source
def test_each_has_its_own_peak_since_it_was_entered(source):
    with MemTracker(source) as one:
        torch.zeros(1000)
        with MemTracker(source) as two:
            torch.zeros(10)
            assert (at_peak(one), at_peak(two)) == (4000, 40)
            one.reset_peak()
            assert (at_peak(one), at_peak(two)) == (0, 40)
        torch.zeros(20)
        assert (at_peak(one), at_peak(two)) == (80, 40)


@every_source
def test_left_in_the_order_they_were_entered(source):
    one, two = MemTracker(source), MemTracker(source)
    one.__enter__()
    two.__enter__()
    first = torch.zeros(10)
    one.__exit__(None, None, None)
    second = torch.zeros(10)
    assert (now(one), now(two)) == (40, 80)
    two.__exit__(None, None, None)
    third = torch.zeros(10)
    assert (now(one), now(two)) == (40, 80)
    del first, second, third


@pytest.mark.slow
def test_leaving_in_another_thread():
    """In a new interpreter: whether it is done or refused, a tracker works afterwards."""
    done = run_python(
        """
        import threading, torch
        from memory_helpers import SOURCES, now
        from modscope import MemTracker

        def leave():
            try:
                mt.__exit__(None, None, None)
            except RuntimeError:
                left.append(False)
            else:
                left.append(True)

        for source in SOURCES:
            left, mt = [], MemTracker(source)
            mt.__enter__()
            thread = threading.Thread(target=leave)
            thread.start()
            thread.join()
            if not left[0]:
                mt.__exit__(None, None, None)
            with MemTracker() as again:
                kept = torch.zeros(10)
                assert now(again) == 40 and now(mt) == 0
        print("fine")
        """
    )
    assert done.stdout == "fine\n", done.stdout + done.stderr


@every_source
def test_what_one_was_given_the_other_sees_too(source):
    """They share one ledger."""
    batch = torch.zeros(10)
    one, two = MemTracker(source), MemTracker(source)
    one.track_external(batch)
    with one, two:
        assert one.get_tracker_snapshot() == two.get_tracker_snapshot()
        assert now(two, "Other") == 40


@needs_interception
@pytest.mark.parametrize("order", [("allocator", "dispatcher"), ("dispatcher", "allocator")])
def test_two_sources_at_once_are_refused(order):
    with MemTracker(order[0]) as mt:
        with pytest.raises(RuntimeError, match=order[0]):
            MemTracker(order[1]).__enter__()
        kept = torch.zeros(10)
        assert now(mt) == 40
    with MemTracker(order[1]) as mt:
        assert mt.source == order[1]
    del kept


@every_source
def test_beside_a_tracker_of_modules(source):
    stacks = []
    mod = make("Mod", lambda m, x: m.a(x), a=leaf(lambda m, x: stacks.append(t.stack) or torch.zeros(10)))
    with ModTracker() as t, MemTracker(source) as mt:
        out = mod(1)
        assert of_module(mt, "Mod.a")["Activation"] == out.nbytes == 40
    assert stacks == [["Mod", "Mod.a"]]


# ---- what dies inside ----


@every_source
def test_a_model_deleted_while_tracked(source):
    x = torch.randn(4, 8)
    with MemTracker(source) as mt:
        mod = mlp(2, 8)
        opt = torch.optim.Adam(mod.parameters())
        mod(x).sum().backward()
        opt.step()
        assert held(mt) == held_by([mod], [opt])
        ref = weakref.ref(mod)
        del mod, opt
        gc.collect()
        assert ref() is None
        assert nonzero(reading(mt)) == {}
        assert mt.get_module_snapshot().get(CPU, {}) == {}
        again = mlp(1, 8)
        again(x).sum().backward()
        assert held(mt) == held_by([again])


@every_source
def test_a_child_deleted_while_tracked(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        mod(x).sum().backward()
        del mod[2:]
        gc.collect()
        assert held(mt) == held_by([mod])
        assert of_module(mt, "Sequential.2")["Total"] == 0


@every_source
def test_a_child_added_while_tracked(source):
    mod, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8)
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        mod(x)
        mod.append(nn.Linear(8, 8))
        mod(x)
        assert now(mt, "Parameter") == parameter_bytes(mod) == 2 * 288
        assert of_module(mt, "Sequential.1")["Parameter"] == 288


@every_source
def test_a_child_added_and_not_called(source):
    mod = nn.Sequential(nn.Linear(8, 8))
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        mod.append(nn.Linear(8, 8))
        assert held(mt) == held_by([mod])
        mod[1].register_buffer("table", torch.zeros(10))
        assert held(mt) == held_by([mod])


@every_source
def test_a_storage_that_shrinks_and_grows(source):
    with MemTracker(source) as mt:
        t = torch.zeros(100)
        t.resize_(1000)
        assert now(mt) == 4000
        t.untyped_storage().resize_(0)
        assert now(mt) == 0
        t.untyped_storage().resize_(400)
        assert now(mt) == 400
        assert at_peak(mt) >= 4000
