"""Graphs kept while many other calls ran are attributed to the right module or to "unknown", never to a wrong one."""

import pytest
from helpers import UNKNOWN, grad_input, leaf, look, make, mlp, on_grad, pair

import torch
from torch import nn


def kept_graph(t, log):
    """A loss with one node in each of `Old.a`, `Old.b` and `Old`."""
    part = lambda: leaf(lambda m, x: on_grad(t, log, x * 2))  # noqa: E731
    mod = make("Old", lambda m, x: on_grad(t, log, m.b(m.a(x)).sin()), a=part(), b=part())
    return mod(grad_input()).sum()


RIGHT = [{"Global", "Old"}, {"Global", "Old", "Old.b"}, {"Global", "Old", "Old.a"}]


def right_or_unknown(log):
    """Whether all readings are right. A reading that is neither right nor unknown fails the test."""
    assert len(log) == 3
    for reading, right in zip(log, RIGHT):
        assert set(reading.parents) in (right, UNKNOWN)
        assert reading.current == "unknown" if set(reading.parents) == UNKNOWN else True
        assert reading.is_bw and reading.phase == "backward"
    return [set(r.parents) for r in log] == RIGHT


def test_a_thousand_later_steps_of_a_small_model(mt):
    log = []
    loss = kept_graph(mt, log)
    mod = mlp()
    for _ in range(1000):
        mod(grad_input()).sum().backward()
    loss.backward()
    assert right_or_unknown(log)


@pytest.mark.slow
def test_a_thousand_later_steps_of_a_large_model(mt):
    log = []
    loss = kept_graph(mt, log)
    mod = nn.Sequential(*[nn.ReLU() for _ in range(200)])
    x = torch.ones(1, requires_grad=True)
    for _ in range(1000):
        mod(x)
    loss.backward()
    right_or_unknown(log)


@pytest.mark.slow
def test_unknown_is_said_plainly(mt):
    """More calls than a bounded memory can keep."""
    log = []
    loss = kept_graph(mt, log)
    relu, x = nn.ReLU(), torch.ones(1, requires_grad=True)
    for _ in range(300_000):
        relu(x)
    loss.backward()
    assert not right_or_unknown(log)
    assert [set(r.parents) for r in log] == [UNKNOWN] * 3


@pytest.mark.slow
def test_recent_calls_stay_right_when_old_ones_are_dropped(mt):
    relu, x = nn.ReLU(), torch.ones(1, requires_grad=True)
    for _ in range(300_000):
        relu(x)
    log = []
    loss = kept_graph(mt, log)
    for _ in range(100):
        relu(x)
    loss.backward()
    assert right_or_unknown(log)


@pytest.mark.slow
def test_an_open_call_is_never_dropped(mt):
    """One call stays open longer than calls are kept: all nodes that it creates are attributed to it."""
    log = []
    relu = nn.ReLU()

    def body(m, x):
        before = on_grad(mt, log, x.sin())
        one = torch.ones(1, requires_grad=True)
        for _ in range(200_000):
            relu(one)
        assert mt.parents == {"Global", "Old"}
        return on_grad(mt, log, before.cos())

    make("Old", body)(grad_input()).sum().backward()
    assert set(log[0].parents) == {"Global", "Old"}
    assert set(log[1].parents) in ({"Global", "Old"}, UNKNOWN)


def test_forwards_without_a_node_cost_nothing(mt):
    """Calls that create no node are not kept, so they replace none that is."""
    log = []
    loss = kept_graph(mt, log)
    relu, x = nn.ReLU(), torch.ones(1)
    for _ in range(200_000):
        relu(x)
    loss.backward()
    assert right_or_unknown(log)


def test_many_graphs_kept_and_walked_out_of_order(mt):
    logs = [[] for _ in range(200)]
    losses = [kept_graph(mt, log) for log in logs]
    order = torch.randperm(200).tolist()
    for i in order:
        losses[i].backward()
    assert all(right_or_unknown(log) for log in logs)


def test_an_old_graph_kept_by_a_new_one(mt):
    """A recurrent state that is never detached."""
    log = []
    cell = pair(leaf(lambda m, x: on_grad(mt, log, x.sin())), leaf())
    state = grad_input()
    for _ in range(300):
        state = cell(state)
    state.sum().backward()
    assert len(log) == 300
    assert {r.parents for r in log} == {frozenset({"Global", "Mod", "Mod.a"})}
    assert look(mt).parents == {"Global"}
