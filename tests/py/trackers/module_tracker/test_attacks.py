"""Programs written to break the trackers. Each of them once crashed, leaked or had a wrong answer."""

import dataclasses
import gc
import threading
import weakref

import modscope
import pytest
import warm_python
from helpers import Events, grad_input, make
from modscope import ModTracker, ModuleTracker

import torch
from torch import nn


class Kept(torch.autograd.Function):
    """Its node is freed together with this object's node."""

    alive = weakref.WeakSet()

    @staticmethod
    def forward(ctx, x):
        Kept.alive.add(ctx)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize(
    "forward",
    [lambda m, a, b: (a, a + b), lambda m, a, b: a, lambda m, a, b: (m.inner(a) * 1, b)],
    ids=["one and more", "one alone", "the other"],
)
@pytest.mark.parametrize("backward", [False, True])
def test_a_module_that_returns_one_of_its_inputs_keeps_no_graph(forward, backward):
    mod = make("Two", forward, inner=nn.Identity())
    leaf = grad_input()
    with ModTracker() as t:
        t.register_user_hooks(pre_bw_hook=lambda m, g: None)
        for _ in range(5):
            out = mod(Kept.apply(leaf), leaf * 2)
            if backward:
                sum(o.sum() for o in (out if isinstance(out, tuple) else (out,))).backward()
            del out
    gc.collect()
    assert len(Kept.alive) == 0


def test_the_gradient_of_a_used_leaf_is_reported_though_the_other_gets_none():
    seen = []
    mod = make("Uses", lambda m, a, b: a * 2)
    a, b = grad_input(), grad_input()
    with ModTracker() as t:
        t.register_user_hooks(pre_bw_hook=lambda m, g: None, post_bw_hook=lambda m, g: seen.append(g))
        mod(a, b).sum().backward()
    ((grads,),) = seen
    assert grads[1] is None and torch.equal(grads[0], torch.full_like(a, 2.0))


def test_a_dataclass_that_takes_its_container_away():
    held = []

    @dataclasses.dataclass
    class Evil:
        first: object
        second: object

        def __getattribute__(self, name):
            if name == "first":
                held.clear()
            return object.__getattribute__(self, name)

    mod = make("Takes", lambda m, x: None)
    with ModTracker() as t:
        t.register_user_hooks(pre_bw_hook=lambda m, g: None)
        for _ in range(50):
            held.append(Evil(grad_input(), [1]))
            mod(held)


def test_a_finalizer_that_changes_trackers_while_a_module_is_named():
    class Bomb:
        def __init__(self, box):
            self.itself, self.box = self, box

        def __del__(self):
            self.box[0].__exit__(None, None, None)
            self.box[0] = ModuleTracker()
            self.box[0].__enter__()

    for allocations in range(12):
        box = [ModuleTracker()]
        box[0].__enter__()
        mod = make("New", lambda m, x: x)
        if allocations < 0:
            has_no_value = None  # noqa: F841 - a variable of the frame that has no value
        gc.collect()
        Bomb(box)
        before = gc.get_threshold()
        gc.set_threshold(gc.get_count()[0] + allocations, 1000, 1000)
        try:
            mod(1)
        finally:
            gc.set_threshold(*before)
        gc.collect()
        box[0].__exit__(None, None, None)


def test_many_threads_enter_and_leave_one_tracker():
    from torch.nn.modules import module

    before = len(module._global_forward_pre_hooks), len(module._global_forward_hooks)
    tracker, errors = ModuleTracker(), []

    def go():
        try:
            for _ in range(200):
                with tracker:
                    pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (len(module._global_forward_pre_hooks), len(module._global_forward_hooks)) == before


def test_a_very_long_backward_is_not_quadratic():
    """Counted, not timed: every call is reported once, in the reverse order of the calls."""
    order = []
    mods = [nn.Linear(1, 1) for _ in range(2000)]
    number = {mod: i for i, mod in enumerate(mods)}
    with ModTracker() as t:
        t.register_user_hooks(pre_bw_hook=lambda m, g: None, post_bw_hook=lambda m, g: order.append(number[m]))
        x = torch.ones(1, 1)
        sum(mod(x) for mod in mods).backward()
    assert order == sorted(order, reverse=True) and len(order) == 2000


def test_two_children_whose_names_differ_after_a_nul():
    log = []
    tell = lambda m, x: log.append(t.current)  # noqa: E731
    mod = make("Odd", lambda m, x: [c(x) for c in m.children()])
    mod.add_module("a", make("Child", tell))
    mod.add_module("a\0b", make("Child", tell))
    with ModuleTracker() as t:
        mod(1)
    assert len(set(log)) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_a_compiler_makes_is_not_shown(backend):
    torch._dynamo.reset()
    mod = torch.compile(make("Plain", lambda m, x: m.a(x) + 1, a=nn.Linear(4, 4)), backend=backend)
    with ModTracker() as t:
        events = Events(t).register("pre_fw")
        mod(torch.ones(2, 4))
        assert not any("GraphModule" in fqn for fqn in t.modules)
    assert not any("GraphModule" in fqn for _, fqn in events.names())


@pytest.mark.slow
def test_the_first_tracker_of_a_process_may_be_entered_anywhere():
    program = """
import os, sys, torch, modscope
from modscope._torch import interception
def body(x):
    with modscope.ModuleTracker(): pass
    return (x * 2).sum()
x = torch.ones(3)
where = {
    "trace": lambda: torch.jit.trace(body, x),
    "grad": lambda: torch.func.grad(body)(x),
    "vmap": lambda: torch.vmap(body)(x),
    "inference": lambda: torch.inference_mode()(body)(x),
}
for place in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        where[place]()
        report = interception.results()
        print(place, report["calls"], report["nodes"])
        sys.exit()
    if os.waitpid(pid, 0)[1]:
        sys.exit(place)
"""
    wanted = "verified verified" if modscope.doctor()["calls"] == "verified" else modscope.doctor()["calls"]
    transforms = ("trace", "grad", "vmap", "inference")
    done = warm_python.run(["-W", "ignore", "-c", program, *transforms])
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and [line.partition(" ")[0] for line in lines] == [*transforms], (
        done.stdout,
        done.stderr,
    )
    assert all(wanted in line for line in lines), done.stdout
