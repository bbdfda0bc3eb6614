"""Activation checkpointing of both kinds: a recompute is a forward inside a backward. Its position is that of
the recomputed module, not that of the node that needs it."""

import sys

import pytest
from helpers import NOWHERE, Events, assert_paired, at, grad_input, leaf, look, make, needs_interception, on_grad, pair
from torch.utils import checkpoint as ckpt

import torch
from torch import nn

REENTRANT = pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])


def checkpoint(fn, *args, reentrant=False, **kwargs):
    return ckpt.checkpoint(fn, *args, use_reentrant=reentrant, **kwargs)


def tell(t, log, bw=None):
    """Saves its input for backward, and records the position of its forward and (in `bw`) of its node."""

    def body(m, x):
        log.append(look(t))
        y = x.sin()
        return y if bw is None else on_grad(t, bw, y)

    return leaf(body)


@REENTRANT
def test_a_child_is_recomputed_in_its_place(t, reentrant):
    log, bw = [], []
    mod = make("Mod", lambda m, x: checkpoint(m.a, x, reentrant=reentrant), a=tell(t, log, bw))
    mod(grad_input()).sum().backward()
    assert log == [at("forward", "Mod", "Mod.a"), at("recompute", "Mod", "Mod.a")]
    assert bw == [at("backward", "Mod", "Mod.a")] or reentrant
    assert {r.parents for r in bw} == {frozenset({"Global", "Mod", "Mod.a"})}
    assert {r.phase for r in bw} == {"backward"}


@REENTRANT
def test_a_root_is_recomputed_as_a_root(t, reentrant):
    log = []
    mod = make("Mod", lambda m, x: log.append(look(t)) or m.b(m.a(x)), a=tell(t, log), b=tell(t, log))
    checkpoint(mod, grad_input(), reentrant=reentrant).sum().backward()
    here = [("Mod",), ("Mod", "Mod.a"), ("Mod", "Mod.b")]
    assert log == [at("forward", *s) for s in here] + [at("recompute", *s) for s in here]


@REENTRANT
def test_siblings_are_not_mixed(t, reentrant):
    """The node that needs the recompute is in `b`, but `a` is what runs."""
    log = []
    mod = make(
        "Mod", lambda m, x: checkpoint(lambda x: m.b(m.a(x)), x, reentrant=reentrant), a=tell(t, log), b=tell(t, log)
    )
    mod(grad_input()).sum().backward()
    assert log[2:] == [at("recompute", "Mod", "Mod.a"), at("recompute", "Mod", "Mod.b")]


@REENTRANT
def test_branches_each_checkpointed(t, reentrant):
    log, bw = [], []
    names = "abc"
    mod = make(
        "Mod",
        lambda m, x: sum(checkpoint(getattr(m, n), x, reentrant=reentrant) for n in names),
        **{n: tell(t, log, bw) for n in names},
    )
    make("Top", lambda m, x: m.mod(x), mod=mod)(grad_input()).sum().backward()
    again = [at("recompute", "Top", "Top.mod", f"Top.mod.{n}") for n in names]
    assert sorted(r.stack for r in log[3:]) == sorted(r.stack for r in again)
    assert set(log[3:]) == set(again)
    assert {r.parents for r in bw} == {r.parents for r in again}


@REENTRANT
def test_deep_inside_a_checkpointed_block(t, reentrant):
    log, bw = [], []
    block = pair(nn.Linear(4, 4), make("Seq", lambda m, x: m.c(x), c=tell(t, log, bw)))
    mod = make(
        "Top", lambda m, x: m.tail(checkpoint(m.block, x, reentrant=reentrant)), block=block, tail=nn.Linear(4, 4)
    )
    mod(grad_input()).sum().backward()
    stack = ("Top", "Top.block", "Top.block.b", "Top.block.b.c")
    assert log == [at("forward", *stack), at("recompute", *stack)]
    assert {r.parents for r in bw} == {frozenset({"Global", *stack})}


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_checkpoint_inside_a_checkpoint(t, outer, inner):
    log, bw = [], []
    mid = make("Mid", lambda m, x: checkpoint(m.a, x, reentrant=inner).sin(), a=tell(t, log, bw))
    mod = make("Mod", lambda m, x: checkpoint(m.mid, x, reentrant=outer), mid=mid)
    mod(grad_input()).sum().backward()
    stack = ("Mod", "Mod.mid", "Mod.mid.a")
    assert len(log) >= 2 and log[0] == at("forward", *stack)
    assert {r.parents for r in log + bw} == {frozenset({"Global", *stack})}
    assert {(r.phase, r.current) for r in log[1:]} == {("recompute", "Mod.mid.a")}
    assert {(r.phase, r.current) for r in bw} == {("backward", "Mod.mid.a")}


def test_early_stop_leaves_nothing_open(t):
    """The recompute ends with an exception as soon as all saved tensors are recomputed."""
    log = []
    stopped = []

    def body(m, x):
        y = x.sin()
        try:
            y = m.a(y)
            return y + 1
        except BaseException as error:
            stopped.append(type(error).__name__)
            raise
        finally:
            log.append(look(t))

    mod = make("Top", lambda m, x: checkpoint(m.mod, x), mod=make("Mod", body, a=tell(t, [])))
    after = []
    x = grad_input()
    y = on_grad(t, after, x.cos())
    mod(y).sum().backward()
    assert stopped, "torch did not stop early: this test tests nothing"
    assert log == [at("forward", "Top", "Top.mod"), at("recompute", "Top", "Top.mod")]
    assert [r.parents for r in after] == [{"Global"}]
    assert look(t) == NOWHERE


def test_without_early_stop(t):
    log = []
    with ckpt.set_checkpoint_early_stop(False):
        mod = make("Mod", lambda m, x: checkpoint(m.a, x), a=tell(t, log))
        mod(grad_input()).sum().backward()
    assert log == [at("forward", "Mod", "Mod.a"), at("recompute", "Mod", "Mod.a")]


def test_selective(t):
    log = []

    def policy(ctx, op, *args, **kwargs):
        return (
            ckpt.CheckpointPolicy.MUST_SAVE
            if op is torch.ops.aten.mm.default
            else ckpt.CheckpointPolicy.PREFER_RECOMPUTE
        )

    mod = make(
        "Mod",
        lambda m, x: checkpoint(m.a, x, context_fn=lambda: ckpt.create_selective_checkpoint_contexts(policy)),
        a=leaf(lambda m, x: log.append(look(t)) or (x.sin() @ torch.ones(4, 4)).cos()),
    )
    mod(grad_input()).sum().backward()
    assert log == [at("forward", "Mod", "Mod.a"), at("recompute", "Mod", "Mod.a")]


@REENTRANT
def test_checkpoint_sequential(t, reentrant):
    log = []
    seq = nn.Sequential(*[tell(t, log) for _ in range(4)])
    make("Mod", lambda m, x: ckpt.checkpoint_sequential(m.seq, 2, x, use_reentrant=reentrant), seq=seq)(
        grad_input()
    ).sum().backward()
    assert {r.current for r in log} == {f"Mod.seq.{i}" for i in range(4)}
    assert {r.parents for r in log} == {frozenset({"Global", "Mod", f"Mod.seq.{i}"}) for i in range(4)}
    assert {r.phase for r in log} == {"forward", "recompute"}


@REENTRANT
def test_checkpointed_blocks_in_a_row(t, reentrant):
    log, bw = [], []
    mod = make(
        "Mod",
        lambda m, x: [x := checkpoint(block, x, reentrant=reentrant) for block in m.blocks][-1],
        blocks=nn.ModuleList([tell(t, log, bw) for _ in range(6)]),
    )
    for _ in range(2):
        log.clear(), bw.clear()
        mod(grad_input()).sum().backward()
        order = [f"Mod.blocks.{i}" for i in range(6)]
        assert [r.current for r in log] == order + order[::-1]
        assert [r.current for r in bw] == order[::-1]
        assert all(r.parents == {"Global", "Mod", r.current} for r in log + bw)


def test_a_kept_checkpointed_graph_walked_twice(t):
    log = []
    mod = make("Mod", lambda m, x: checkpoint(m.a, x), a=tell(t, log))
    loss = mod(grad_input()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert log[0] == at("forward", "Mod", "Mod.a")
    assert set(log[1:]) == {at("recompute", "Mod", "Mod.a")}


def test_gradients_are_the_same(t):
    mod = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    x = grad_input()
    plain = torch.autograd.grad(mod(x).sum(), x)[0]
    for reentrant in (False, True):
        y = checkpoint(mod, x, reentrant=reentrant)
        x.grad = None
        y.sum().backward()
        assert torch.equal(x.grad, plain)


def test_hooks_around_a_recompute(mt):
    """The recomputed call has forward events; the backward events are the first call's."""
    events = Events(mt).register()
    mod = make("Mod", lambda m, x: checkpoint(m.a, x).cos(), a=leaf(lambda m, x: x.sin()))
    mod(grad_input() * 1).sum().backward()
    assert [(kind, fqn, bw) for kind, fqn, _, bw in events.log] == [
        ("pre_fw", "Mod", False),
        ("pre_fw", "Mod.a", False),
        ("post_fw", "Mod.a", False),
        ("post_fw", "Mod", False),
        ("pre_bw", "Mod", True),
        ("pre_bw", "Mod.a", True),
        ("pre_fw", "Mod.a", True),
        ("post_fw", "Mod.a", True),
        ("post_bw", "Mod", True),
        ("post_bw", "Mod.a", True),
    ]
    assert all(inside for _, _, inside, _ in events.log)


def test_hooks_of_a_reentrant_checkpoint(mt):
    """The first call ran under no_grad; the backward runs the nodes of the recomputed call."""
    events = Events(mt).register()
    mod = make("Mod", lambda m, x: checkpoint(m.a, x, reentrant=True).cos(), a=leaf(lambda m, x: x.sin()))
    mod(grad_input() * 1).sum().backward()
    assert_paired(events)
    assert events.count("pre_bw", "Mod.a") == 1 and events.count("pre_bw", "Mod") == 1
    order = events.names()
    recompute = len(order) - 1 - order[::-1].index(("pre_fw", "Mod.a"))
    assert order.index(("pre_bw", "Mod.a")) > recompute > order.index(("pre_bw", "Mod"))
    assert all(inside for _, _, inside, _ in events.log)


@REENTRANT
def test_hooks_stay_paired_over_steps(mt, reentrant):
    events = Events(mt).register("pre_bw", "post_bw")
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    mod = make("Mod", lambda m, x: checkpoint(m.b, m.a(x), reentrant=reentrant), a=nn.Linear(4, 4), b=block)
    x = grad_input()
    for _ in range(3):
        events.clear()
        mod(x).sum().backward()
        assert_paired(events)
        assert {fqn for _, fqn in events.names("pre_bw")} >= {"Mod", "Mod.a", "Mod.b"}


@REENTRANT
def test_an_exception_in_a_recompute(t, reentrant):
    log = []

    def body(m, x):
        log.append(look(t))
        if len(log) == 2:
            raise ValueError("in recompute")
        return x.sin()

    mod = make("Mod", lambda m, x: checkpoint(m.a, x, reentrant=reentrant), a=leaf(body))
    with pytest.raises(ValueError, match="in recompute"):
        mod(grad_input()).sum().backward()
    assert look(t) == NOWHERE
    mod(grad_input()).sum().backward()
    assert log[2:] == [at("forward", "Mod", "Mod.a"), at("recompute", "Mod", "Mod.a")]


@needs_interception
def test_deeper_than_autograd_nests_on_one_thread(t, request):
    """When more than sixty backwards are nested, torch continues in another thread."""
    limit = sys.getrecursionlimit()
    request.addfinalizer(lambda: sys.setrecursionlimit(limit))
    sys.setrecursionlimit(20 * limit)
    log = []
    mod = tell(t, log)
    for _ in range(80):
        mod = make("Deep", lambda m, x: checkpoint(m.n, x, reentrant=True), n=mod)
    mod(grad_input()).sum().backward()
    stack = ["Deep" + ".n" * i for i in range(81)]
    assert {r.parents for r in log} == {frozenset({"Global", *stack})}
    assert {r.phase for r in log} == {"forward", "recompute"}


def test_a_shared_module_recomputed_for_each_parent(t):
    log = []
    shared = tell(t, log)
    one = make("One", lambda m, x: checkpoint(m.p, x), p=shared)
    two = make("Two", lambda m, x: checkpoint(m.q, x), q=shared)
    make("Mod", lambda m, x: m.two(m.one(x)), one=one, two=two)(grad_input()).sum().backward()
    assert [r.current for r in log] == ["Mod.one.p", "Mod.two.q", "Mod.two.q", "Mod.one.p"]
