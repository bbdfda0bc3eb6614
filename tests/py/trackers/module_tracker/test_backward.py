"""A tracker's attributes while backward nodes run: the calls that created the node, in any thread and at any
later time. Checkpointing, threads and old graphs are tested in other files."""

from collections import Counter

import pytest
from helpers import NOWHERE, at, grad_input, leaf, look, make, needs_interception, on_grad, pair

import torch
from torch import nn


class Double(torch.autograd.Function):
    """Doubles its input; its backward calls the given function."""

    @staticmethod
    def forward(ctx, x, tell):
        ctx.tell = tell
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.tell()
        return grad * 2, None


def double(t, log):
    return leaf(lambda m, x: on_grad(t, log, x * 2))


def test_each_node_is_in_the_call_that_made_it(t):
    log = []
    pair(double(t, log), double(t, log))(grad_input()).sum().backward()
    assert log == [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")]
    assert look(t) == NOWHERE


def test_nodes_made_between_children_are_the_parents(t):
    log = []

    def body(m, x):
        x = on_grad(t, log, x * 3)
        x = m.a(x)
        return on_grad(t, log, x.sin())

    make("Mod", body, a=double(t, log))(grad_input()).sum().backward()
    mod = at("backward", "Mod")
    assert log == [mod, at("backward", "Mod", "Mod.a"), mod]


def test_nodes_made_outside_any_call(t):
    log = []
    y = leaf()(on_grad(t, log, grad_input() * 2))
    loss = on_grad(t, log, y.sum())
    loss.backward()
    assert [r.parents for r in log] == [{"Global"}] * 2
    assert all(r.is_bw and r.phase == "backward" and r.current == "Global" for r in log)


def test_nodes_made_before_tracking(tracker_type):
    log = []
    tracker = tracker_type()
    y = pair(leaf(), leaf(lambda m, x: on_grad(tracker, log, x * 2)))(grad_input())
    with tracker:
        leaf()(y).sum().backward()
    assert [r.parents for r in log] == [{"Global"}]


def test_inside_a_custom_function(t):
    log = []
    mod = leaf(lambda m, x: Double.apply(x, lambda: log.append(look(t))))
    pair(leaf(), mod)(grad_input()).sum().backward()
    assert log == [at("backward", "Mod", "Mod.b")]


def test_gradient_hooks_of_a_parameter_are_in_its_owner(t):
    log = []
    mod = pair(nn.Linear(4, 4), nn.Linear(4, 4))
    for layer in (mod.a, mod.b):
        on_grad(t, log, layer.weight)
        layer.bias.register_post_accumulate_grad_hook(lambda p: log.append(look(t)))
    mod(grad_input()).sum().backward()
    b, a = at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")
    assert Counter(log) == Counter([b, b, a, a])


def test_a_parameter_of_a_module_that_is_never_called(t):
    log = []
    mod = make("Mod", lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(4, 2, batch_first=True))
    on_grad(t, log, mod.a.out_proj.weight)
    on_grad(t, log, mod.a.in_proj_weight)
    mod(grad_input(2, 3, 4)).sum().backward()
    by_owner = {r.current: r for r in log}
    assert set(by_owner) == {"Mod.a", "Mod.a.out_proj"}
    assert by_owner["Mod.a"] == at("backward", "Mod", "Mod.a")
    assert by_owner["Mod.a.out_proj"].parents == {"Global", "Mod", "Mod.a", "Mod.a.out_proj"}


def test_a_parameter_of_the_root(t):
    log = []
    mod = nn.Linear(4, 4)
    on_grad(t, log, mod.weight)
    mod(torch.ones(1, 4)).sum().backward()
    assert log == [at("backward", "Linear")]


def test_a_leaf_that_is_nobodys_parameter(t):
    log = []
    x = grad_input()
    on_grad(t, log, x)
    x.register_post_accumulate_grad_hook(lambda p: log.append(look(t)))
    pair(leaf(), leaf())(x).sum().backward()
    assert [r.parents for r in log] == [{"Global"}] * 2
    assert all(r.is_bw for r in log)


def test_sibling_branches_are_not_mixed(t):
    log = []

    def body(m, x):
        return m.a(x) + m.b(x) * m.c(x)

    make("Mod", body, a=double(t, log), b=double(t, log), c=double(t, log))(grad_input()).sum().backward()
    assert Counter(log) == Counter(at("backward", "Mod", f"Mod.{n}") for n in "abc")


def test_a_module_called_twice(t):
    log = []
    make("Mod", lambda m, x: m.a(m.a(x)), a=double(t, log))(grad_input()).sum().backward()
    assert log == [at("backward", "Mod", "Mod.a")] * 2


def test_a_module_that_calls_itself(t):
    log = []

    def body(m, x, n):
        x = on_grad(t, log, x * 2)
        return m(x, n - 1) if n else x

    make("Self", body)(grad_input(), 3).sum().backward()
    assert len(log) == 4
    assert {r.parents for r in log} == {frozenset({"Global", "Self"})}


def test_a_graph_walked_twice(t):
    log = []
    loss = pair(double(t, log), double(t, log))(grad_input()).sum()
    loss.backward(retain_graph=True)
    first = list(log)
    loss.backward()
    assert log == first * 2 and first == [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")]


def test_two_graphs_walked_in_turn(t):
    log = []
    one = make("One", lambda m, x: m.a(x), a=double(t, log))
    two = make("Two", lambda m, x: m.a(x), a=double(t, log))
    losses = [mod(grad_input()).sum() for mod in (one, two, one, two)]
    for i in (0, 3, 2, 1):
        losses[i].backward()
    assert [r.current for r in log] == ["One.a", "Two.a", "One.a", "Two.a"]


def test_one_backward_of_two_graphs(t):
    log = []
    one = make("One", lambda m, x: m.a(x), a=double(t, log))
    two = make("Two", lambda m, x: m.a(x), a=double(t, log))
    torch.autograd.backward([one(grad_input()).sum(), two(grad_input()).sum()])
    assert sorted(r.stack for r in log) == [("One", "One.a"), ("Two", "Two.a")]


def test_gradients_without_accumulation(t):
    log = []
    x = grad_input()
    y = pair(double(t, log), double(t, log))(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert log == [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")]
    assert torch.equal(g, torch.full_like(x, 4))


def test_backward_to_some_inputs(t):
    log = []
    mod = pair(nn.Linear(4, 4), double(t, log))
    y = mod(torch.ones(1, 4))
    y.sum().backward(inputs=[mod.a.weight])
    assert log == [at("backward", "Mod", "Mod.b")]
    assert mod.a.bias.grad is None


def test_in_place_operations(t):
    log = []

    def body(m, x):
        x = on_grad(t, log, x * 2)
        return m.a(x)

    make("Mod", body, a=leaf(lambda m, x: on_grad(t, log, x.relu_())))(grad_input()).sum().backward()
    assert log == [at("backward", "Mod", "Mod.a"), at("backward", "Mod")]


def test_backward_inside_a_forward(t):
    log = []

    def body(m, x):
        inner = m.a(x.detach().requires_grad_())
        inner.sum().backward()
        log.append(look(t))
        return x

    mod = make("Mod", body, a=double(t, log), b=leaf())
    make("Top", lambda m, x: m.mod(x), mod=mod)(grad_input())
    assert log[0].parents == {"Global", "Top", "Top.mod", "Top.mod.a"}
    assert (log[0].phase, log[0].is_bw, log[0].current) == ("backward", True, "Top.mod.a")
    assert log[1] == at("forward", "Top", "Top.mod")


def test_backward_of_other_modules_inside_a_forward(t):
    log = []
    other = make("Other", lambda m, x: m.a(x), a=double(t, log))(grad_input()).sum()
    make("Mod", lambda m, x: other.backward())(1)
    assert log[0].parents == {"Global", "Mod", "Other", "Other.a"}
    assert log[0].current == "Other.a"


@needs_interception
def test_backward_inside_a_backward(t):
    log = []
    inner = make("Inner", lambda m, x: m.a(x), a=double(t, log))

    def tell():
        log.append(look(t))
        with torch.enable_grad():
            inner(grad_input()).sum().backward()
        log.append(look(t))

    make("Outer", lambda m, x: Double.apply(x, tell))(grad_input()).sum().backward()
    assert log[0] == log[2] == at("backward", "Outer")
    assert log[1].parents == {"Global", "Outer", "Inner", "Inner.a"}
    assert log[1].current == "Inner.a"


def test_a_module_called_from_a_gradient_hook(t):
    log = []
    other = make("Other", lambda m, x: log.append(look(t)) or x)
    x = grad_input()

    def body(m, x):
        y = x * 2
        y.register_hook(lambda g: other(g))
        return y

    make("Mod", body)(x).sum().backward()
    assert log[0].is_bw and log[0].current == "Other"
    assert {"Global", "Other"} <= log[0].parents


def test_first_pass_with_create_graph(t):
    log = []
    x = grad_input()
    y = pair(double(t, log), double(t, log))(x)
    torch.autograd.grad(y.sum(), x, create_graph=True)
    assert log == [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")]


@needs_interception
def test_double_backward_is_in_the_call_of_the_first(t):
    log = []

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return on_grad(t, log, grad * 3 * x * x)

    x = grad_input()
    y = pair(leaf(Cube_body := (lambda m, x: Cube.apply(x))), leaf(Cube_body))(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert log == []
    g.sum().backward()
    assert {r.stack for r in log} == {("Mod", "Mod.a"), ("Mod", "Mod.b")}


def test_double_backward_is_never_wrong(t):
    log = []
    x = grad_input()
    mod = make("Mod", lambda m, x: m.a(x).sin(), a=leaf(lambda m, x: on_grad(t, log, x.sin())))
    (g,) = torch.autograd.grad(mod(x).sum(), x, create_graph=True)
    log.clear()
    on_grad(t, log, g)
    g.square().sum().backward()
    allowed = [{"Global"}, {"Global", "unknown"}, {"Global", "Mod", "Mod.a"}]
    assert log and all(set(r.parents) in allowed for r in log)


def test_final_callbacks_are_still_backward(t):
    log = []

    def tell():
        torch.autograd.Variable._execution_engine.queue_callback(lambda: log.append(t.is_bw))

    make("Mod", lambda m, x: Double.apply(x, tell))(grad_input()).sum().backward()
    assert log == [True]
    assert t.is_bw is False


def test_nothing_runs_backward_under_no_grad(t):
    log = []
    with torch.no_grad():
        y = pair(double(t, log), double(t, log))(grad_input())
    assert not y.requires_grad and log == []


def test_only_part_of_a_model_under_no_grad(t):
    log = []

    def body(m, x):
        with torch.no_grad():
            frozen = m.a(x)
        return m.b(x + frozen)

    make("Mod", body, a=double(t, log), b=double(t, log))(grad_input()).sum().backward()
    assert log == [at("backward", "Mod", "Mod.b")]


def test_a_graph_kept_while_the_tracker_is_away(tracker_type):
    log = []
    with tracker_type() as tracker:
        loss = pair(double(tracker, log), double(tracker, log))(grad_input()).sum()
    leaf()(grad_input()).sum().backward()
    with tracker:
        loss.backward()
    allowed = [{"Global", "Mod", "Mod.a"}, {"Global", "Mod", "Mod.b"}, {"Global", "unknown"}, {"Global"}]
    assert len(log) == 2 and all(set(r.parents) in allowed for r in log)
    assert log[0].current in ("Mod.b", "unknown", "Global") and log[1].current in ("Mod.a", "unknown", "Global")


def test_a_dead_module_still_has_its_name(t):
    log = []
    mod = pair(double(t, log), double(t, log))
    loss = mod(grad_input()).sum()
    del mod
    loss.backward()
    assert log == [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")]


@pytest.mark.parametrize("model", ["rnn", "transformer", "conv"])
def test_every_node_of_real_layers_is_in_the_model(t, model):
    kinds = {
        "rnn": (nn.LSTM(4, 4, batch_first=True), (2, 3, 4)),
        "transformer": (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (2, 3, 4)),
        "conv": (nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.GELU()), (2, 4, 3)),
    }
    inner, shape = kinds[model]
    mod = make("Mod", lambda m, x: m.a(x), a=inner)
    out = mod(grad_input(*shape))
    out = out[0] if isinstance(out, tuple) else out
    log = []
    todo, seen = [out.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen or "AccumulateGrad" in node.name():
            continue
        seen.add(node)
        node.register_prehook(lambda g: log.append(look(t)))
        todo += [n for n, _ in node.next_functions]
    out.sum().backward()
    assert len(log) >= len(seen) - 1 > 0
    assert all({"Global", "Mod", "Mod.a"} <= r.parents and r.phase == "backward" for r in log)


def test_a_tied_parameter_is_its_first_owners(t):
    log = []
    mod = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    mod[1].weight = mod[0].weight
    mod[0].weight.register_post_accumulate_grad_hook(lambda parameter: log.append(t.current))
    mod(grad_input(2)).sum().backward()
    assert log == ["Sequential.0"]
