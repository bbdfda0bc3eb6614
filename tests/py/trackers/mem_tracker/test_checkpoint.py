"""Activation checkpointing, both kinds: a recomputed block is an Activation of the module that
allocated it first, and is freed when the module's backward is done.

    8 x 16 floats, 512 bytes, is the size of every activation here."""

import pytest
from helpers import make
from memory_helpers import at_peak, every_source, held, held_by, now, of_module, wrong_sums
from modscope import MemTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

both_kinds = pytest.mark.parametrize("reentrant", [False, True], ids=["saved-hooks", "reentrant"])
SIZE = 8 * 16 * 4


class Block(nn.Module):
    """Keeps two activations for backward: what the sigmoids returned."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Sigmoid(), nn.Sigmoid()

    def forward(self, x):
        return self.b(self.a(x))


def deep(blocks, reentrant=None):
    def body(m, x):
        for block in m.blocks:
            x = (
                block(x)
                if reentrant is None
                else checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=False)
            )
        return x

    return make("Deep", body, blocks=nn.ModuleList(Block() for _ in range(blocks)))


def leaf_input():
    return torch.randn(8, 16, requires_grad=True)


@every_source
@both_kinds
def test_forward_keeps_only_what_lies_between_the_blocks(source, reentrant):
    x = leaf_input()
    with MemTracker(source) as mt:
        out = deep(4)(x)
        assert now(mt, "Activation") == 8 * SIZE
        del out
        assert now(mt, "Activation") == 0
        out = deep(4, reentrant)(x)
        assert now(mt, "Activation") == 4 * SIZE
    del out


@every_source
@both_kinds
def test_recompute_is_activation_of_the_module(source, reentrant):
    mt = MemTracker(source)
    seen = []
    mod = deep(3, reentrant)

    def look_in_recompute(m, args, out):
        if torch._C._current_graph_task_id() != -1:
            seen.append(of_module(mt, "Deep.blocks.1.a")["Activation"])

    mod.blocks[1].a.register_forward_hook(look_in_recompute)
    with mt:
        mod(leaf_input()).sum().backward()
        assert seen == [SIZE]
        assert now(mt, "Activation") == 0


@every_source
@both_kinds
def test_recomputed_bytes_are_not_temporary(source, reentrant):
    """When the gradient of the first sigmoid's result is ready, that result has been recomputed. The second's was freed
    with its node, unless a reentrant checkpoint holds it as its output."""
    mt = MemTracker(source)
    seen = []
    mod = deep(2, reentrant)

    def body(x):
        y = x.sigmoid()
        if y.requires_grad:
            y.register_hook(lambda grad: seen.append((now(mt, "Activation") - kept, now(mt, "Temp"))))
        return y

    mod.blocks[1].a.forward = body
    x = leaf_input()
    gradient = torch.ones(8, 16)
    with mt:
        out = mod(x)
        kept = now(mt, "Activation")
        out.backward(gradient)
    assert seen == [(2 * SIZE if reentrant else SIZE, SIZE)]


@every_source
@both_kinds
def test_nothing_is_left_after_backward(source, reentrant):
    mod = make("Net", lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=reentrant)), a=Block(), b=nn.Linear(16, 2))
    x = leaf_input()
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt:
        for _ in range(3):
            mod(x).sum().backward()
            x.grad = None
            assert now(mt, "Activation") == now(mt, "Temp") == 0
            assert held(mt) == held_by([mod])
            mod.zero_grad()


@every_source
@both_kinds
def test_checkpointing_lowers_the_peak(source, reentrant):
    peaks = []
    x = torch.randn(64, 64, requires_grad=True)
    for kind in (None, reentrant):
        mod = deep(8, kind)
        with MemTracker(source) as mt:
            mod(x).sum().backward()
            x.grad = None
        peaks.append(at_peak(mt))
    assert peaks[1] < peaks[0] - 4 * x.nbytes


@every_source
@both_kinds
def test_nested_checkpoints(source, reentrant):
    inner = make("Inner", lambda m, x: checkpoint(m.block, x, use_reentrant=reentrant), block=Block())
    mod = make("Outer", lambda m, x: checkpoint(m.inner, x, use_reentrant=reentrant), inner=inner)
    x = leaf_input()
    mt = MemTracker(source)
    mt.track_external(x)
    with mt:
        mod(x).sum().backward()
        x.grad = None
        assert now(mt) == x.nbytes
        assert wrong_sums(mt) == []


@every_source
@both_kinds
def test_a_checkpointed_module_with_parameters(source, reentrant):
    mod = make(
        "Net", lambda m, x: checkpoint(m.a, x, use_reentrant=reentrant), a=nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    )
    opt = torch.optim.Adam(mod.parameters())
    x = leaf_input()
    mt = MemTracker(source)
    mt.track_external(mod, opt, x)
    with mt:
        for _ in range(2):
            mod(x).sum().backward()
            opt.step()
            x.grad = None
            assert held(mt) == held_by([mod], [opt])
        assert of_module(mt, "Net.a.0")["Gradient"] == 4 * (256 + 16)
