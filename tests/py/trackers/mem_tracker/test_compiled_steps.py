"""Optimizer steps that dynamo compiles: they are seen as optimizer steps, and entering a tracker compiles nothing
again."""

import ctypes
import gc
import weakref

import pytest
from helpers import needs_interception
from memory_helpers import held, held_by
from modscope import MemTracker, ModTracker, load, record
from torch._dynamo.utils import counters
from torch.optim import Optimizer

import torch
from torch import nn

pytestmark = needs_interception


class Plain(Optimizer):
    """Without the graph break of torch's own optimizers: dynamo inlines its step."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad)


def train(net, step, optimizer):
    net(torch.ones(1, 4)).sum().backward()
    step()
    optimizer.zero_grad()


def compiled(how, kind):
    """A net, its optimizer and the compiled step."""
    torch._dynamo.reset()
    counters.clear()
    net = nn.Linear(4, 4)
    optimizer = kind(net.parameters())
    if how == "assigned":
        optimizer.step = torch.compile(optimizer.step, backend="eager")
        return net, optimizer, optimizer.step
    if how == "method":
        return net, optimizer, torch.compile(optimizer.step, backend="eager")
    return net, optimizer, torch.compile(lambda: optimizer.step(), backend="eager")


def compilations():
    return counters["frames"]["total"], counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.parametrize("kind", [torch.optim.Adam, Plain])
@pytest.mark.parametrize("how", ["assigned", "method"])
def test_a_compiled_step_is_seen_and_not_compiled_again(tmp_path, how, kind):
    net, optimizer, step = compiled(how, kind)
    for _ in range(2):
        train(net, step, optimizer)
    before = compilations()
    assert before[0] > 0
    with record(tmp_path / "run.msc"):
        for _ in range(3):
            train(net, step, optimizer)
    train(net, step, optimizer)
    with MemTracker() as tracker:
        train(net, step, optimizer)
        assert held(tracker) == held_by([net], [optimizer])
    train(net, step, optimizer)
    assert compilations() == before
    capture = load(tmp_path / "run.msc")
    assert (capture.last_step, capture.optimizer_steps) == (3, 3)
    if kind is torch.optim.Adam:
        assert capture.phases["optimizer"].blocks > 0


def test_a_step_in_a_compiled_function_is_seen(tmp_path):
    net, optimizer, step = compiled("function", torch.optim.Adam)
    train(net, step, optimizer)
    before = compilations()
    with record(tmp_path / "run.msc"):
        for _ in range(3):
            train(net, step, optimizer)
    assert compilations() == before
    assert load(tmp_path / "run.msc").optimizer_steps == 3


def test_a_step_that_is_compiled_while_tracking_is_not_compiled_again_afterwards():
    net, optimizer, step = compiled("method", torch.optim.SGD)
    with MemTracker():
        for _ in range(2):
            train(net, step, optimizer)
    before = compilations()
    train(net, step, optimizer)
    assert compilations() == before


class Looking(Plain):
    def step(self, closure=None):
        super().step()
        self.look()


def test_the_phase_in_a_compiled_step():
    net, optimizer, step = compiled("method", Looking)
    seen = []
    optimizer.look = torch._dynamo.disable(lambda: seen.append(tracker.phase))
    with MemTracker(), ModTracker() as tracker:
        for _ in range(2):
            train(net, step, optimizer)
            seen.append(tracker.phase)
    assert seen == ["optimizer", "idle"] * 2


# ---- how steps are intercepted ----


def pointers(kind):
    """What is called for a step of this class, in both places."""
    offset = ctypes.c_ssize_t.from_address(id(type(train)) + 7 * 8).value  # tp_vectorcall_offset
    return [ctypes.c_void_p.from_address(id(each) + offset).value for each in (kind.step, kind.step.__wrapped__, train)]


def test_a_class_that_is_first_instantiated_while_tracking_is_seen(tmp_path):
    class Late(Plain):
        def step(self, closure=None):
            super().step()

    net = nn.Linear(4, 4)
    with record(tmp_path / "run.msc"):
        late = Late(net.parameters())
        for _ in range(3):
            train(net, late.step, late)
    assert load(tmp_path / "run.msc").optimizer_steps == 3
    assert len(set(pointers(Late))) == 1


def test_everything_is_restored():
    net = nn.Linear(4, 4)
    torch.optim.SGD(net.parameters(), 0.1)
    original = Optimizer.__dict__["profile_hook_step"]
    before = pointers(torch.optim.SGD)
    for _ in range(2):
        with MemTracker():
            assert pointers(torch.optim.SGD)[0] != before[0] and Optimizer.__dict__["profile_hook_step"] is not original
        assert pointers(torch.optim.SGD) == before and Optimizer.__dict__["profile_hook_step"] is original


def test_no_class_is_kept_alive():
    class Late(Plain):
        pass

    with MemTracker():
        Late(nn.Linear(4, 4).parameters())
    dead = weakref.ref(Late)
    del Late
    gc.collect()
    assert dead() is None


def test_another_tool_may_replace_the_wrapping_function():
    original = Optimizer.__dict__["profile_hook_step"]
    wrapped = []
    try:
        with MemTracker():
            ours = Optimizer.profile_hook_step
            Optimizer.profile_hook_step = staticmethod(lambda step: (wrapped.append(step), ours(step))[1])
        with MemTracker():

            class Late(Plain):
                def step(self, closure=None):
                    super().step()

            net = nn.Linear(4, 4)
            late = Late(net.parameters())
            train(net, late.step, late)
        assert len(wrapped) == 1
    finally:
        Optimizer.profile_hook_step = original
    with MemTracker():
        assert Optimizer.__dict__["profile_hook_step"] is ours
    assert Optimizer.__dict__["profile_hook_step"] is original


def test_a_step_that_raises_has_ended(tmp_path):
    class Failing(Plain):
        def step(self, closure=None):
            raise ValueError("no step")

    net = nn.Linear(4, 4)
    with MemTracker(), ModTracker() as tracker:
        optimizer = Failing(net.parameters())
        with pytest.raises(ValueError, match="no step") as kept:
            optimizer.step()
        assert tracker.phase == "idle"
    assert kept.value.__traceback__ is not None
