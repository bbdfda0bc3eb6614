"""Tracking does not change the program: the same results to the bit, the same lifetimes of objects, and torch is
restored. memory/test_memory.py tests that memory does not grow."""

import gc
import warnings
import weakref

import pytest
from helpers import Events, grad_input, leaf, make, mlp, needs_interception, pair, run_python
from modscope import ModTracker, ModuleTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


def tracker_with_hooks():
    t = ModTracker()
    t.register_user_hooks(*[lambda *args: None] * 4)
    return t


EACH = pytest.mark.parametrize("enter", [ModTracker, ModuleTracker, tracker_with_hooks], ids=["Mod", "Module", "hooks"])


# ---- the same bits ----


def train(context):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    mod = nn.Sequential(layer, nn.LayerNorm(8), nn.Linear(8, 8))
    opt = torch.optim.AdamW(mod.parameters(), lr=1e-2)
    out = []
    for i in range(4):
        x = torch.randn(2, 3, 8, requires_grad=True)
        if context is None:
            y = checkpoint(mod, x, use_reentrant=bool(i % 2))
            y.square().sum().backward()
            opt.step()
        else:
            with context:
                y = checkpoint(mod, x, use_reentrant=bool(i % 2))
                y.square().sum().backward()
                opt.step()
        out += [y.detach(), x.grad, *(p.grad.clone() for p in mod.parameters())]
        opt.zero_grad()
    return [*out, *(p.detach() for p in mod.parameters()), torch.get_rng_state()]


@EACH
def test_training_is_the_same_to_the_bit(enter):
    plain, tracked = train(None), train(enter())
    assert len(plain) == len(tracked)
    assert all(torch.equal(a, b) for a, b in zip(plain, tracked))


@EACH
def test_graphs_are_the_same(enter):
    def names(node):
        return None if node is None else (node.name(), [names(n) for n, _ in node.next_functions])

    mod, x = mlp(), grad_input()
    plain = names(mod(x).grad_fn)
    with enter():
        assert names(mod(x).grad_fn) == plain


@EACH
def test_outputs_are_the_very_objects(enter):
    thing = object()
    mod = make("Mod", lambda m, *a, **k: (a, k, thing))
    with enter():
        args, kwargs, got = mod(thing, k=thing)
    assert got is thing and args[0] is thing and kwargs["k"] is thing


@needs_interception
@EACH
def test_tracebacks_are_the_same(enter):
    import traceback

    mod = pair(leaf(), leaf(lambda m, x: 1 / 0))

    def frames():
        try:
            mod(torch.ones(1))
        except ZeroDivisionError as error:
            return [f.name for f in traceback.extract_tb(error.__traceback__)]

    plain = frames()
    with enter():
        assert frames() == plain


def test_error_messages_of_bad_calls_are_the_same():
    def message(mod):
        with pytest.raises(TypeError) as caught:
            mod()
        return str(caught.value)

    plain = message(nn.Linear(2, 2))
    with ModTracker():
        assert message(nn.Linear(2, 2)) == plain


# ---- nothing is kept alive ----


class Sentinel:
    """It is held by a tensor's hook, so it lives as long as the node does."""

    def __call__(self, grad):
        return None


def node_life(y):
    sentinel = Sentinel()
    y.register_hook(sentinel)
    return weakref.ref(sentinel)


@pytest.fixture
def no_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@EACH
def test_tensors_and_graphs_die_without_the_collector(enter, no_gc):
    mod = pair(nn.Linear(4, 4), nn.Linear(4, 4))
    with enter():
        for backward in (False, True):
            x = grad_input() * 1
            y = mod(x)
            lives = [weakref.ref(x), weakref.ref(y), node_life(x), node_life(y)]
            loss = y.sum()
            if backward:
                loss.backward()
            del x, y, loss
            assert [w() for w in lives] == [None] * 4, f"backward={backward}"


@EACH
def test_modules_die_without_the_collector(enter, no_gc):
    with enter():
        for backward in (False, True):
            mod = pair(nn.Linear(4, 4), nn.Linear(4, 4))
            lives = [weakref.ref(m) for m in mod.modules()] + [weakref.ref(p) for p in mod.parameters()]
            y = mod(torch.ones(1, 4)).sum()
            if backward:
                y.backward()
            del mod, y
            assert not any(w() for w in lives), f"backward={backward}"


@EACH
def test_a_graph_does_not_keep_its_modules(enter, no_gc):
    with enter():
        mod = leaf(lambda m, x: x.sin())
        gone = weakref.ref(mod)
        loss = mod(grad_input()).sum()
        del mod
        assert gone() is None
        loss.backward()


@EACH
def test_checkpointed_graphs_die(enter):
    mod = mlp()
    with enter():
        for reentrant in (False, True):
            x = grad_input() * 1
            y = checkpoint(mod, x, use_reentrant=reentrant)
            lives = [weakref.ref(x), weakref.ref(y), node_life(y)]
            y.sum().backward()
            del x, y
            gc.collect()
            assert not any(w() for w in lives)


@EACH
def test_after_an_exception_nothing_is_kept(enter):
    def throw(m, x):
        raise ValueError

    mod = pair(leaf(), leaf(throw))
    with enter():
        x = grad_input() * 1
        life = weakref.ref(x)
        with pytest.raises(ValueError):
            mod(x)
        del x
        gc.collect()
        assert life() is None


@EACH
def test_a_tracker_dies(enter):
    t = enter()
    with t:
        mlp()(grad_input()).sum().backward()
    life = weakref.ref(t)
    del t
    gc.collect()
    assert life() is None


def test_hooks_die_with_their_tracker_and_when_cleared():
    t = ModTracker()
    events = Events(t).register()
    t.clear_user_hooks()
    life = weakref.ref(events)
    del events
    gc.collect()
    assert life() is None


def test_hooks_that_hold_their_tracker_are_collected():
    t = ModTracker()
    t.register_user_hooks(lambda m, i: t.parents)  # noqa: F821
    life = weakref.ref(t)
    del t
    gc.collect()
    assert life() is None


# ---- torch is restored ----


@EACH
def test_nothing_global_stays_changed(enter, torch_as_found):
    mod = mlp()
    opt = torch.optim.SGD(mod.parameters(), lr=0.1)
    with enter():
        mod(grad_input()).sum().backward()
        checkpoint(mod, grad_input(), use_reentrant=False).sum().backward()
        opt.step()


@EACH
def test_nothing_global_stays_changed_after_an_exception(enter, torch_as_found):
    with pytest.raises(ZeroDivisionError), enter():
        leaf(lambda m, x: 1 / 0)(1)


def test_a_module_that_calls_itself_does_not_change_warnings():
    before = warnings.formatwarning
    mod = make("Self", lambda m, x, n: m(x, n - 1) if n else x)
    with tracker_with_hooks():
        mod(torch.ones(1), 3)
        assert warnings.formatwarning is before
    assert warnings.formatwarning is before


@pytest.mark.slow
def test_the_first_import_and_the_first_tracker_change_nothing():
    """They also print nothing and draw no random number."""
    done = run_python("""
        import torch
        from helpers import torch_globals
        torch.manual_seed(7)
        state = torch.get_rng_state()
        before = torch_globals()
        import modscope
        assert torch_globals() == before
        with modscope.ModTracker():
            pass
        assert torch_globals() == before
        assert torch.equal(torch.get_rng_state(), state)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@EACH
def test_a_reused_leaf_collects_no_hooks(enter):
    x, mod = grad_input(), mlp()
    with enter():
        for _ in range(20):
            mod(x).sum().backward()
        assert len(x._backward_hooks or {}) <= 1
        for p in mod.parameters():
            assert not p._backward_hooks and not getattr(p, "_post_accumulate_grad_hooks", None)


@EACH
def test_modules_get_no_hooks(enter):
    mod = mlp()
    with enter():
        mod(grad_input()).sum().backward()
        for m in mod.modules():
            assert not (m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)
