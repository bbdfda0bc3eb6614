"""Several trackers at once, entered in any order, repeatedly: they share one watch and give the same answers."""

import gc
import weakref

import pytest
from helpers import NOWHERE, Events, at, grad_input, leaf, look, make, on_grad, pair, run_python
from modscope import ModTracker, ModuleTracker

import torch


def both(*trackers):
    """Run a model; the position of each tracker in its forward and in its backward."""
    log = []

    def body(m, x):
        log.append([look(t) for t in trackers])
        y = x * 2
        y.register_hook(lambda g: log.append([look(t) for t in trackers]))
        return y

    make("Mod", lambda m, x: m.a(x), a=leaf(body))(grad_input()).sum().backward()
    return log


HERE = at("forward", "Mod", "Mod.a"), at("backward", "Mod", "Mod.a")


def test_two_agree():
    with ModTracker() as a, ModuleTracker() as b:
        assert both(a, b) == [[HERE[0]] * 2, [HERE[1]] * 2]
    assert look(a) == look(b) == NOWHERE


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]])
def test_left_in_any_order(order, torch_as_found):
    trackers = [ModTracker(), ModuleTracker(), ModTracker()]
    for t in trackers:
        t.__enter__()
    active = set(range(3))
    for i in order:
        assert both(*[trackers[j] for j in sorted(active)]) == [[HERE[0]] * len(active), [HERE[1]] * len(active)]
        trackers[i].__exit__(None, None, None)
        active.discard(i)
        assert look(trackers[i]) == NOWHERE
    assert all(r.parents == {"Global"} for readings in both(*trackers) for r in readings)


def test_entered_again_later(tracker_type):
    t = tracker_type()
    for _ in range(5):
        with t:
            assert both(t) == [[HERE[0]], [HERE[1]]]
        assert look(t) == NOWHERE


def test_the_same_tracker_nested(tracker_type, torch_as_found):
    t = tracker_type()
    with t:
        with t as again:
            assert again is t
            assert both(t) == [[HERE[0]], [HERE[1]]]
        assert both(t) == [[HERE[0]], [HERE[1]]]
    seen = []
    make("Solo", lambda m, x: seen.append(look(t)))(1)
    assert seen == [NOWHERE]


def test_nested_hooks_fire_once():
    t = ModTracker()
    events = Events(t).register()
    with t, t:
        leaf()(grad_input()).sum().backward()
    assert [kind for kind, _ in events.names()] == ["pre_fw", "post_fw", "pre_bw", "post_bw"]


def test_hooks_of_two_trackers():
    a, b = ModTracker(), ModTracker()
    ea, eb = Events(a).register(), Events(b).register()
    with a:
        with b:
            pair(leaf(), leaf())(grad_input()).sum().backward()
        leaf()(grad_input())
    assert len(eb.log) == 12
    assert ea.log[:12] == eb.log
    assert ea.names()[12:] == [("pre_fw", "Leaf"), ("post_fw", "Leaf")]


def test_hooks_of_one_tracker_that_raise_do_not_disturb_the_other():
    a, b = ModTracker(), ModTracker()

    def throw(*args):
        raise ZeroDivisionError

    a.register_user_hooks(post_bw_hook=throw)
    events = Events(b).register()
    with a, b:
        with pytest.raises(ZeroDivisionError):
            leaf()(grad_input() * 1).sum().backward()
        a.clear_user_hooks()
        events.clear()
        leaf()(grad_input() * 1).sum().backward()
        assert [kind for kind, _ in events.names()] == ["pre_fw", "post_fw", "pre_bw", "post_bw"]
        assert look(a) == look(b) == NOWHERE


def test_the_second_shares_the_firsts_names():
    mod = pair(leaf(), leaf())
    with ModTracker() as a:
        mod(torch.ones(1))
        with ModuleTracker() as b:
            assert b.get_known_fqn(mod.a) == a.get_known_fqn(mod.a) == "Mod.a"
            mod.b(torch.ones(1))
            assert b.get_known_fqn(mod.b) == "Mod.b"


def test_the_second_entered_inside_a_forward():
    seen = []
    inner = ModuleTracker()

    def body(m, x):
        with inner:
            m.a(x)
            seen.append((outer.parents, inner.parents))

    mod = make("Mod", body, a=leaf(lambda m, x: seen.append((outer.parents, inner.parents))))
    with ModTracker() as outer:
        mod(1)
    assert seen[0][0] == {"Global", "Mod", "Mod.a"} and "Mod.a" in seen[0][1]
    assert seen[1][0] == {"Global", "Mod"}


def test_one_left_inside_a_forward():
    a, b = ModTracker(), ModuleTracker()
    seen = []

    def body(m, x):
        b.__exit__(None, None, None)
        m.a(x)

    b.__enter__()
    with a:
        make("Mod", body, a=leaf(lambda m, x: seen.append((look(a), look(b)))))(1)
    assert seen == [(at("forward", "Mod", "Mod.a"), NOWHERE)]


def test_exit_takes_no_arguments_or_three(tracker_type):
    t = tracker_type()
    for args in ((), (None, None, None)):
        t.__enter__()
        assert not t.__exit__(*args)
    assert both(t)[0] == [NOWHERE]


def test_a_tracker_that_nobody_holds_while_active(tracker_type, torch_as_found):
    """It stays active until it is left, as torch's own tracker does."""
    t = tracker_type()
    t.__enter__()
    life = weakref.ref(t)
    del t
    gc.collect()
    t = life()
    assert both(t) == [[HERE[0]], [HERE[1]]]
    t.__exit__()


@pytest.mark.slow
def test_the_end_of_the_interpreter_inside_a_tracker():
    done = run_python("""
        import atexit, torch, modscope
        m = torch.nn.Linear(2, 2)
        t = modscope.ModTracker()
        t.register_user_hooks(*[lambda *args: None] * 4)
        t.__enter__()
        modscope.ModuleTracker().__enter__()
        kept = m(torch.ones(1, 2)).sum()
        atexit.register(lambda: m(torch.ones(1, 2)).sum().backward())
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_that_was_never_entered_sees_nothing():
    bystander = ModTracker()
    with ModTracker() as t:
        assert [readings[0] for readings in both(t, bystander)] == list(HERE)
        assert all(readings[1].parents == {"Global"} for readings in both(t, bystander))


def test_many_trackers(torch_as_found):
    trackers = [ModTracker() for _ in range(50)]
    for t in trackers:
        t.__enter__()
    assert both(*trackers) == [[HERE[0]] * 50, [HERE[1]] * 50]
    for t in trackers[::2] + trackers[1::2]:
        t.__exit__()


def test_a_tracker_in_a_loop_of_steps(torch_as_found):
    mod = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    log = []
    t = ModTracker()
    for _ in range(200):
        with t:
            on_grad(t, log, mod(grad_input())).sum().backward()
    assert {r.parents for r in log} == {frozenset({"Global", "Sequential", "Sequential.1"})}


@pytest.mark.slow
def test_a_tracker_that_dies_inside_a_forward():
    """Calls that are still open use nothing of the deleted tracker."""
    done = run_python(
        """
        import gc
        from helpers import *
        from modscope import ModTracker
        first, seen = [], []
        gc.freeze()  # torch's own objects are not searched each time

        def body(m, x):
            first[0].__exit__()
            first.clear()
            gc.collect()
            with ModTracker() as second:
                m.a(x)
                seen.append(second.get_known_fqn(m.a))
            return x

        mod = make("Mod", body, a=leaf())
        for _ in range(20):
            first.append(ModTracker())
            first[0].__enter__()
            mod(torch.ones(1))
        assert all(name.endswith((".a", "Leaf")) for name in seen), seen
        """,
        MALLOC_PERTURB_="165",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["pre_fw", "post_fw", "pre_bw", "post_bw"])
def test_a_hook_that_leaves_its_tracker(kind, torch_as_found):
    t = ModTracker()
    t.register_user_hooks(**{f"{kind}_hook": lambda *args: t.__exit__()})
    t.__enter__()
    mod = leaf()
    mod(grad_input() * 1).sum().backward()
    assert look(t) == NOWHERE
    with pytest.raises(RuntimeError):
        t.__exit__()


def test_a_hook_that_uses_another_tracker(torch_as_found):
    seen = []
    inner = leaf()

    def hook(mod, *rest):
        with ModTracker() as other:
            if mod is not inner:
                inner(torch.ones(1))
            seen.append("Mod" in other.parents)

    t = ModTracker()
    t.register_user_hooks(hook, hook, hook, hook)
    mod = make("Mod", lambda m, x: x * 2)
    with t:
        mod(grad_input() * 1).sum().backward()
    assert all(seen) and len(seen) >= 4
    assert look(t) == NOWHERE
