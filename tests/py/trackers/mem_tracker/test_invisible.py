"""Tracking does not change the program: the same results to the bit, torch is restored, and memory does not
grow."""

import sys
import threading

import pytest
from helpers import Boom, growth, make, mlp, needs_interception, run_python, torch_globals
from memory_helpers import CPU, every_source, now, python_calls
from modscope import MemTracker, _native
from torch.optim import optimizer
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

# ---- results ----


def train(mt, kind):
    """The parameters and losses of a few steps, tracked or not."""
    torch.manual_seed(1)
    losses = []
    mod = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))
    opt = torch.optim.AdamW(mod.parameters(), lr=0.01)
    if mt is not None:
        mt.track_external(mod, opt)
        mt.__enter__()
    for _ in range(4):
        x = torch.randn(8, 16, requires_grad=True)
        if kind == "checkpoint":
            out = checkpoint(mod, x, use_reentrant=False)
        elif kind == "reentrant":
            out = checkpoint(mod, x, use_reentrant=True)
        elif kind == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = mod(x)
        else:
            out = mod(x)
        loss = out.float().square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.detach())
        if mt is not None:
            mt.get_tracker_snapshot("peak"), mt.get_module_snapshot(), mt.peak
    if mt is not None:
        mt.__exit__(None, None, None)
    return [*losses, *(p.detach() for p in mod.parameters()), *mod.buffers(), torch.get_rng_state()]


@every_source
@pytest.mark.parametrize("kind", ["plain", "checkpoint", "reentrant", "autocast"])
def test_results_are_the_same_to_the_bit(source, kind):
    plain, tracked = train(None, kind), train(MemTracker(source), kind)
    assert all(torch.equal(a, b) for a, b in zip(plain, tracked, strict=True))


@needs_interception  # the fallback registers hooks on what modules return
@every_source
def test_layout_and_kind_of_tensors_are_the_same(source):
    """Tensors get no wrapper, no hook and no attribute."""
    mod, x = mlp(2, 8), torch.randn(4, 8)

    def facts():
        out = mod(x)
        out.sum().backward()
        found = [
            (type(t), t.stride(), t.storage_offset(), t._backward_hooks, t._post_accumulate_grad_hooks, sorted(vars(t)))
            for t in (out, *mod.parameters(), *(p.grad for p in mod.parameters()))
        ]
        hooks = [(dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks)) for m in mod.modules()]
        mod.zero_grad()
        return found, hooks, [sorted(vars(m)) for m in mod.modules()]

    plain = facts()
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt:
        assert facts() == plain
    assert facts() == plain


# ---- nothing left ----


@every_source
def test_nothing_is_left_in_torch(source, torch_as_found):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    opt = torch.optim.Adam(mod.parameters())
    resize = torch.UntypedStorage.resize_
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    mt = MemTracker(source)
    mt.track_external(mod, opt, x)
    for _ in range(2):
        with mt:
            mod(x).sum().backward()
            opt.step()
    assert torch.UntypedStorage.resize_ is resize
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == modes
    assert not opt._optimizer_step_pre_hooks and not opt._optimizer_step_post_hooks
    assert all(not p._backward_hooks and not p._post_accumulate_grad_hooks for p in mod.parameters())


@every_source
@pytest.mark.parametrize("where", ["forward", "backward", "step", "with"])
def test_nothing_is_left_after_an_error(source, where, torch_as_found):
    def throw(*args):
        raise Boom

    mod, x = mlp(2, 8), torch.randn(4, 8)
    opt = torch.optim.Adam(mod.parameters())
    if where == "forward":
        mod[1].register_forward_hook(throw)
    elif where == "step":
        opt.register_step_post_hook(throw)
    with pytest.raises(Boom), MemTracker(source) as mt:
        out = mod(x)
        if where == "backward":
            out.register_hook(throw)
        out.sum().backward()
        opt.step()
        throw()
    assert torch_globals()["step_pre"] == {}
    with mt:
        made = torch.zeros(10)
        assert now(mt, "Other") == 40
    del made


def test_hooks_of_the_program_stay(torch_as_found):
    seen = []
    handle = optimizer.register_optimizer_step_post_hook(lambda *args: seen.append(1))
    try:
        opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)
        with MemTracker():
            opt.step()
        opt.step()
    finally:
        handle.remove()
    assert seen == [1, 1]


def test_hooks_the_program_adds_inside_stay():
    handles, seen = [], []
    opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)
    with MemTracker():
        handles.append(optimizer.register_optimizer_step_pre_hook(lambda *args: seen.append(1)))
    try:
        opt.step()
    finally:
        handles[0].remove()
    assert seen == [1]


# ---- growth ----

ALLOWED = 2 << 20


def training():
    mod, x = mlp(1), torch.randn(2, 4)
    opt = torch.optim.SGD(mod.parameters(), lr=1e-3, momentum=0.9, foreach=True)

    def step():
        mod(x).sum().backward()
        opt.step()
        opt.zero_grad()

    return step


def inference():
    mod, x = mlp(2), torch.randn(2, 4)

    @torch.no_grad()
    def step():
        mod(x)

    return step


def checkpointed():
    mod, x = mlp(1), torch.randn(2, 4, requires_grad=True)

    def step():
        checkpoint(mod, x, use_reentrant=False).sum().backward()
        x.grad = None
        mod.zero_grad()

    return step


def raising():
    def throw(m, x):
        raise Boom

    mod = make("Mod", lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 4), b=make("Raise", throw))
    x = torch.randn(2, 4)

    def step():
        try:
            mod(x)
        except Boom:
            pass

    return step


def new_models():
    x = torch.randn(2, 4)

    def step():
        mod = mlp(1)
        mod(x).sum().backward()
        torch.optim.SGD(mod.parameters(), lr=0.1).step()

    return step


KINDS = {
    "training": (training, 10_000),
    "inference": (inference, 10_000),
    "checkpointed": (checkpointed, 2_000),
    "raising": (raising, 3_000),
    "new models": (new_models, 2_000),
}


@pytest.fixture(scope="module")
def filled():
    """The watch keeps the last 131,072 calls: it is filled before growth is measured."""
    relu, x = nn.ReLU(), torch.ones(1, requires_grad=True)
    with MemTracker():
        for _ in range(150_000):
            relu(x)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_readings_do_not_grow():
    """Before the tests below, whose thousands of models would be read each time: the watch stays the same."""
    mod, x = mlp(2), torch.randn(2, 4)
    with MemTracker() as mt, torch.no_grad():

        def step():
            mod(x)
            mt.get_tracker_snapshot(), mt.get_module_snapshot("peak", children=True), mt.peak, mt.outside
            [stats.snapshots for stats in mt.memory_tracking.values()]

        assert growth(step, 2000) < ALLOWED


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow(kind):
    make_step, steps = KINDS[kind]
    step = make_step()
    with MemTracker() as mt:
        if mt.source == "dispatcher":
            steps //= 5
        assert growth(step, steps) < ALLOWED
        assert mt.peak[CPU].bytes > 0


@pytest.mark.slow
def test_entering_and_leaving_does_not_grow():
    mod, x = mlp(1), torch.randn(2, 4)

    def step():
        mt = MemTracker()
        mt.track_external(mod, x)
        with mt:
            mod(x).sum().backward()
            mt.get_tracker_snapshot("peak"), mt.get_module_snapshot()

    assert growth(step, 1000) < ALLOWED


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_giving_every_batch_does_not_grow():
    """Neither the memory nor the work per call grows."""
    mod = mlp(1)
    with MemTracker() as mt, torch.no_grad():

        def step():
            x = torch.randn(2, 4)
            mt.track_external(mod, [x])
            mod(x)

        for _ in range(5):
            step()
        few = python_calls(step)
        assert growth(step, 3000) < ALLOWED
        assert python_calls(step) <= few + 10


# ---- imports: counting by the dispatcher imports nothing that the program did not, as dynamo takes seconds ----


PROGRAM = """
    import sys, torch
    from modscope import MemTracker
    mod = torch.nn.Linear(4, 4)
    mt = MemTracker("dispatcher")
    mt.track_external(mod)
    before = set(sys.modules)
    with mt:
        mod(torch.ones(1, 4)).sum().backward()
        assert mt.get_tracker_snapshot()[torch.device("cpu")]["Gradient"] == 80
    print("torch._dynamo" in sys.modules, sorted(name for name in set(sys.modules) - before if name.startswith("torch")))
"""


def test_dynamo_is_not_imported():
    ran = run_python(PROGRAM)
    assert ran.stdout.startswith("False "), ran


# ---- looking for living modules and optimizers disturbs no other thread ----


def test_instances_of_subclasses_are_found():
    mods = [torch.nn.Linear(1, 1), torch.nn.Sequential()]
    found = {id(mod) for mod in _native.living_instances(torch.nn.Module)}
    assert {id(mod) for mod in mods} <= found


def test_another_thread_makes_a_tuple_from_a_generator():
    """The tuple is in the list of all objects before it is complete; Python raises if anybody else refers to it
    then."""
    stop, errors = threading.Event(), []

    def make_tuples():
        try:
            while not stop.is_set():
                assert len(tuple(number for number in range(2000))) == 2000
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=make_tuples)
    thread.start()
    try:
        for _ in range(200):
            _native.living_instances(torch.nn.Module)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert errors == []
