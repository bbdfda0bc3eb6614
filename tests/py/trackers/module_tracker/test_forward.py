"""A tracker's attributes while modules run forward. test_names.py tests the names."""

import pytest
from helpers import NOWHERE, at, grad_input, leaf, look, make, pair
from modscope import ModTracker, ModuleTracker

import torch
from torch import nn


def test_nothing_runs(t):
    assert t.parents == {"Global"}
    assert t.stack == []
    assert t.current == "Global"
    assert t.phase == "idle"
    assert t.is_bw is False


def test_types_of_answers(t):
    assert type(t.parents) is set
    assert type(t.stack) is list
    assert type(t.current) is str
    assert type(t.phase) is str
    assert type(t.is_bw) is bool


def test_enter_gives_the_tracker(tracker_type):
    tracker = tracker_type()
    with tracker as entered:
        assert entered is tracker


def test_inside_one_module(t):
    seen = []
    make("Solo", lambda m, x: seen.append(look(t)))(1)
    assert seen == [at("forward", "Solo")]


def test_between_and_after_children(t):
    seen = []

    def body(m, x):
        seen.append(look(t))
        x = m.a(x)
        seen.append(look(t))
        x = m.b(x)
        seen.append(look(t))
        return x

    def inner(m, x):
        seen.append(look(t))
        return x

    make("Mod", body, a=leaf(inner), b=leaf(inner))(torch.ones(1))
    mod = at("forward", "Mod")
    assert seen == [mod, at("forward", "Mod", "Mod.a"), mod, at("forward", "Mod", "Mod.b"), mod]
    assert look(t) == NOWHERE


def test_stack_is_outermost_first(t):
    seen = []
    deep = leaf(lambda m, x: seen.append(t.stack))
    for name in "cba":
        deep = make("Deep", lambda m, x, name=name: getattr(m, name)(x), **{name: deep})
    deep(1)
    assert seen == [["Deep", "Deep.a", "Deep.a.b", "Deep.a.b.c"]]


def test_very_deep(t):
    seen = []
    mod = leaf(lambda m, x: seen.append(t.stack))
    for _ in range(150):
        mod = make("Deep", lambda m, x: m.n(x), n=mod)
    mod(1)
    assert seen == [["Deep" + ".n" * i for i in range(151)]]


def test_answers_are_fresh_objects(t):
    def body(m, x):
        t.parents.add("mine")
        t.stack.append("mine")
        t.parents.clear()
        assert t.parents == {"Global", "Solo"}
        assert t.stack == ["Solo"]
        assert t.parents is not t.parents

    make("Solo", body)(1)
    t.parents.clear()
    assert t.parents == {"Global"}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes_do_not_matter(t, mode):
    seen = []
    mod = pair(leaf(), leaf(lambda m, x: seen.append(look(t))))
    with mode():
        mod(torch.ones(2))
    assert seen == [at("forward", "Mod", "Mod.b")]


def test_keyword_and_no_arguments(t):
    seen = []
    mod = make("Any", lambda m, *args, **kwargs: seen.append((args, kwargs, look(t))))
    mod()
    mod(k=1)
    mod(1, 2, k=3)
    here = at("forward", "Any")
    assert seen == [((), {}, here), ((), {"k": 1}, here), ((1, 2), {"k": 3}, here)]


def test_many_calls_keep_answering(t):
    seen = set()
    mod = pair(leaf(), leaf(lambda m, x: seen.add(look(t)) or x))
    for _ in range(3000):
        mod(torch.ones(1))
    assert seen == {at("forward", "Mod", "Mod.b")}


def test_a_call_through_super_is_seen(t):
    seen = []

    class Calls(nn.Module):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

        def forward(self, x, k=1):
            seen.append(look(t))

    for _ in range(50):
        Calls()(1, k=2)
    assert set(seen) == {at("forward", "Calls")} and len(seen) == 50


def test_a_call_of_dunder_call_is_seen(t):
    seen = []
    mod = make("Solo", lambda m, x: seen.append(look(t)))
    for _ in range(50):
        mod.__call__(1)
    assert set(seen) == {at("forward", "Solo")}


def test_a_direct_forward_is_no_call(t):
    seen = []
    make("Solo", lambda m, x: seen.append(look(t))).forward(1)
    assert seen == [NOWHERE]


def test_a_module_that_calls_itself_stays_active(t):
    seen = []

    def body(m, n):
        seen.append(look(t))
        if n:
            m(n - 1)
            seen.append(look(t))

    make("Self", body)(2)
    assert len(seen) == 5
    for reading in seen:
        assert reading.parents == {"Global", "Self"}
        assert reading.current == "Self"
        assert set(reading.stack) == {"Self"}


def test_a_module_that_calls_its_parent_keeps_both_active(t):
    seen = []

    def child(m, n):
        if n:
            m.up[0](n - 1)
        seen.append(t.parents)

    a = leaf(child)
    mod = make("Mod", lambda m, n: m.a(n), a=a)
    a.up = [mod]
    mod(2)
    assert seen == [{"Global", "Mod", "Mod.a"}] * 3


def test_the_users_own_pre_hooks_run_inside_the_call(t):
    seen = []
    mod = leaf()
    mod.register_forward_pre_hook(lambda m, args: seen.append(look(t)))
    mod(torch.ones(1))
    assert seen == [at("forward", "Leaf")]


def test_the_users_hooks_still_change_inputs_and_outputs(t):
    mod = leaf(lambda m, x: x * 2)
    mod.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    mod.register_forward_hook(lambda m, args, out: out + 100)
    assert mod(torch.ones(1)).item() == 104


def test_not_entered_sees_nothing(tracker_type):
    tracker = tracker_type()
    seen = []
    make("Solo", lambda m, x: seen.append(look(tracker)))(1)
    assert seen == [NOWHERE]


def test_left_sees_nothing_more(tracker_type):
    seen = []
    mod = make("Solo", lambda m, x: seen.append(look(tracker)))
    with tracker_type() as tracker:
        mod(1)
    mod(1)
    assert seen == [at("forward", "Solo"), NOWHERE]


def test_entered_inside_a_forward(tracker_type):
    seen = []
    tracker = tracker_type()

    def body(m, x):
        with tracker:
            seen.append(tracker.parents >= {"Global"})
            m.a(x)
        seen.append(look(tracker))

    def inner(m, x):
        seen.append(tracker.current)

    make("Mod", body, a=leaf(inner))(1)
    assert seen[0] is True
    assert seen[1].endswith(("Leaf", ".a"))
    assert seen[2] == NOWHERE
    assert look(tracker) == NOWHERE


def test_left_inside_a_forward(tracker_type):
    seen = []
    tracker = tracker_type()
    tracker.__enter__()

    def body(m, x):
        tracker.__exit__(None, None, None)
        seen.append(look(tracker))
        m.a(x)

    mod = make("Mod", body, a=leaf(lambda m, x: seen.append(look(tracker))))
    mod(1)
    assert seen == [NOWHERE, NOWHERE]
    with tracker:
        make("Solo", lambda m, x: seen.append(look(tracker)))(1)
    assert seen[2] == at("forward", "Solo")


def test_torch_modules(t):
    mod = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mod(torch.randn(2, 3, 8)).sum().backward()
    assert t.get_known_fqn(mod.self_attn.out_proj) == "TransformerEncoderLayer.self_attn.out_proj"


def test_lazy_modules(t):
    seen = []
    mod = pair(nn.LazyLinear(4), leaf(lambda m, x: seen.append(look(t)) or x))
    mod(grad_input()).sum().backward()
    mod(grad_input()).sum().backward()
    assert seen == [at("forward", "Mod", "Mod.b")] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_run(t):
    traced = torch.jit.trace(nn.Linear(4, 4), torch.randn(3, 4))
    mod = pair(traced, leaf())
    mod(grad_input()).sum().backward()


def test_phase_of_an_optimizer_step(t):
    mod = nn.Linear(2, 2)
    seen = []

    class Opt(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            seen.append(look(t))

    mod(torch.ones(1, 2)).sum().backward()
    Opt(mod.parameters()).step()
    assert [s.phase for s in seen] == ["optimizer"]
    assert seen[0].parents == {"Global"} and not seen[0].is_bw
    assert t.phase == "idle"


def test_forward_and_backward_inside_a_step(t):
    seen = []
    mod = make("Mod", lambda m, x: seen.append(look(t)) or m.a(x), a=nn.Linear(2, 2))
    opt = torch.optim.LBFGS(mod.parameters(), max_iter=1)

    def closure():
        seen.append(t.phase)
        opt.zero_grad()
        loss = mod(torch.ones(1, 2)).square().sum()
        loss.register_hook(lambda g: seen.append((t.phase, t.is_bw)))
        loss.backward()
        seen.append(t.phase)
        return loss

    opt.step(closure)
    assert seen[:4] == ["optimizer", at("forward", "Mod"), ("backward", True), "optimizer"]
    assert t.phase == "idle"


def test_both_kinds_can_be_subclassed(tracker_type):
    class Mine(tracker_type):
        def __init__(self, name):
            super().__init__()
            self.name = name
            self.entered = 0

        def __enter__(self):
            self.entered += 1
            return super().__enter__()

        @property
        def depth(self):
            return len(self.stack)

    seen = []
    with Mine("m") as mine:
        make("Solo", lambda m, x: seen.append((mine.depth, mine.parents)))(1)
    assert seen == [(1, {"Global", "Solo"})]
    assert (mine.name, mine.entered) == ("m", 1)


def test_a_subclass_without_its_own_init(tracker_type):
    class Plain(tracker_type):
        pass

    with Plain() as plain:
        leaf()(torch.ones(1))
        assert look(plain) == NOWHERE


def test_only_mod_tracker_has_user_hooks():
    assert hasattr(ModTracker, "register_user_hooks") and hasattr(ModTracker, "clear_user_hooks")
    assert not hasattr(ModuleTracker, "register_user_hooks")
    assert not hasattr(ModuleTracker, "clear_user_hooks")
