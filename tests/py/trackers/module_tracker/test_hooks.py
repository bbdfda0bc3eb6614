"""User hooks of ModTracker: their arguments, when they are called, and how often. Containers are tested in
test_hooks_containers.py, hooks that raise in test_exceptions.py."""

import gc

from helpers import Events, assert_paired, at, grad_input, keep, leaf, look, make, pair

import torch
from torch import nn


def test_order_of_all_four(mt):
    events = Events(mt).register()
    mod = make("Mod", lambda m, x: m.a(x).sin(), a=leaf())
    mod(grad_input() * 1).sum().backward()
    assert events.log == [
        ("pre_fw", "Mod", True, False),
        ("pre_fw", "Mod.a", True, False),
        ("post_fw", "Mod.a", True, False),
        ("post_fw", "Mod", True, False),
        ("pre_bw", "Mod", True, True),
        ("pre_bw", "Mod.a", True, True),
        ("post_bw", "Mod", True, True),
        ("post_bw", "Mod.a", True, True),
    ]


def test_where_hooks_find_themselves(mt):
    seen = []
    mt.register_user_hooks(
        lambda m, i: seen.append(look(mt)),
        lambda m, i, o: seen.append(look(mt)),
        lambda m, g: seen.append(look(mt)),
        lambda m, g: seen.append(look(mt)),
    )
    keep(leaf())(grad_input() * 1).sum().backward()
    assert seen == [at("forward", "Leaf")] * 2 + [at("backward", "Leaf")] * 2


def test_in_a_chain_the_outer_module_is_active_too(mt):
    seen = []
    mt.register_user_hooks(
        pre_bw_hook=lambda m, g: seen.append((mt.get_known_fqn(m), mt.parents)),
        post_bw_hook=lambda m, g: seen.append((mt.get_known_fqn(m), mt.parents)),
    )
    keep(pair(leaf(), leaf()))(grad_input() * 1).sum().backward()
    assert len(seen) == 6
    for fqn, parents in seen:
        assert {"Global", "Mod", fqn} <= parents


def test_what_forward_hooks_get(mt):
    events = Events(mt).register("pre_fw", "post_fw")
    mod = make("Mod", lambda m, x, y, k=0: (x, y, k))
    mod(1, "two", k=3)
    assert events.args == [("pre_fw", "Mod", ((1, "two"),)), ("post_fw", "Mod", ((1, "two"), (1, "two", 3)))]


def test_what_backward_hooks_get(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    x = grad_input() * 1
    keep(leaf(lambda m, x: x * 3))(x).backward(torch.full_like(x, 5))
    (_, _, (pre,)), (_, _, (post,)) = events.args
    assert isinstance(pre, tuple) and len(pre) == 1
    assert torch.equal(pre[0], torch.full_like(x, 5))
    assert isinstance(post, tuple) and len(post) == 1 and len(post[0]) == 1
    assert torch.equal(post[0][0], torch.full_like(x, 15))


def test_gradients_of_several_inputs_come_together(mt):
    events = Events(mt).register("post_bw")
    a, b = grad_input() * 1, grad_input() * 1
    keep(leaf(lambda m, a, flag, b: a * 2 + b * 3))(a, True, b).sum().backward()
    assert events.names() == [("post_bw", "Leaf")]
    (grads,) = events.args[0][2][0]
    assert [g.mean().item() for g in grads] == [2, 3]


def test_an_input_that_is_not_used(mt):
    events = Events(mt).register()
    a, b = grad_input() * 1, grad_input() * 1
    keep(leaf(lambda m, a, b: a * 2))(a, b).sum().backward()
    assert_paired(events)
    (grads,) = events.args[-1][2][0]
    assert grads[0].mean().item() == 2


def test_no_input_requires_grad(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    keep(nn.Linear(4, 4))(torch.ones(1, 4)).sum().backward()
    assert events.log == [("pre_bw", "Linear", True, True), ("post_bw", "Linear", True, True)]
    assert events.args[1][2] == ((),)


def test_without_input_gradients_post_bw_comes_at_the_end_in_reverse_order(mt):
    events = Events(mt).register("pre_bw", "post_bw")

    def body(m, x):
        return m.a(x) + m.b(x) + m.c(x)

    keep(make("Mod", body, a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4)))(torch.ones(1, 4)).sum().backward()
    assert_paired(events)
    assert events.names("post_bw") == [("post_bw", n) for n in ("Mod.c", "Mod.b", "Mod.a", "Mod")]
    assert events.names()[-4:] == events.names("post_bw")


def test_an_input_whose_gradient_never_comes(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    weight = grad_input()
    keep(leaf(lambda m, x: weight * 2))(grad_input() * 1).sum().backward()
    assert events.names() == [("pre_bw", "Leaf"), ("post_bw", "Leaf")]
    assert events.args[1][2] == ((),)


def test_an_output_that_does_not_require_grad(mt):
    events = Events(mt).register()
    x = grad_input() * 1
    (x + keep(leaf(lambda m, x: x.detach()))(x)).sum().backward()
    assert events.names() == [("pre_fw", "Leaf"), ("post_fw", "Leaf")]


def test_a_call_under_no_grad_has_no_backward(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    x = grad_input() * 1
    with torch.no_grad():
        y = keep(leaf())(x)
    (x * y).sum().backward()
    assert events.log == []


def test_a_call_whose_output_is_not_used(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    x = grad_input() * 1
    keep(leaf())(x)
    (x * 2).sum().backward()
    assert events.log == []


def test_a_module_that_passes_its_input_through(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    keep(nn.Identity())(grad_input() * 1).sum().backward()
    assert events.names() == [("pre_bw", "Identity"), ("post_bw", "Identity")]


def test_passing_a_leaf_through(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    keep(nn.Identity())(grad_input()).sum().backward()
    assert events.names() == [("pre_bw", "Identity"), ("post_bw", "Identity")]


def test_passing_through_inside_a_chain(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    keep(nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Dropout(0.0), nn.Linear(4, 4), nn.Identity()))(
        grad_input()
    ).sum().backward()
    assert_paired(events)
    assert events.count("pre_bw") == 6


def test_some_inputs_passed_through(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    a, b = grad_input() * 1, grad_input() * 1
    out, same = keep(leaf(lambda m, a, b: (a * b, b)))(a, b)
    (out + same).sum().backward()
    assert events.names() == [("pre_bw", "Leaf"), ("post_bw", "Leaf")]


def test_a_module_that_returns_its_parameter(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    mod = make("Mod", lambda m: m.p)
    mod.p = nn.Parameter(torch.ones(2))
    (mod() * 2).sum().backward()
    assert events.names() == [("pre_bw", "Mod"), ("post_bw", "Mod")]


def test_one_tensor_given_twice(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    x = grad_input() * 1
    keep(leaf(lambda m, a, b: a * b))(x, x).sum().backward()
    assert events.names() == [("pre_bw", "Leaf"), ("post_bw", "Leaf")]


def test_two_outputs_of_one_call(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    a, b = keep(leaf(lambda m, x: (x * 2, x * 3)))(grad_input() * 1)
    (a + b.sin()).sum().backward()
    assert events.names() == [("pre_bw", "Leaf"), ("post_bw", "Leaf")]


def test_an_output_used_twice(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    y = keep(leaf())(grad_input() * 1)
    (y.sin() + y.cos()).sum().backward()
    assert events.names() == [("pre_bw", "Leaf"), ("post_bw", "Leaf")]


def test_a_module_called_twice_has_two_calls(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    mod = leaf()
    mod(mod(grad_input() * 1)).sum().backward()
    assert_paired(events)
    assert events.count("pre_bw") == events.count("post_bw") == 2


def test_a_graph_walked_twice_has_all_events_twice(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    loss = keep(pair(leaf(), nn.Linear(4, 4)))(grad_input() * 1).sum()
    loss.backward(retain_graph=True)
    first = list(events.log)
    assert_paired(events)
    loss.backward()
    assert events.log == first * 2 and len(first) == 6


def test_a_graph_walked_twice_without_input_gradients(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    loss = keep(pair(nn.Linear(4, 4), nn.Linear(4, 4)))(torch.ones(1, 4)).sum()
    for _ in range(3):
        events.clear()
        loss.backward(retain_graph=True)
        assert_paired(events)
        assert events.count("post_bw") == 3


def test_two_graphs_walked_in_turn(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    mods = [make(name, lambda m, x: x * 2) for name in ("One", "Two")]
    losses = [mod(grad_input()).sum() for mod in mods]
    losses[1].backward()
    losses[0].backward()
    assert events.names() == [("pre_bw", "Two"), ("post_bw", "Two"), ("pre_bw", "One"), ("post_bw", "One")]


def test_a_backward_of_another_graph_fires_nothing(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    kept = keep(nn.Linear(4, 4))(torch.ones(1, 4))
    (grad_input() * 2).sum().backward()
    assert events.log == []
    kept.sum().backward()
    assert events.names() == [("pre_bw", "Linear"), ("post_bw", "Linear")]


def test_a_leaf_used_in_many_steps_fires_only_for_the_last(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    mod, x = pair(leaf(), leaf()), grad_input()
    for _ in range(5):
        events.clear()
        mod(x).sum().backward()
        assert_paired(events)
        assert events.count("post_bw") == 3


def test_a_leaf_used_in_forwards_that_were_thrown_away(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    mod, x = leaf(), grad_input()
    for _ in range(5):
        mod(x)
    mod(x).sum().backward()
    assert events.names() == [("pre_bw", "Leaf"), ("post_bw", "Leaf")]


def test_gradients_without_accumulation(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    x = grad_input()
    torch.autograd.grad(keep(pair(leaf(), leaf()))(x).sum(), x)
    assert_paired(events)
    assert events.count("pre_bw") == 3


def test_backward_that_stops_inside_a_module(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    mod = pair(nn.Linear(4, 4), nn.Linear(4, 4))
    mod(grad_input()).sum().backward(inputs=[mod.b.weight])
    assert_paired(events)
    assert events.count("pre_bw", "Mod.b") == 1 and events.count("pre_bw", "Mod.a") == 0


def test_create_graph_keeps_pairs(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    x = grad_input()
    (g,) = torch.autograd.grad(keep(pair(leaf(lambda m, x: x.sin()), leaf()))(x).sum(), x, create_graph=True)
    assert_paired(events)
    first = events.count("pre_bw")
    g.square().sum().backward()
    assert first == 3
    assert_paired(events)


def test_a_dead_module_is_none(mt):
    got = []
    mt.register_user_hooks(pre_bw_hook=lambda m, g: got.append(m), post_bw_hook=lambda m, g: got.append(m))
    mod = pair(leaf(), leaf())
    loss = mod(grad_input()).sum()
    del mod
    gc.collect()
    loss.backward()
    assert got == [None] * 6


def test_modules_that_write_into_their_input(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    mod = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True))
    mod(grad_input()).sum().backward()
    assert_paired(events)
    assert events.count("pre_bw") == 5


def test_a_module_that_writes_into_a_part(mt):
    events = Events(mt).register("pre_bw", "post_bw")

    def body(m, x):
        x = x.clone()
        x[:, 0] = x[:, 1] * 2
        return x

    keep(leaf(body))(grad_input() * 1).sum().backward()
    assert events.names() == [("pre_bw", "Leaf"), ("post_bw", "Leaf")]


def test_one_tensor_passed_through_very_many_modules(mt):
    events = Events(mt).register("pre_bw", "post_bw")
    mod = nn.Sequential(*[nn.Identity() for _ in range(100)])
    mod(grad_input() * 1).sum().backward()
    assert_paired(events)
    assert events.count("pre_bw") == 101
