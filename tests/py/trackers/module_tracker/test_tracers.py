"""Tools that observe or transform a program see the same program while it is tracked: operators, traces,
function transforms, saved files."""

import contextlib
import copy
import io
import warnings

import pytest
from helpers import NOWHERE, grad_input, leaf, look, make, mlp
from modscope import ModTracker
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch
from torch import nn


def plain():
    return ModTracker()


def hooked():
    t = ModTracker()
    t.register_user_hooks(*[lambda *args: None] * 4)
    return t


EACH = pytest.mark.parametrize("enter", [plain, hooked])


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@EACH
@pytest.mark.parametrize("watcher", [Operators, Functions])
def test_the_operators_of_a_training_step(enter, watcher):
    def run(context):
        torch.manual_seed(0)
        mod, x = mlp(), grad_input()
        with context, watcher() as watch:
            mod(x).sum().backward()
        return watch.seen

    assert run(enter()) == run(contextlib.nullcontext())


@EACH
@pytest.mark.parametrize("watcher", [Operators, Functions])
def test_the_operators_of_a_forward_of_several_leaves(enter, watcher):
    def run(context):
        mod = make("Two", lambda m, a, b: m.c(a) * b, c=nn.Linear(4, 4))
        with context, watcher() as watch:
            mod(grad_input(), grad_input())
        return watch.seen

    assert run(enter()) == run(contextlib.nullcontext())


@EACH
def test_function_transforms(enter):
    from torch.func import functional_call, grad, jvp, vmap

    mod, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), torch.randn(5, 4)
    parameters = dict(mod.named_parameters())

    def loss(parameters, x):
        return functional_call(mod, parameters, (x,)).sum()

    def run():
        return [*vmap(grad(loss), (None, 0))(parameters, x).values(), *jvp(mod, (x,), (x,))]

    want = run()
    with enter() as t:
        got = run()
        assert look(t) == NOWHERE
    assert all(torch.equal(a, b) for a, b in zip(want, got))


@EACH
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traces_and_exports(enter):
    from torch.fx.experimental.proxy_tensor import make_fx

    mod, x = mlp(), grad_input()

    def step(x):
        return torch.autograd.grad(mod(x).sum(), x)

    def run():
        return [
            make_fx(step)(x).code,
            torch.export.export(mod, (x.detach(),)).graph_module.code,
            len(str(torch.jit.trace(mod, x.detach()).inlined_graph).splitlines()),
        ]

    want = run()
    with enter() as t:
        assert run() == want
        assert look(t) == NOWHERE


@EACH
def test_saving_and_copying_while_a_graph_waits(enter):
    mod, x = mlp(), grad_input()
    with enter(), warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = mod(x).sum()
        saved = io.BytesIO()
        torch.save([x, mod], saved)
        saved.seek(0)
        again, _ = torch.load(saved, weights_only=False)
        assert torch.equal(again, x) and torch.equal(copy.deepcopy(x), x)
        copy.deepcopy(mod)(again).sum().backward()
        loss.backward()


@EACH
@pytest.mark.parametrize("kind", ["jagged", "sparse gradients", "complex", "meta"])
def test_odd_tensors(enter, kind):
    with enter() as t:
        if kind == "jagged":
            parts = [torch.randn(2, 4), torch.randn(3, 4)]
            x = torch.nested.nested_tensor(parts, requires_grad=True, layout=torch.jagged)
            nn.Linear(4, 2)(x).values().sum().backward()
        elif kind == "sparse gradients":
            nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))(torch.tensor([1, 2])).sum().backward()
        elif kind == "complex":
            leaf()(torch.randn(3, dtype=torch.complex64, requires_grad=True)).abs().sum().backward()
        else:
            nn.Linear(4, 2, device="meta")(torch.randn(3, 4, device="meta", requires_grad=True)).sum().backward()
        assert look(t) == NOWHERE
