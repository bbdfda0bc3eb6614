"""The names of modules: fqns, parents, and the mapping from fqn to module."""

import copy
import gc
import pickle
import weakref
from collections.abc import Mapping

import pytest
from helpers import at, grad_input, leaf, look, make, on_grad, pair

import torch
from torch import nn


def tell(t, log):
    return leaf(lambda m, x: log.append(t.current) or x)


def test_a_root_has_its_class_name(t):
    log = []
    make("Solo", lambda m, x: log.append(t.current))(1)
    assert log == ["Solo"]


def test_containers_that_are_not_called_are_in_the_name_only(t):
    log = []
    mod = make(
        "Mod",
        lambda m, x: [m.d["k"](x), m.l[1](x), m.s[0][0](x)],
        d=nn.ModuleDict({"k": tell(t, log)}),
        l=nn.ModuleList([leaf(), leaf(lambda m, x: log.append(look(t)))]),
        s=nn.Sequential(nn.Sequential(tell(t, log))),
    )
    mod(1)
    assert log == ["Mod.d.k", at("forward", "Mod", "Mod.l.1"), "Mod.s.0.0"]


def test_containers_that_are_called_are_on_the_stack(t):
    log = []
    mod = make("Mod", lambda m, x: m.s(x), s=nn.Sequential(leaf(), leaf(lambda m, x: log.append(look(t)))))
    mod(torch.ones(1))
    assert log == [at("forward", "Mod", "Mod.s", "Mod.s.1")]


def test_every_descendant_is_known_once_the_root_ran(t):
    mod = make("Mod", lambda m, x: m.a(x), a=leaf(), unused=pair(leaf(), leaf()), deep=nn.ModuleList([leaf()]))
    assert t.get_known_fqn(mod) is None and t.get_known_fqn(mod.a) is None
    mod(torch.ones(1))
    assert t.get_known_fqn(mod) == "Mod"
    assert t.get_known_fqn(mod.a) == "Mod.a"
    assert t.get_known_fqn(mod.unused) == "Mod.unused"
    assert t.get_known_fqn(mod.unused.b) == "Mod.unused.b"
    assert t.get_known_fqn(mod.deep[0]) == "Mod.deep.0"


def test_unknown_modules_have_no_fqn(t):
    leaf()(torch.ones(1))
    assert t.get_known_fqn(leaf()) is None


def test_a_module_held_by_two_parents_is_named_under_the_one_that_runs_it(t):
    log = []
    shared = leaf(lambda m, x: log.append((look(t), t.get_known_fqn(m))) or x)
    one = make("One", lambda m, x: m.p(x), p=shared)
    two = make("Two", lambda m, x: m.q(x), q=shared)
    mod = make("Mod", lambda m, x: m.two(m.one(x)), one=one, two=two)
    mod(torch.ones(1))
    mod(torch.ones(1))
    first = (at("forward", "Mod", "Mod.one", "Mod.one.p"), "Mod.one.p")
    second = (at("forward", "Mod", "Mod.two", "Mod.two.q"), "Mod.two.q")
    assert log == [first, second] * 2


def test_backward_of_a_shared_module_remembers_the_parent(t):
    log = []
    shared = leaf(lambda m, x: on_grad(t, log, x * 2))
    one = make("One", lambda m, x: m.p(x), p=shared)
    two = make("Two", lambda m, x: m.q(x), q=shared)
    make("Mod", lambda m, x: m.two(m.one(x)), one=one, two=two)(grad_input()).sum().backward()
    assert [r.current for r in log] == ["Mod.two.q", "Mod.one.p"]


def test_roots_that_share_a_module(t):
    log = []
    shared = tell(t, log)
    one = make("One", lambda m, x: m.p(x), p=shared)
    two = make("Two", lambda m, x: m.q(x), q=shared)
    for mod in (one, two, one):
        mod(1)
    assert log == ["One.p", "Two.q", "One.p"]


def test_one_parent_that_holds_a_module_twice_uses_the_first_name(t):
    log = []
    shared = tell(t, log)
    mod = make("Mod", lambda m, x: m.z(m.a(x)), z=shared, a=shared)
    mod(1)
    assert log == ["Mod.z", "Mod.z"]
    assert t.get_known_fqn(shared) == "Mod.z"


def test_the_nearest_running_owner_gives_the_name(t):
    log = []
    shared = tell(t, log)
    inner = make("Inner", lambda m, x: m.mine(x), mine=shared)
    mod = make("Mod", lambda m, x: m.inner(x), theirs=shared, inner=inner)
    mod(1)
    assert log == ["Mod.inner.mine"]


def test_a_known_module_called_directly_keeps_its_fqn(t):
    log = []
    mod = pair(leaf(), leaf(lambda m, x: log.append(look(t)) or x))
    mod(torch.ones(1))
    mod.b(torch.ones(1))
    assert log[1].current == "Mod.b"
    assert log[1].stack[-1] == "Mod.b" and "Mod.a" not in log[1].parents


def test_a_known_module_called_by_a_sibling_keeps_its_fqn(t):
    log = []
    a = leaf(lambda m, x: log.append(look(t)) or x)
    b = leaf(lambda m, x: m.friend[0](x))
    b.friend = [a]
    make("Mod", lambda m, x: m.b(x), a=a, b=b)(torch.ones(1))
    assert log[0].current == "Mod.a"
    assert log[0].parents == {"Global", "Mod", "Mod.b", "Mod.a"}


def test_a_stranger_inside_a_module_is_a_root(t):
    log = []
    stranger = make("Stranger", lambda m, x: log.append(look(t)))
    make("Mod", lambda m, x: stranger(x))(1)
    assert log == [at("forward", "Mod", "Stranger")]


def test_a_module_added_after_the_first_call(t):
    log = []
    mod = make("Mod", lambda m, x: [c(x) for c in m.children()], a=leaf())
    mod(1)
    mod.later = tell(t, log)
    mod(1)
    assert log == ["Mod.later"]


def test_a_module_put_in_anothers_place(t):
    log = []
    mod = make("Mod", lambda m, x: m.a(x), a=leaf())
    mod(1)
    mod.a = tell(t, log)
    mod(1)
    assert log == ["Mod.a"]
    assert t.modules["Mod.a"] is mod.a


def test_a_module_that_moves_within_its_parent_keeps_its_name(t):
    log = []
    child = tell(t, log)
    mod = make("Mod", lambda m, x: [c(x) for c in m.children()], a=child)
    mod(1)
    del mod.a
    mod.b = child
    mod(1)
    assert log == ["Mod.a", "Mod.a"]


def test_two_roots_of_one_class(t):
    log = []
    mods = [make("Same", lambda m, x: m.a(x), a=tell(t, log)) for _ in range(2)]
    for mod in mods:
        mod(1)
    assert log == ["Same.a", "Same.a"]
    assert t.get_known_fqn(mods[0]) == t.get_known_fqn(mods[1]) == "Same"


@pytest.mark.parametrize("name", ["Ünï", "Global", "unknown", "x" * 5000])
def test_odd_names(t, name):
    log = []
    make(name, lambda m, x: m.ß(x), ß=tell(t, log))(1)
    assert log == [f"{name}.ß"]


def test_a_child_that_is_none(t):
    log = []
    mod = make("Mod", lambda m, x: m.a(x), a=tell(t, log))
    mod.register_module("nothing", None)
    mod(1)
    assert log == ["Mod.a"]


def test_the_private_name_function(t):
    mod = pair(leaf(), leaf())
    assert t._get_mod_name(mod) == "Mod"
    assert t.get_known_fqn(mod) == "Mod"
    assert t._get_mod_name(mod.b) == t.get_known_fqn(mod.b) == "Mod.b"
    mod(torch.ones(1))
    assert t._get_mod_name(mod.a) == "Mod.a"


def test_the_private_name_function_inside_the_call(t):
    log = []
    shared = leaf(lambda m, x: log.append(t._get_mod_name(m)))
    make("One", lambda m, x: m.p(x), p=shared)(1)
    make("Two", lambda m, x: m.q(x), q=shared)(1)
    assert log == ["One.p", "Two.q"]


def test_modules_maps_fqns_to_modules(t):
    mod = pair(leaf(), nn.Sequential(leaf()))
    mod(torch.ones(1))
    assert isinstance(t.modules, Mapping)
    assert t.modules["Mod"] is mod
    assert t.modules["Mod.b.0"] is mod.b[0]
    assert {"Mod", "Mod.a", "Mod.b", "Mod.b.0"} <= set(t.modules)
    assert len(t.modules) == len(list(t.modules))
    assert t.modules.get("Mod.c") is None and "Mod.c" not in t.modules
    with pytest.raises(KeyError):
        t.modules["Global"]


def test_modules_cannot_be_written(t):
    mod = leaf()
    mod(torch.ones(1))
    with pytest.raises(TypeError):
        t.modules["Leaf"] = mod
    with pytest.raises(TypeError):
        del t.modules["Leaf"]
    with pytest.raises(AttributeError):
        t.modules = {}


def test_modules_does_not_keep_modules_alive(t):
    mod = pair(leaf(), leaf())
    mod(torch.ones(1))
    view = t.modules
    gone = weakref.ref(mod.a)
    del mod
    gc.collect()
    assert gone() is None
    assert "Mod" not in view and "Mod.a" not in t.modules
    with pytest.raises(KeyError):
        t.modules["Mod.a"]
    assert "Mod.a" not in list(t.modules)


def test_modules_inside_a_call(t):
    log = []
    mod = make("Mod", lambda m, x: log.append(t.modules[t.current] is m))
    mod(1)
    assert log == [True]


def test_nothing_is_written_into_modules(t):
    mod = pair(nn.Linear(4, 4), nn.Linear(4, 4))
    before = [set(vars(m)) for m in mod.modules()]
    mod(grad_input()).sum().backward()
    assert [set(vars(m)) for m in mod.modules()] == before
    assert list(mod.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_copies_and_pickles_of_tracked_modules(t):
    mod = nn.Sequential(nn.Linear(4, 4))
    mod(torch.ones(1, 4))
    for again in (copy.deepcopy(mod), pickle.loads(pickle.dumps(mod))):
        assert t.get_known_fqn(again) is None
        again(torch.ones(1, 4))
        assert t.get_known_fqn(again[0]) == "Sequential.0"


def test_a_new_module_at_a_dead_ones_address_is_not_mistaken(t):
    for _ in range(200):
        mod = make("Mod", lambda m, x: x, a=leaf())
        mod(1)
        del mod
        stranger = leaf()
        assert t.get_known_fqn(stranger) is None


def test_a_child_that_holds_its_parent(t):
    log = []
    child = tell(t, log)
    mod = make("Mod", lambda m, x: m.a(x), a=child)
    child.up = mod
    mod(1)
    assert log == ["Mod.a"]
    assert t.get_known_fqn(mod) == "Mod"


def test_many_modules_live_and_die_inside_a_call(t):
    log = []

    def body(m, x):
        for _ in range(300):
            nn.Sequential(nn.ReLU(), nn.ReLU())(x)
        return m.a(x)

    mod = make("Mod", body, a=leaf(lambda m, x: log.append(look(t)) or x))
    for _ in range(3):
        mod(torch.ones(1))
    assert log == [at("forward", "Mod", "Mod.a")] * 3


def test_before_anything_ran(tracker_type):
    t = tracker_type()
    assert len(t.modules) == 0 and list(t.modules) == []
    assert t.get_known_fqn(leaf()) is None


def test_parameters_that_were_put_in_later(t):
    log = []
    mod = pair(nn.Linear(4, 4), nn.Linear(4, 4))
    mod(grad_input())
    mod.a.weight = nn.Parameter(torch.ones(4, 4))
    on_grad(t, log, mod.a.weight)
    mod(grad_input()).sum().backward()
    assert log == [at("backward", "Mod", "Mod.a")]
