"""Random programs: models are created, called, differentiated, stepped, cleared and deleted in any
order. After every operation the tracker's figures are compared with the objects themselves, and at
the end with the allocator's own events."""

import gc

import pytest
from helpers import Boom, make, needs_interception
from hypothesis import given, note
from hypothesis import strategies as st
from memory_helpers import Counted, bytes_of, every_source, held, held_by, now, random_programs, wrong_sums
from modscope import MemTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")


WIDTH = 6


class Raises(nn.Module):
    def forward(self, x):
        torch.zeros(50)
        raise Boom


LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "relu": nn.ReLU,
    "relu in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "tanh": nn.Tanh,
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "dropout": lambda: nn.Dropout(0.5),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "checkpoint": lambda: make(
        "Checkpointed",
        lambda m, x: checkpoint(m.a, x, use_reentrant=False),
        a=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
    ),
    "reentrant": lambda: make(
        "Reentrant", lambda m, x: checkpoint(m.a, x, use_reentrant=True), a=nn.Linear(WIDTH, WIDTH)
    ),
    "residual": lambda: make("Residual", lambda m, x: x + m.a(x), a=nn.Linear(WIDTH, WIDTH)),
    "raises": Raises,
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
}
ACTIONS = [
    "build",
    "forward",
    "forward",
    "no grad",
    "autocast",
    "backward",
    "backward",
    "retain",
    "step",
    "zero",
    "zero in place",
    "drop output",
    "keep gradient",
    "drop kept",
    "drop model",
    "tensor",
    "resize",
]

layers = st.lists(
    st.sampled_from([name for name in LAYERS if name != "raises"] * 3 + ["raises"]), min_size=1, max_size=4
)
builds = st.tuples(layers, st.sampled_from(sorted(OPTIMIZERS)))
programs = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7)), min_size=1, max_size=14)


class World:
    """Models with their optimizers, outputs that still have graphs, and whatever else is held."""

    def __init__(self, first):
        self.plans = [first]
        self.models, self.opts, self.outputs, self.kept, self.made = [], [], [], [], []
        self.strays = []
        self.build(0)

    def build(self, i):
        names, optimizer = self.plans[0]
        mod = nn.Sequential(*[LAYERS[name]() for name in names])
        parameters = list(mod.parameters())
        if not parameters:  # an optimizer wants one
            self.strays.append(torch.zeros(1, requires_grad=True))
            parameters = self.strays[-1:]
        self.models.append(mod)
        self.opts.append(OPTIMIZERS[optimizer](parameters))

    def act(self, what, i):
        if what == "build":
            if len(self.models) < 3:
                self.build(i)
        elif what == "tensor":
            self.made.append(torch.zeros(10 * (i + 1)))
        elif what == "drop kept":
            del self.kept[i:], self.made[i:]
        elif what == "resize" and self.made:
            self.made[i % len(self.made)].resize_(7 * i)
        elif what == "drop output":
            del self.outputs[i:]
        elif what in ("backward", "retain") and self.outputs:
            self.backward(i % len(self.outputs), retain=what == "retain")
        elif self.models:
            self.use(what, i % len(self.models))

    def backward(self, i, retain):
        out = self.outputs[i] if retain else self.outputs.pop(i)
        try:
            out.square().sum().backward(retain_graph=retain)
        except RuntimeError:  # it needs no gradient, or a step has changed what it needs
            pass

    def use(self, what, i):
        mod, opt = self.models[i], self.opts[i]
        if what in ("forward", "no grad", "autocast"):
            x = torch.randn(3, WIDTH, requires_grad=what == "forward")
            with (
                torch.set_grad_enabled(what != "no grad"),
                torch.autocast("cpu", torch.bfloat16, enabled=what == "autocast"),
            ):
                try:
                    self.outputs.append(mod(x))
                except Boom:
                    pass
        elif what == "step":
            opt.step()
        elif what == "zero":
            opt.zero_grad()
        elif what == "zero in place":
            opt.zero_grad(set_to_none=False)
        elif what == "keep gradient":
            self.kept += [p.grad for p in mod.parameters() if p.grad is not None][:1]
        elif what == "drop model":
            self.outputs.clear()  # the graph of a checkpoint holds the module
            del self.models[i], self.opts[i], mod, opt
            gc.collect()


def check(mt, world):
    expected = held_by(world.models, world.opts)
    used = [p for opt in world.opts for group in opt.param_groups for p in group["params"]]
    expected["Parameter"] += sum(stray.nbytes for stray in world.strays if any(p is stray for p in used))
    assert held(mt) == expected
    assert wrong_sums(mt) == []


@every_source
@random_programs
@given(first=builds, program=programs)
def test_figures_are_those_of_the_objects_after_every_step(source, first, program):
    torch.manual_seed(0)
    with MemTracker(source) as mt:
        world = World(first)
        mt.track_external(world.models, world.opts)
        check(mt, world)
        for what, i in program:
            note(f"{what} {i}")
            world.act(what, i)
            mt.track_external(world.models, world.opts)  # a new model is known before its first call
            check(mt, world)
        world.outputs.clear()
        world.kept.clear()
        world.made.clear()
        for i in range(len(world.opts)):
            world.opts[i].zero_grad()
        gc.collect()
        assert now(mt) == sum(held_by(world.models, world.opts).values()) + bytes_of(world.strays)
        world.models.clear()
        world.opts.clear()
        world.strays.clear()
        gc.collect()
        assert now(mt) == 0


@needs_interception
@random_programs
@given(first=builds, program=programs)
def test_total_and_peak_are_those_of_the_allocator_after_every_step(first, program):
    torch.manual_seed(0)
    with MemTracker("allocator") as mt:
        with Counted(mt) as count:
            world = World(first)
            for what, i in program:
                note(f"{what} {i}")
                world.act(what, i)
                count.mark()
        assert count.tracked == count.counted
        del world
