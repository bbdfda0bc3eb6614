"""The owner of a block is the module whose forward or backward allocated it; of a parameter, its gradient and its
optimizer state it is the module that has the parameter. All else is owned by "Global"."""

import pytest
from helpers import Boom, leaf, make, mlp, pair
from memory_helpers import CPU, bytes_of, every_source, nonzero, now, of_module, parameter_bytes, reading, wrong_sums
from modscope import MemTracker

import torch
from torch import nn


def owners(mt, category, type="current"):
    """{fqn: bytes} of one category, of the modules that hold any."""
    found = mt.get_module_snapshot(type).get(CPU, {})
    return {fqn: figures[category] for fqn, figures in found.items() if figures[category]}


@every_source
def test_a_block_belongs_to_the_innermost_module(source):
    kept = []

    def make_block(size):
        return lambda m, x: kept.append(torch.empty(size)) or x

    inner = make("Inner", make_block(1))
    middle = make("Middle", lambda m, x: kept.append(torch.empty(2)) or m.inner(x), inner=inner)
    top = make("Top", lambda m, x: m.middle(x) if kept.append(torch.empty(4)) is None else x, middle=middle)
    with MemTracker(source) as mt:
        kept.append(torch.empty(8))
        top(1)
        assert owners(mt, "Activation") == {"Top": 16, "Top.middle": 8, "Top.middle.inner": 4}
    assert owners(mt, "Other") == {"Global": 32}


@every_source
def test_a_block_keeps_its_owner_when_it_is_handed_on(source):
    mod = pair(leaf(lambda m, x: torch.ones(10)), leaf(lambda m, x: x))
    with MemTracker(source) as mt:
        out = mod(1)
        assert owners(mt, "Activation") == {"Mod.a": 40}
    del out


@every_source
def test_what_is_left_out_of_a_module_snapshot_holds_nothing(source):
    mod, x = pair(nn.Linear(4, 4), nn.Identity()), torch.randn(2, 4)
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        mod(x)
        assert set(mt.get_module_snapshot()[CPU]) == {"Mod.a"}
        assert set(mt.get_module_snapshot(children=True)[CPU]) == {"Mod", "Mod.a"}


@every_source
def test_children_are_added_by_dotted_names(source):
    """`Mod.a.1` is in `Mod.a`; `Mod.a1` is not."""
    mod = make("Mod", lambda m, x: m.a1(m.a(x)), a=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), a1=nn.Linear(4, 4))
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt, torch.no_grad():
        mod(torch.randn(2, 4))
        tree = mt.get_module_snapshot(children=True)[CPU]
        assert {fqn: figures["Parameter"] for fqn, figures in tree.items()} == {
            "Mod": 240,
            "Mod.a": 160,
            "Mod.a.0": 80,
            "Mod.a.1": 80,
            "Mod.a1": 80,
        }


@every_source
def test_a_prefix_that_is_no_called_module_has_its_subtree(source):
    """A ModuleList is never called."""
    mod = make(
        "Mod", lambda m, x: m.blocks[1](m.blocks[0](x)), blocks=nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    )
    mt = MemTracker(source)
    with mt, torch.no_grad():
        mod(torch.randn(2, 4))
        assert of_module(mt, "Mod.blocks", children=True)["Parameter"] == 160
        assert of_module(mt, "Mod.blocks")["Total"] == 0


@every_source
def test_parameters_of_modules_that_are_never_called(source):
    mod = nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 1, 8)
    with MemTracker(source) as mt:
        mod(x, x, x)
        assert of_module(mt, "MultiheadAttention.out_proj")["Parameter"] == parameter_bytes(mod.out_proj)
        assert of_module(mt, "MultiheadAttention")["Parameter"] == bytes_of(mod.in_proj_weight, mod.in_proj_bias)


@every_source
def test_gradients_belong_to_the_owner_of_the_parameter(source):
    """Even where another module uses it."""
    lender = nn.Linear(4, 4, bias=False)
    mod = make("Mod", lambda m, x: m.user(x, m.lender.weight), lender=lender, user=make("User", lambda m, x, w: x @ w))
    with MemTracker(source) as mt:
        mod(torch.randn(2, 4)).sum().backward()
        assert owners(mt, "Gradient") == owners(mt, "Parameter") == {"Mod.lender": 64}


@every_source
def test_backward_belongs_to_the_module_that_made_the_node(source):
    seen = []
    mt = MemTracker(source)

    def body(m, x):
        y = x.sigmoid()
        if y.requires_grad:
            x.register_hook(lambda grad: seen.append(owners(mt, "Temp")))  # the sigmoid has just run
        return y

    mod = make("Mod", lambda m, x: m.b(m.a(x)), a=leaf(lambda m, x: x * 2), b=leaf(body))
    x, gradient = torch.randn(8, 8, requires_grad=True), torch.ones(8, 8)
    with mt:
        mod(x).backward(gradient)
    assert seen == [{"Mod.b": 256}]


@every_source
def test_a_module_called_twice_holds_both(source):
    mod = make("Mod", lambda m, x: [m.a(x), m.a(x), m.a(x)], a=leaf(lambda m, x: x + 1))
    with MemTracker(source) as mt:
        out = mod(torch.zeros(10))
        assert owners(mt, "Activation")["Mod.a"] == 120
        del out[1:]
        assert owners(mt, "Activation")["Mod.a"] == 40


@every_source
def test_two_models_of_one_class_stay_two(source):
    one, two = nn.Linear(4, 4), nn.Linear(4, 8)
    with MemTracker(source) as mt, torch.no_grad():
        one(torch.zeros(1, 4)), two(torch.zeros(1, 4))
        assert now(mt, "Parameter") == 80 + 160
        assert wrong_sums(mt) == []


@every_source
def test_after_an_error_nobody_is_running(source):
    def throw(m, x):
        raise Boom

    mod = pair(leaf(), leaf(throw))
    with MemTracker(source) as mt:
        with pytest.raises(Boom):
            mod(torch.zeros(4))
        made = torch.empty(10)
        assert owners(mt, "Other")["Global"] == 40
    del made


@every_source
def test_after_an_error_in_backward_nobody_is_running(source):
    def throw(grad):
        raise Boom

    def body(m, x):
        y = x * 2
        y.register_hook(throw)
        return y

    mod = pair(leaf(body), leaf())
    with MemTracker(source) as mt:
        with pytest.raises(Boom):
            mod(torch.zeros(4, requires_grad=True)).sum().backward()
        made = torch.empty(10)
        assert of_module(mt, "Global")["Other"] == 40
    del made


@every_source
def test_sums_hold_at_every_point_of_training(source):
    mod = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), mlp(2, 2 * 36), nn.Linear(72, 3))
    opt = torch.optim.Adam(mod.parameters())
    x = torch.randn(4, 1, 8, 8)
    mt = MemTracker(source)
    mt.track_external(mod, opt, x)
    wrong = []
    for part in mod.modules():
        part.register_forward_hook(lambda *args: wrong.extend(wrong_sums(mt)))
    with mt:
        for _ in range(2):
            loss = mod(x).square().sum()
            loss.register_hook(lambda grad: wrong.extend(wrong_sums(mt)))
            loss.backward()
            wrong += wrong_sums(mt)
            opt.step()
            wrong += wrong_sums(mt)
            opt.zero_grad()
    wrong += wrong_sums(mt)
    assert wrong == []


@every_source
def test_a_call_without_a_module_object(source):
    """Functional code is Global's, forward and backward."""
    with MemTracker(source) as mt:
        w = torch.randn(4, 4, requires_grad=True)
        out = torch.nn.functional.linear(torch.randn(2, 4), w)
        out.sum().backward()
        assert set(mt.get_module_snapshot()[CPU]) == {"Global"}
        assert nonzero(reading(mt))["Total"] == bytes_of(w, out, w.grad)
