"""Memory does not grow over ten thousand steps. The memory for past calls is bounded, so it is filled first; after
that, no step may keep any memory."""

import collections
import threading

import pytest
from helpers import growth, make, mlp
from modscope import ModTracker, ModuleTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = pytest.mark.slow

STEPS = 10_000
PAST_CALLS = 150_000  # more than the watch keeps
ALLOWED = 2 << 20


@pytest.fixture(scope="module")
def filled():
    """Make more calls with a node than are kept. The watch is the same one until all trackers are left."""
    relu, x = nn.ReLU(), torch.ones(1, requires_grad=True)
    with ModTracker():
        for _ in range(PAST_CALLS):
            relu(x)
        yield


def training():
    mod, x = mlp(1), torch.randn(2, 4)
    opt = torch.optim.SGD(mod.parameters(), lr=1e-3, foreach=True)

    def step():
        mod(x).sum().backward()
        opt.step()
        opt.zero_grad(set_to_none=True)

    return step


def forward_only():
    mod, x = mlp(1), torch.randn(2, 4)
    return lambda: mod(x)


def forward_without_grad():
    mod, x = mlp(1), torch.randn(2, 4)

    @torch.no_grad()
    def step():
        mod(x)

    return step


def checkpointed(reentrant):
    mod, x = mlp(1), torch.randn(2, 4, requires_grad=True)
    return lambda: checkpoint(mod, x, use_reentrant=reentrant).sum().backward()


def graphs_kept():
    mod, x = mlp(1), torch.randn(2, 4)
    kept = collections.deque(maxlen=100)

    def step():
        kept.append(mod(x).sum())
        if len(kept) == 100:
            kept.popleft().backward()

    return step


def leaf_input():
    mod, x = mlp(1), torch.randn(2, 4, requires_grad=True)

    def step():
        mod(x).sum().backward()
        x.grad = None

    return step


def new_modules():
    x = torch.randn(2, 4)

    def step():
        mlp(1)(x).sum()

    return step


def raising():
    def throw(*args):
        raise ValueError

    mod, x = mlp(1), torch.randn(2, 4)
    mod[1].register_forward_hook(throw)

    def step():
        try:
            mod(x)
        except ValueError:
            pass

    return step


def failing_backward():
    """The gradient of one input is ready; the backward fails before that of the other."""
    mod = make("Two", lambda m, a, b: a * b)

    def throw(grad):
        raise ValueError

    def step():
        a = torch.ones(64, 64, requires_grad=True) * 1  # created first, so it runs last
        b = torch.ones(64, 64, requires_grad=True) * 1
        b.register_hook(throw)
        try:
            mod(a, b * 1).sum().backward()
        except ValueError:
            pass

    return step


def short_threads():
    relu, x = nn.ReLU(), torch.ones(1, requires_grad=True)

    def step():
        thread = threading.Thread(target=relu, args=(x,))
        thread.start()
        thread.join()

    return step


KINDS = {
    "training": training,
    "forward only": forward_only,
    "no grad": forward_without_grad,
    "checkpointed": lambda: checkpointed(False),
    "checkpointed reentrant": lambda: checkpointed(True),
    "graphs kept": graphs_kept,
    "leaf input": leaf_input,
    "new modules": new_modules,
    "raising": raising,
    "failing backward": failing_backward,
    "short threads": short_threads,
}


# These two come first: no other tracker is active yet.


def test_entering_and_leaving():
    mod, x = mlp(1), torch.randn(2, 4)

    def step():
        with ModTracker(), ModuleTracker():
            mod(x).sum().backward()

    assert growth(step, STEPS // 4) < 2 * ALLOWED


def test_the_measure_can_fail():
    """The measurement notices an output that each step keeps."""
    mod, x = mlp(1), torch.randn(2, 4)
    kept = []
    assert growth(lambda: kept.append(mod(x)), STEPS // 2) > ALLOWED


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("kind", KINDS)
def test_without_hooks(kind):
    step = KINDS[kind]()
    quick = not kind.startswith(("new", "checkpointed", "failing", "short"))
    steps = STEPS if quick else STEPS // 4
    with ModTracker():
        assert growth(step, steps) < ALLOWED


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "kind", ["training", "leaf input", "graphs kept", "checkpointed reentrant", "raising", "failing backward"]
)
def test_with_hooks(kind):
    step = KINDS[kind]()
    t = ModTracker()
    t.register_user_hooks(*[lambda *args: None] * 4)
    with t:
        assert growth(step, STEPS // 4) < ALLOWED


@pytest.mark.usefixtures("filled")
def test_readings():
    mod, x = mlp(1), torch.randn(2, 4)
    with ModTracker() as t:
        mod[1].register_forward_pre_hook(lambda m, args: (t.parents, t.stack, t.current, t.phase, t.modules, None)[-1])
        assert growth(lambda: mod(x), STEPS) < ALLOWED
