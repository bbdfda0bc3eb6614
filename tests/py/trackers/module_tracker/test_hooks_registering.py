"""Registering and clearing user hooks, and from when to when they fire."""

import warnings

import pytest
from helpers import Events, grad_input, keep, leaf, make, pair
from modscope import ModTracker

import torch


def test_hooks_fire_only_inside_the_context():
    mt = ModTracker()
    events = Events(mt).register()
    mod = leaf()
    mod(grad_input()).sum().backward()
    assert events.log == []
    with mt:
        loss = mod(grad_input()).sum()
    loss.backward()
    assert events.names() == [("pre_fw", "Leaf"), ("post_fw", "Leaf")]


def test_backward_hooks_come_for_calls_made_while_registered(mt):
    before = keep(leaf())(grad_input()).sum()
    events = Events(mt).register("pre_bw", "post_bw")
    before.backward()
    assert events.log == []
    keep(leaf())(grad_input()).sum().backward()
    assert events.count("pre_bw") == 1


def test_cleared_hooks_do_not_fire(mt):
    events = Events(mt).register()
    loss = keep(leaf())(grad_input()).sum()
    mt.clear_user_hooks()
    loss.backward()
    keep(leaf())(grad_input()).sum().backward()
    assert events.names() == [("pre_fw", "Leaf"), ("post_fw", "Leaf")]


def test_hooks_can_be_registered_again_after_clearing(mt):
    first, second = Events(mt).register(), Events(mt)
    mt.clear_user_hooks()
    second.register()
    keep(leaf())(grad_input()).sum().backward()
    assert first.log == [] and len(second.log) == 4


def test_a_second_hook_of_a_kind_is_refused(mt):
    events = Events(mt).register()
    for kind in ("pre_fw", "post_fw", "pre_bw", "post_bw"):
        with pytest.raises(AssertionError, match=f"{kind}_hook.*clear_user_hooks"):
            mt.register_user_hooks(**{f"{kind}_hook": lambda *a: None})
    keep(leaf())(grad_input()).sum().backward()
    assert len(events.log) == 4


def test_hooks_by_position(mt):
    got = []
    mt.register_user_hooks(None, None, lambda m, g: got.append("pre_bw"), None)
    keep(leaf())(grad_input()).sum().backward()
    assert got == ["pre_bw"]


def test_hooks_of_any_callable_kind(mt):
    class Hook:
        def __init__(self):
            self.got = 0

        def __call__(self, *args):
            self.got += 1

        def method(self, *args):
            self.got += 1

    hook = Hook()
    mt.register_user_hooks(hook, hook.method, hook, hook.method)
    keep(leaf())(grad_input()).sum().backward()
    assert hook.got == 4


def test_what_hooks_return_is_ignored(mt):
    mt.register_user_hooks(lambda *a: 1, lambda *a: 2, lambda *a: torch.zeros(1), lambda *a: torch.zeros(1))
    x = grad_input()
    y = keep(leaf(lambda m, x: x * 2))(x)
    assert torch.equal(y, x * 2)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))


def test_a_hook_may_call_a_module(mt):
    events = []
    inner = make("Inner", lambda m, x: events.append(mt.stack) or x)

    def pre_fw(m, args):
        if m is not inner:
            inner(torch.ones(1))

    mt.register_user_hooks(pre_fw)
    keep(leaf())(grad_input())
    assert events == [["Leaf", "Inner"]]


def test_a_hook_may_clear_the_hooks(mt):
    got = []

    def pre_fw(m, args):
        got.append(mt.get_known_fqn(m))
        mt.clear_user_hooks()

    mt.register_user_hooks(pre_fw)
    keep(pair(leaf(), leaf()))(grad_input()).sum().backward()
    assert got == ["Mod"]


def test_no_warning_is_ever_given(mt):
    Events(mt).register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mod = make("Self", lambda m, x, n: m(x * 2, n - 1) if n else x * 2)
        for _ in range(2):
            mod(grad_input(), 2).sum().backward()
