"""Optstate is what optimizers hold, in whatever containers; what a step allocates and frees is Temp."""

import gc

import pytest
from helpers import Boom, mlp
from memory_helpers import (
    at_peak,
    bytes_of,
    every_source,
    held,
    held_by,
    now,
    of_module,
    parameter_bytes,
    state_bytes,
    tracker_of,
    wrong_sums,
)

import torch
from torch import nn

OPTIMIZERS = {
    "Adam": lambda p: torch.optim.Adam(p),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.1, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=4, history_size=3),
}
if not hasattr(torch.optim, "Adafactor"):  # before torch 2.5
    del OPTIMIZERS["Adafactor"]


@every_source
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_is_what_the_optimizer_holds(source, kind):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    opt = OPTIMIZERS[kind](mod.parameters())

    def closure():
        opt.zero_grad()
        loss = mod(x).square().sum()
        loss.backward()
        return loss

    with tracker_of(source, mod, opt, x) as mt:
        for _ in range(3):
            opt.step(closure)
            assert held(mt) == held_by([mod], [opt])
            assert wrong_sums(mt) == []
    assert (state_bytes(opt) == 0) == (kind == "SGD")


class Nested(torch.optim.SGD):
    """Keeps its state in dicts of lists of dicts."""

    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p]["deep"] = {"list": [{"a": torch.zeros(10)}, (torch.zeros(5), None, 3)]}


@every_source
def test_state_inside_containers_of_containers(source):
    mod, x = nn.Linear(8, 8), torch.randn(4, 8)
    opt = Nested(mod.parameters(), lr=0.1)
    with tracker_of(source, mod, opt, x) as mt:
        mod(x).sum().backward()
        opt.step()
        assert now(mt, "Optstate") == 2 * (40 + 20)


@every_source
def test_state_that_is_no_parameters(source):
    """Under keys of its own, without a dict around it, and in a list that holds itself."""
    mod, x = nn.Linear(8, 8), torch.randn(4, 8)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1)
    endless = [torch.zeros(3)]
    endless.append(endless)
    with tracker_of(source, mod, opt, x) as mt:
        opt.state["average"] = {"of": [torch.zeros(10)]}
        opt.state["plain"] = torch.zeros(5)
        assert now(mt, "Optstate") == 40 + 20
        assert of_module(mt, "Global")["Optstate"] == 60
        opt.state["loop"] = {"endless": endless}
        assert 60 <= now(mt, "Optstate") <= 60 + 12
        opt.state.clear()
        endless.clear()


@every_source
def test_state_belongs_to_the_module_of_its_parameter(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1, momentum=0.9)
    with tracker_of(source, mod, x) as mt:
        mod(x).sum().backward()
        opt.step()
        assert of_module(mt, "Sequential.0")["Optstate"] == of_module(mt, "Sequential.2")["Optstate"] == 288
        assert of_module(mt, "Global")["Optstate"] == 0


@every_source
def test_state_that_was_cleared(source):
    mod, x = mlp(1, 8), torch.randn(4, 8)
    opt = torch.optim.Adam(mod.parameters())
    with tracker_of(source, mod, opt, x) as mt:
        mod(x).sum().backward()
        opt.step()
        opt.state.clear()
        assert now(mt, "Optstate") == 0
        opt.zero_grad()
        assert now(mt) == parameter_bytes(mod) + bytes_of(x)


@every_source
def test_what_a_step_makes_and_drops_was_temporary(source):
    """foreach=True makes lists of temporaries as large as the parameters."""
    mod, x = nn.Linear(64, 64), torch.randn(1, 64)
    opt = torch.optim.Adam(mod.parameters(), foreach=True)
    with tracker_of(source, mod, opt, x) as mt:
        for _ in range(2):
            mod(x).sum().backward()
            mt.reset_peak()
            opt.step()
            assert now(mt, "Temp") == 0
        assert at_peak(mt, "Temp") >= parameter_bytes(mod)
        assert mt.peak[x.device].phase == "optimizer"


@every_source
def test_a_step_that_a_scheduler_wraps(source):
    mod, x = nn.Linear(64, 64), torch.randn(1, 64)
    opt = torch.optim.Adam(mod.parameters(), foreach=True)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
    with tracker_of(source, mod, x) as mt:
        for _ in range(2):
            mod(x).sum().backward()
            mt.reset_peak()
            opt.step()
            scheduler.step()
            assert held(mt) == held_by([mod], [opt])
            assert mt.peak[x.device].phase == "optimizer"


@every_source
def test_steps_inside_backward(source):
    """Each gradient is used and freed as soon as it is ready."""
    mod, x = mlp(3, 8), torch.randn(4, 8)
    opts = {p: torch.optim.Adam([p]) for p in mod.parameters()}

    def use(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in mod.parameters():
        p.register_post_accumulate_grad_hook(use)
    with tracker_of(source, mod, x) as mt:
        for _ in range(2):
            mod(x).sum().backward()
            assert held(mt) == held_by([mod], opts.values())
            assert now(mt, "Gradient") == now(mt, "Temp") == now(mt, "Activation") == 0
            assert wrong_sums(mt) == []


@every_source
def test_an_optimizer_whose_step_raises(source):
    class Fails(torch.optim.Adam):
        def step(self, closure=None):
            super().step(closure)
            raise Boom

    mod, x = mlp(1, 8), torch.randn(4, 8)
    opt = Fails(mod.parameters())
    with tracker_of(source, mod, opt, x) as mt:
        for _ in range(2):
            mod(x).sum().backward()
            with pytest.raises(Boom):
                opt.step()
            assert held(mt) == held_by([mod], [opt])
            gc.collect()
            assert now(mt, "Temp") == 0
            made = torch.empty(10)
            assert now(mt, "Other") == x.nbytes + 40, "the step is over"
            del made
