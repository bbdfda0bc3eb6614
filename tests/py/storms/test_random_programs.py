"""Random training programs, against a count that is not modscope's: the events of torch's profiler where the allocators
are intercepted, else a TorchDispatchMode that lists storages. After every action the totals are equal, and the
peaks."""

import contextlib
import copy
import gc
import weakref

import pytest
from helpers import Boom, make, needs_interception
from memory_helpers import Counted, now, wrong_sums
from modscope import MemTracker, ModTracker
from storm_helpers import SEED, rounds
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:None of the inputs", "ignore:Using backward")]

WIDTH = 6


# ---- models ----


def random_model(rng, depth=0):
    kind = rng.choice(LEAVES if depth == 3 else LEAVES + list(CONTAINERS) * 2)
    return CONTAINERS[kind](rng, depth + 1) if kind in CONTAINERS else kind()


def in_place(m, x):
    y = x * 2
    y[:, 0].add_(1)  # in place, on a view
    return y


def through_views(m, x):
    return x.t().contiguous().view(-1).reshape(WIDTH, -1).t() + 1


def no_grad_inside(m, x):
    with torch.no_grad():
        scale = x.abs().mean()
    return x / (scale + 1)


def raise_boom(m, x):
    torch.zeros(50)
    raise Boom


LEAVES = [
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH),
    nn.Tanh,
    lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.Dropout(0.5),
    nn.Identity,
    lambda: make("InPlace", in_place),
    lambda: make("Views", through_views),
    lambda: make("NoGrad", no_grad_inside),
]


def sequence(rng, depth):
    return nn.Sequential(*[random_model(rng, depth) for _ in range(rng.randint(1, 4))])


def one_inside(name, body):
    return lambda rng, depth: make(name, body, a=random_model(rng, depth))


def shared_twice(rng, depth):
    part = random_model(rng, depth)
    return make("Shared", lambda m, x: m.b(m.a(x)), a=part, b=part)


CONTAINERS = {
    "sequence": sequence,
    "residual": one_inside("Residual", lambda m, x: x + m.a(x)),
    "checkpointed": one_inside("Checkpointed", lambda m, x: checkpoint(m.a, x, use_reentrant=False)),
    "reentrant": one_inside("Reentrant", lambda m, x: checkpoint(m.a, x, use_reentrant=True)),
    "shared": shared_twice,
    "direct": one_inside("Direct", lambda m, x: m.a.forward(x) + m.a(x)),
}
OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.01),
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
]


# ---- programs ----


class Program:
    """Models, optimizers, outputs with their graphs, and what else the program keeps. Every method is an action."""

    def __init__(self, rng):
        self._rng = rng
        self._models, self._outputs, self._kept = [], [], []
        self.build()

    def _model(self):
        return self._rng.choice(self._models)

    def _run(self, mod, needs_grad=True):
        x = torch.randn(self._rng.randint(2, 4), WIDTH, requires_grad=needs_grad)
        with contextlib.suppress(Boom):
            self._outputs.append(mod(x))

    def build(self):
        if len(self._models) < 3:
            mod = nn.Sequential(nn.Linear(WIDTH, WIDTH), random_model(self._rng))
            if self._rng.random() < 0.2:
                mod.append(make("Raises", raise_boom))
            self._models.append((mod, self._rng.choice(OPTIMIZERS)(mod.parameters())))

    def forward(self):
        self._run(self._model()[0], self._rng.random() < 0.5)

    def forward_without_grad(self):
        with self._rng.choice([torch.no_grad, torch.inference_mode])():
            self._run(self._model()[0], needs_grad=False)

    def forward_in_autocast(self):
        with torch.autocast("cpu", torch.bfloat16):
            self._run(self._model()[0])

    def backward(self):
        if self._outputs:
            self._backward(self._outputs.pop(self._rng.randrange(len(self._outputs))))

    def backward_and_keep(self):
        if self._outputs:
            self._backward(self._rng.choice(self._outputs), retain_graph=True)

    def _backward(self, out, **how):
        with contextlib.suppress(RuntimeError):  # it needs no gradient, or a step changed what it needs
            out.square().sum().backward(**how)

    def second_order(self):
        mod, opt = self._model()
        with contextlib.suppress(RuntimeError, Boom):
            x = torch.randn(2, WIDTH, requires_grad=True)
            (first,) = torch.autograd.grad(mod(x).square().sum(), x, create_graph=True)
            first.square().sum().backward()

    def set_gradients(self):
        mod, _ = self._model()
        with contextlib.suppress(RuntimeError, Boom):
            parameters = list(mod.parameters())
            grads = torch.autograd.grad(mod(torch.randn(2, WIDTH)).sum(), parameters, allow_unused=True)
            for parameter, grad in zip(parameters, grads):
                parameter.grad = grad

    def step(self):
        self._model()[1].step()

    def step_with_closure(self):
        mod, opt = self._model()

        def closure():
            opt.zero_grad()
            self._backward(mod(torch.randn(2, WIDTH)))

        with contextlib.suppress(Boom):
            opt.step(closure)

    def zero_gradients(self):
        self._model()[1].zero_grad(set_to_none=self._rng.random() < 0.7)

    def clip_gradients(self):
        torch.nn.utils.clip_grad_norm_(self._model()[0].parameters(), 1.0)

    def raise_in_backward(self):
        mod, _ = self._model()

        def fail(grad):
            raise Boom

        with contextlib.suppress(RuntimeError, Boom):
            x = torch.randn(2, WIDTH, requires_grad=True)
            x.register_hook(fail)
            mod(x).sum().backward()

    def keep_tensors(self):
        self._kept.append(torch.zeros(10 * self._rng.randint(1, 9)))
        if self._outputs:
            self._kept.append(self._outputs[-1].detach()[:1])

    def grow(self):
        floats = [tensor for tensor in self._kept if tensor.dtype is torch.float32]
        self._kept = [torch.cat([tensor.reshape(-1) for tensor in floats])] if floats else []

    def copy_model(self):
        if len(self._models) < 3:
            mod = copy.deepcopy(self._model()[0])
            self._models.append((mod, OPTIMIZERS[0](mod.parameters())))

    def copy_state(self):
        self._kept += [tensor.clone() for tensor in self._model()[0].state_dict().values()][:3]

    def enter_other_trackers(self):
        with MemTracker() as mt, ModTracker():
            self._run(self._model()[0])
            mt.get_module_snapshot()

    def drop_outputs(self):
        del self._outputs[self._rng.randint(0, len(self._outputs)) :]

    def drop_kept(self):
        del self._kept[self._rng.randint(0, len(self._kept)) :]

    def drop_model(self):
        if len(self._models) > 1:
            del self._models[self._rng.randrange(len(self._models))]
            gc.collect()


ACTIONS = [name for name in vars(Program) if not name.startswith("_")] + ["forward", "backward"] * 3


def run(rng, check):
    """Run a random program; `check` is called after each action with its name and the models."""
    torch.manual_seed(rng.randrange(1 << 30))
    program = Program(rng)
    check("build", program._models)
    for _ in range(rng.randint(5, 25)):
        action = rng.choice(ACTIONS)
        getattr(program, action)()
        check(action, program._models)
    # After an error the engine keeps the nodes that it did not run until the next backward of this thread, which may be
    # in the next program: that would free blocks that its count does not know.
    torch.ones(1, requires_grad=True).sum().backward()


@needs_interception
def test_totals_and_peaks_are_those_of_the_profiler():
    actions_run = 0
    for number, rng in rounds(at_least=30, seconds=6):
        with MemTracker("allocator") as mt:
            done = []
            with Counted(mt) as count:
                run(rng, lambda action, models: (done.append(action), count.mark()))
                gc.collect()
            where = f"MODSCOPE_STORM_SEED={SEED}, round {number}: {done}"
            assert count.tracked == count.counted, where
            assert wrong_sums(mt) == [], where
            actions_run += len(done)
    print(f"{actions_run} actions")


class Storages(TorchDispatchMode):
    """Lists the storages that operators returned and that are alive."""

    def __init__(self):
        super().__init__()
        self.alive = {}

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.alive.setdefault(
                    storage._cdata, weakref.ref(storage, lambda _, key=storage._cdata: self.alive.pop(key, None))
                )
        return result

    def bytes(self):
        return sum(storage.nbytes() for ref in self.alive.values() if (storage := ref()) is not None)


@pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "_should_skip_dynamo"), reason="this torch frees storages' Python objects early"
)
def test_totals_are_those_of_the_live_storages():
    """By the dispatcher: what the operators returned."""
    for number, rng in rounds(at_least=30, seconds=3):
        done, wrong = [], []
        with MemTracker("dispatcher") as mt, Storages() as storages:

            def check(action, models):
                done.append(action)
                mt.track_external([mod for mod, _ in models])  # torch.tensor makes buffers without an operator
                if now(mt) != storages.bytes():
                    wrong.append((action, now(mt), storages.bytes()))

            run(rng, check)
            gc.collect()
            check("the end", [])
            where = f"MODSCOPE_STORM_SEED={SEED}, round {number}: {done}"
            assert wrong == [] and wrong_sums(mt) == [], where
