"""After an exception, wherever it was raised, the tracker is right again."""

import signal
import warnings

import pytest
from helpers import (
    NOWHERE,
    Boom,
    Events,
    assert_paired,
    at,
    grad_input,
    keep,
    leaf,
    look,
    make,
    needs_interception,
    on_grad,
    pair,
)

import torch

THROWN = [Boom, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration]


def thrower(error=Boom):
    def body(m, *args):
        raise error("thrown")

    return leaf(body)


def works(t):
    """The readings in a forward and a backward are right."""
    log = []

    def body(m, x):
        log.append(look(t))
        return on_grad(t, log, x * 2)

    make("Well", lambda m, x: m.a(x), a=leaf(body))(grad_input()).sum().backward()
    assert log == [at("forward", "Well", "Well.a"), at("backward", "Well", "Well.a")]
    assert look(t) == NOWHERE


@pytest.mark.parametrize("error", THROWN)
def test_in_a_forward(t, error):
    with pytest.raises(error):
        pair(leaf(), pair(thrower(error), leaf()))(grad_input())
    assert look(t) == NOWHERE
    works(t)


def test_in_a_forward_caught_by_a_parent(t):
    log = []

    def body(m, x):
        with pytest.raises(Boom):
            m.a(x)
        log.append(look(t))
        return m.b(x)

    mod = make("Mod", body, a=pair(leaf(), thrower()), b=leaf(lambda m, x: on_grad(t, log, x * 2)))
    mod(grad_input()).sum().backward()
    assert log == [at("forward", "Mod"), at("backward", "Mod", "Mod.b")]


def test_nodes_made_before_the_exception_are_in_their_call(t):
    log, kept = [], []

    def body(m, x):
        kept.append(on_grad(t, log, x * 2))
        raise Boom

    mod = make("Mod", lambda m, x: m.a(x), a=leaf(body))
    with pytest.raises(Boom):
        mod(grad_input())
    kept[0].sum().backward()
    assert log == [at("backward", "Mod", "Mod.a")]


def test_many_exceptions_at_every_depth(t):
    def body(m, n):
        if n == 0:
            raise Boom
        m(n - 1)

    mod = make("Self", body)
    for n in range(40):
        with pytest.raises(Boom):
            mod(n)
        assert look(t) == NOWHERE
    works(t)


def test_in_the_arguments_of_forward(t):
    with pytest.raises(TypeError):
        torch.nn.Linear(2, 2)(1, 2, 3)
    assert look(t) == NOWHERE
    works(t)


def test_in_the_users_own_module_hooks(t):
    def throw(*args):
        raise Boom

    for register in ("register_forward_pre_hook", "register_forward_hook"):
        mod = leaf()
        handle = getattr(mod, register)(throw)
        with pytest.raises(Boom):
            pair(leaf(), mod)(grad_input())
        handle.remove()
        assert look(t) == NOWHERE
        works(t)


def test_recursion_error(t):
    mod = make("Self", lambda m, x: m(x))
    with pytest.raises(RecursionError):
        mod(1)
    assert look(t) == NOWHERE
    works(t)


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt, SystemExit])
def test_in_a_gradient_hook(t, error):
    def throw(grad):
        raise error("thrown")

    def body(m, x):
        y = x * 2
        y.register_hook(throw)
        return y

    loss = pair(leaf(body), leaf())(grad_input()).sum()
    with pytest.raises(error):
        loss.backward()
    assert look(t) == NOWHERE
    works(t)


def test_in_a_custom_backward(t):
    class Throws(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise Boom

    loss = pair(leaf(lambda m, x: Throws.apply(x)), leaf())(grad_input()).sum()
    for _ in range(3):
        with pytest.raises(Boom):
            loss.backward(retain_graph=True)
        assert look(t) == NOWHERE
    works(t)


def test_by_torch_itself_in_backward(t):
    loss = leaf(lambda m, x: x.sin())(grad_input()).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert look(t) == NOWHERE
    works(t)


def test_in_a_backward_inside_a_forward(t):
    log = []

    def body(m, x):
        y = m.a(x)
        y.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()
        log.append(look(t))

    make("Mod", body, a=leaf())(grad_input())
    assert log == [at("forward", "Mod")]
    works(t)


def test_in_an_optimizer_step(t):
    mod = torch.nn.Linear(2, 2)

    class Opt(torch.optim.SGD):
        def step(self, closure=None):
            raise Boom

    opt = Opt(mod.parameters(), lr=0.1)
    with pytest.raises(Boom):
        opt.step()
    works(t)
    assert t.phase == "idle"


def test_a_real_interrupt(t):
    def body(m, x):
        signal.raise_signal(signal.SIGINT)
        return x

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            pair(leaf(), leaf(body))(grad_input())
    finally:
        signal.signal(signal.SIGINT, before)
    assert look(t) == NOWHERE
    works(t)


def test_out_of_the_with_block(tracker_type, torch_as_found):
    tracker = tracker_type()
    with pytest.raises(Boom):
        with tracker:
            pair(leaf(), thrower())(grad_input())
    assert look(tracker) == NOWHERE
    with tracker:
        works(tracker)


# ---- hooks that raise ----


def raising(mt, kind, error=Boom):
    """All four hooks are counted; the hook `kind` raises until the test stops it."""
    events = Events(mt)
    hooks = events.hooks()
    count = hooks[f"{kind}_hook"]
    events.angry = True

    def hook(*args):
        count(*args)
        if events.angry:
            raise error("hook")

    hooks[f"{kind}_hook"] = hook
    mt.register_user_hooks(**hooks)
    return events


def calm(mt, events):
    events.angry = False
    events.clear()
    keep(pair(leaf(), leaf()))(grad_input()).sum().backward()
    assert_paired(events)
    assert events.count("pre_fw") == events.count("post_fw") == events.count("pre_bw") == 3
    assert look(mt) == NOWHERE


@pytest.mark.parametrize("error", [Boom, pytest.param(KeyboardInterrupt, marks=needs_interception)])
def test_pre_fw_raises(mt, error):
    events = raising(mt, "pre_fw", error)
    ran = []
    with pytest.raises(error, match="hook"):
        leaf(lambda m, x: ran.append(1))(grad_input())
    assert ran == []
    assert events.names() == [("pre_fw", "Leaf"), ("post_fw", "Leaf")]
    assert events.args[1][2][1] is None
    assert look(mt) == NOWHERE
    calm(mt, events)


def test_pre_fw_raises_for_a_child(mt):
    events = Events(mt)

    def pre_fw(m, args):
        if mt.get_known_fqn(m) == "Mod.a":
            raise Boom

    hooks = {**events.hooks(), "pre_fw_hook": pre_fw}
    mt.register_user_hooks(**hooks)
    with pytest.raises(Boom):
        pair(leaf(), leaf())(grad_input())
    assert events.names() == [("post_fw", "Mod.a"), ("post_fw", "Mod")]
    assert look(mt) == NOWHERE


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_post_fw_raises(mt, error):
    events = raising(mt, "post_fw", error)
    with pytest.raises(error, match="hook"):
        leaf()(grad_input())
    assert events.names() == [("pre_fw", "Leaf"), ("post_fw", "Leaf")]
    assert look(mt) == NOWHERE
    calm(mt, events)


def test_post_fw_comes_for_a_call_that_raised(mt):
    events = Events(mt).register()
    with pytest.raises(Boom):
        pair(leaf(), thrower())(grad_input())
    assert events.names() == [
        ("pre_fw", "Mod"),
        ("pre_fw", "Mod.a"),
        ("post_fw", "Mod.a"),
        ("pre_fw", "Mod.b"),
        ("post_fw", "Mod.b"),
        ("post_fw", "Mod"),
    ]
    assert [rest[1] for kind, fqn, rest in events.args if kind == "post_fw" and fqn != "Mod.a"] == [None, None]


def test_post_fw_raises_after_the_module_did(mt):
    def post_fw(m, args, out):
        raise ValueError("hook")

    mt.register_user_hooks(post_fw_hook=post_fw)
    with pytest.warns(Warning), pytest.raises(Boom):
        thrower()(grad_input())
    assert look(mt) == NOWHERE


@pytest.mark.parametrize("kind", ["pre_bw", "post_bw"])
@pytest.mark.parametrize("with_input_grad", [True, False])
def test_a_backward_hook_raises(mt, kind, with_input_grad):
    events = raising(mt, kind)
    x = grad_input() * 1 if with_input_grad else torch.ones(1, 4)
    loss = keep(pair(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))(x).sum()
    with pytest.raises(Boom, match="hook"):
        loss.backward()
    assert look(mt) == NOWHERE
    calm(mt, events)


def test_a_failed_backward_leaves_no_event_behind(mt):
    """A hook that was due at the end of a backward that failed is not called in the next backward."""
    events = Events(mt).register("pre_bw", "post_bw")
    angry = [True]

    def body(m, x):
        y = x * 2
        y.register_hook(lambda g: 1 / 0 if angry[0] else None)
        return y

    mod = make("Mod", lambda m, x: m.b(m.a(x)), a=torch.nn.Linear(4, 4), b=leaf(body))
    loss = mod(torch.ones(1, 4)).sum()
    with pytest.raises(ZeroDivisionError):
        loss.backward(retain_graph=True)
    events.clear()
    keep(leaf())(grad_input()).sum().backward()
    assert events.names() == [("pre_bw", "Leaf"), ("post_bw", "Leaf")]
    events.clear()
    angry[0] = False
    loss.backward()
    assert_paired(events)
    assert events.count("post_bw") == 3


def test_hooks_and_exceptions_without_warnings(mt):
    Events(mt).register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Boom):
            pair(leaf(), thrower())(grad_input())
