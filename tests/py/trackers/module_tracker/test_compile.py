"""torch.compile does not see modscope: the same frames, no graph break, no recompilation,
before, during and after tracking. The fallback does not support this, except for the last tests."""

import pytest
from helpers import NOWHERE, Events, at, grad_input, leaf, look, make, needs_interception, pair
from modscope import ModTracker, ModuleTracker
from torch._dynamo.testing import CompileCounter

import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.b(self.a(x)).sin()


class Breaks(nn.Module):
    """Has one graph break of its own, so two frames."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        x = self.a(x)
        torch._dynamo.graph_break()
        return self.b(x)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=["plain", "hooks"])
def trackers(request):
    """A way to make an entered tracker: without hooks, and with all four."""

    def enter(kind=ModTracker):
        t = kind()
        if request.param == "hooks" and kind is ModTracker:
            Events(t).register()
        return t

    return enter


def frames(counter):
    return counter.frame_count, counter.op_count


def expected(model_type, x):
    torch._dynamo.reset()
    counter = CompileCounter()
    fn = torch.compile(model_type(), backend=counter)
    fn(x), fn(x)
    torch._dynamo.reset()
    assert counter.frame_count > 0
    return frames(counter)


@needs_interception
@pytest.mark.parametrize("model_type", [Small, Breaks])
def test_compiled_while_tracked(model_type, trackers):
    x = torch.randn(3, 4)
    want = expected(model_type, x)
    counter = CompileCounter()
    fn = torch.compile(model_type(), backend=counter)
    with trackers():
        fn(x)
        assert frames(counter) == want
        fn(x)
    assert frames(counter) == want
    fn(x)
    assert frames(counter) == want


@pytest.mark.slow
@needs_interception
@pytest.mark.parametrize("model_type", [Small, Breaks])
def test_compiled_before_tracking(model_type, trackers):
    x = torch.randn(3, 4)
    want = expected(model_type, x)
    counter = CompileCounter()
    fn = torch.compile(model_type(), backend=counter)
    fn(x)
    for _ in range(3):
        with trackers():
            fn(x)
        fn(x)
    assert frames(counter) == want


@pytest.mark.slow
@needs_interception
@pytest.mark.parametrize("model_type", [Small, Breaks])
def test_compiled_after_tracking(model_type, trackers):
    x = torch.randn(3, 4)
    want = expected(model_type, x)
    counter = CompileCounter()
    mod = model_type()
    with trackers():
        mod(x)
    fn = torch.compile(mod, backend=counter)
    fn(x), fn(x)
    assert frames(counter) == want


@needs_interception
def test_two_trackers_of_both_kinds(trackers):
    x = torch.randn(3, 4)
    want = expected(Small, x)
    counter = CompileCounter()
    fn = torch.compile(Small(), backend=counter)
    with trackers(), trackers(ModuleTracker):
        fn(x), fn(x)
    assert frames(counter) == want


@needs_interception
def test_no_graph_break_is_added(trackers):
    x = torch.randn(3, 4)
    with trackers():
        torch.compile(Small(), backend=CompileCounter(), fullgraph=True)(x)
        explained = torch._dynamo.explain(Small())(x)
    assert explained.graph_break_count == 0 and explained.graph_count == 1


@needs_interception
def test_no_recompilation(trackers):
    x = torch.randn(3, 4)
    fn = torch.compile(Small(), backend=CompileCounter())
    fn(x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        with trackers():
            fn(x)
        fn(x)


@needs_interception
def test_a_module_compiled_in_place(trackers):
    x = torch.randn(3, 4)
    seen = []
    mod = Small()
    counter = CompileCounter()
    mod.compile(backend=counter)
    top = make("Top", lambda m, x: seen.append(t.current) or m.small(x), small=mod)
    with trackers() as t:
        top(x), top(x)
    top(x)
    assert counter.frame_count == 1
    assert seen[:2] == ["Top", "Top"]


@needs_interception
def test_a_call_of_a_module_compiled_in_place_is_seen():
    mod = Small()
    mod.compile(backend="eager")
    with ModTracker() as t:
        events = Events(t).register("pre_fw", "post_fw")
        mod(torch.randn(3, 4))
        mod(torch.randn(3, 4))
    assert events.names() == [("pre_fw", "Small"), ("post_fw", "Small")] * 2


@needs_interception
def test_a_compiled_function_that_calls_modules(trackers):
    mod, x = Small(), torch.randn(3, 4)
    counter = CompileCounter()

    @torch.compile(backend=counter)
    def step(x):
        return mod(x) + mod(x * 2)

    step(x)
    want = frames(counter)
    with trackers():
        step(x)
    step(x)
    assert frames(counter) == want
    torch._dynamo.reset()
    again = CompileCounter()
    with trackers():
        torch.compile(lambda x: mod(x) + mod(x * 2), backend=again)(x)
    assert frames(again) == want


@pytest.mark.slow
@needs_interception
def test_a_compiled_optimizer_step(trackers):
    def run(context):
        torch._dynamo.reset()
        torch.manual_seed(0)
        mod = nn.Linear(4, 4)
        opt = torch.optim.SGD(mod.parameters(), lr=0.1)
        counter = CompileCounter()
        step = torch.compile(opt.step, backend=counter)
        counts = []
        for i in range(3):
            mod(torch.ones(1, 4)).sum().backward()
            if context is not None and i == 1:
                with context():
                    step()
            else:
                step()
            opt.zero_grad()
            counts.append(counter.frame_count)
        return counts, mod.weight.detach().clone()

    plain, tracked = run(None), run(trackers)
    assert tracked[0] == plain[0] and plain[0][0] > 0
    assert torch.equal(tracked[1], plain[1])


@needs_interception
def test_a_training_step_with_real_graphs(trackers):
    """aot_eager traces a backward with fake tensors inside the first forward."""
    x = grad_input()
    mod = Small()
    plain = torch.autograd.grad(mod(x).sum(), x)[0]
    fn = torch.compile(mod, backend="aot_eager")
    t = trackers()
    phases = []
    with t:
        for _ in range(2):
            y = fn(x)
            assert look(t) == NOWHERE
            y.register_hook(lambda g: phases.append((t.phase, t.is_bw)))
            assert torch.equal(torch.autograd.grad(y.sum(), x)[0], plain)
            assert look(t) == NOWHERE
    assert phases == [("backward", True)] * 2


@needs_interception
def test_compiling_fires_no_backward_hook():
    fn = torch.compile(Small(), backend="aot_eager")
    with ModTracker() as t:
        events = Events(t).register("pre_bw", "post_bw")
        y = fn(grad_input())
        assert events.log == []
        y.sum().backward()
    counts = {n: events.count("pre_bw", n) - events.count("post_bw", n) for _, n in events.names()}
    assert not any(counts.values())


@needs_interception
def test_a_hook_may_run_compiled_code():
    """What a hook runs is compiled exactly if it would be compiled without modscope."""
    x = torch.randn(3, 4)
    counter = CompileCounter()
    other = torch.compile(lambda x: x * 2 + 1, backend="eager")
    got = []
    fn = torch.compile(Small(), backend=counter)
    with ModTracker() as t:
        t.register_user_hooks(lambda m, args: got.append(other(x)))
        fn(x), fn(x)
    assert counter.frame_count == 1
    assert got and all(torch.equal(g, x * 2 + 1) for g in got)


@needs_interception
def test_what_dynamo_makes_is_not_shown():
    seen = []
    counter = CompileCounter()
    mod = pair(leaf(lambda m, x: x.sin()), leaf(lambda m, x: x.cos()))
    with ModTracker() as t:
        t.register_user_hooks(lambda m, args: seen.append(type(m).__name__))
        torch.compile(mod, backend=counter)(torch.ones(2))
    assert counter.frame_count == 1
    assert not any("Graph" in name for name in seen)


def test_results_are_the_same_and_we_end_nowhere(trackers):
    x = torch.randn(3, 4)
    mod = Small()
    plain = mod(x)
    fn = torch.compile(mod, backend="eager")
    t = trackers()
    with t:
        assert torch.equal(fn(x), plain)
        assert look(t) == NOWHERE
    assert torch.equal(fn(x), plain)


def test_eager_modules_beside_compiled_ones(trackers):
    seen = []
    fn = torch.compile(Small(), backend="eager")
    t = trackers()

    def body(m, x):
        y = fn(x)
        seen.append(look(t))
        return m.a(y)

    with t:
        make("Mod", body, a=leaf(lambda m, x: seen.append(look(t))))(torch.randn(3, 4))
    assert seen == [at("forward", "Mod"), at("forward", "Mod", "Mod.a")]
