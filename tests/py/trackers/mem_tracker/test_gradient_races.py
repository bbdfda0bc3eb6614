"""Other threads replace gradients while claims are made: torch does that without the GIL in
``backward(create_graph=True)``. And a claim of a gradient runs none of the program's Python code."""

import os
import subprocess
import sys
import threading

import pytest
from helpers import needs_interception
from memory_helpers import CPU, every_source
from modscope import Category, MemTracker
from torch.overrides import TorchFunctionMode

import torch
from torch import nn

STRESS = """
import sys, threading, time, torch
from modscope import MemTracker

torch.set_num_threads(1)
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(40)))
stop = time.monotonic() + float(sys.argv[1])

def work():
    while time.monotonic() < stop:
        net(torch.ones(1, 8)).sum().backward(create_graph=True)

threads = [threading.Thread(target=work) for _ in range(3)]
mt = MemTracker()
mt.track_external(net)
with mt:
    for thread in threads:
        thread.start()
    while time.monotonic() < stop:
        mt.get_tracker_snapshot()
        with MemTracker():
            pass
    for thread in threads:
        thread.join()
    net.zero_grad()
    assert mt.get_tracker_snapshot()[torch.device("cpu")]["Total"] >= 0
"""


# torch frees a gradient without the GIL while its parameter still points to it.
SET_TO_NONE = """
import sys, threading, time, torch
from modscope import MemTracker

torch.set_num_threads(1)
stop = time.monotonic() + float(sys.argv[1])

def work():
    while time.monotonic() < stop:
        net = torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(2)))
        net(torch.ones(7, 30)).sum().backward()
        for parameter in [*net.parameters()] * 20:
            parameter.grad = torch.ones_like(parameter)
            gradient = parameter.grad
            del gradient
            parameter.grad = None

threads = [threading.Thread(target=work) for _ in range(4)]
with MemTracker() as mt:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mt.get_tracker_snapshot()[torch.device("cpu")]["Total"] == 0
"""


@pytest.mark.parametrize("program", [STRESS, SET_TO_NONE], ids=["replaced", "set to None"])
def test_gradients_that_other_threads_replace(program):
    """Freed memory is overwritten there, so that a read of it may crash. It is a race: the tests below show without
    one that no gradient is read while another thread may replace it."""
    env = os.environ | {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", program, "2"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]


def gradient_bytes(mt):
    return mt.get_tracker_snapshot()[CPU][Category.GRAD]


@needs_interception
@pytest.mark.parametrize("replaced", [False, True])
def test_a_gradient_is_not_read_while_another_thread_accumulates_it(replaced):
    """It stays what it was claimed as. What replaced it is claimed when the accumulation has ended."""
    mod = nn.Linear(4, 4, bias=False)
    mod(torch.ones(1, 4)).sum().backward()
    inside, read, before = threading.Event(), threading.Event(), [mod.weight.grad]

    def wait(parameter):
        if replaced:
            parameter.grad = parameter.grad + 1
        inside.set()
        assert read.wait(300)

    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt:
        assert gradient_bytes(mt) == 64
        handle = mod.weight.register_post_accumulate_grad_hook(wait)
        thread = threading.Thread(target=lambda: mod(torch.ones(1, 4)).sum().backward())
        thread.start()
        assert inside.wait(300)
        during = mt.get_tracker_snapshot()[CPU]
        read.set()
        thread.join()
        handle.remove()
        assert (during[Category.GRAD], during[Category.OTH]) == (64, 8)  # the loss and its gradient
        after = mt.get_tracker_snapshot()[CPU]
        assert (after[Category.GRAD], after[Category.OTH]) == (64, 64 if replaced else 0)
        mod.weight.grad = None
        del before[:]
        assert gradient_bytes(mt) == 0


@needs_interception
def test_a_hook_of_the_accumulating_thread_sees_the_new_gradient():
    mod, seen = nn.Linear(4, 4, bias=False), []
    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt:
        mod.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(gradient_bytes(mt)))
        mod(torch.ones(1, 4)).sum().backward()
        assert seen == [64]


@needs_interception
def test_a_tracker_entered_while_another_thread_accumulates():
    """It cannot know what that thread does to the gradient, so it counts it as soon as the backward has ended."""
    mod = nn.Linear(4, 4, bias=False)
    mod(torch.ones(1, 4)).sum().backward()
    inside, read = threading.Event(), threading.Event()

    def wait(parameter):
        inside.set()
        assert read.wait(300)

    mod.weight.register_post_accumulate_grad_hook(wait)
    thread = threading.Thread(target=lambda: mod(torch.ones(1, 4)).sum().backward())
    thread.start()
    assert inside.wait(300)
    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt:
        during = gradient_bytes(mt)
        read.set()
        thread.join()
        assert during == 0 and gradient_bytes(mt) == 64


# ---- no Python code of the program runs ----


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


class Recorded(torch.Tensor):
    """Records what its __torch_function__ sees."""

    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def read_grad(calls):
    return [func for func in calls if func in (torch.Tensor.grad.__get__, torch.Tensor._indices, torch.Tensor._values)]


def gradients_of(kind):
    """A module whose parameter has no gradient, or one that is sparse."""
    mod = nn.Embedding(8, 4, sparse=True) if kind == "sparse" else nn.Linear(4, 4)
    if kind == "sparse":
        mod(torch.tensor([1, 2])).sum().backward()
        assert mod.weight.grad.is_sparse
    return mod, torch.tensor([1]) if kind == "sparse" else torch.ones(1, 4)


@every_source
@pytest.mark.parametrize("kind", ["none", "sparse"])
def test_a_mode_does_not_see_that_gradients_are_read(source, kind):
    mod, x = gradients_of(kind)
    with MemTracker(source) as mt, Seen() as seen:
        mod(x)
        mt.get_tracker_snapshot()
        mod(x).sum().backward()
        mt.get_tracker_snapshot()
    assert read_grad(seen.calls) == []


@every_source
def test_a_subclass_does_not_see_that_gradients_are_read(source):
    mod = nn.Linear(4, 4)
    mod.weight = nn.Parameter(torch.ones(4, 4).as_subclass(Recorded))
    with MemTracker(source) as mt:
        mod(torch.ones(1, 4)).sum().backward()
        mt.get_tracker_snapshot()
    assert read_grad(Recorded.calls) == []


@every_source
def test_a_metaclass_that_changes_the_module_while_it_is_claimed(source):
    """Reading an attribute of a class may run its metaclass's __getattr__, which may drop what is being read."""
    changes = []

    class Changing(type(torch.Tensor)):
        def __getattr__(cls, name):
            if mod is not None and name == "__tensor_flatten__":
                changes.append(name)
                for key in [*mod._parameters]:
                    del mod._parameters[key]
                for i in range(64):
                    mod._parameters[f"new{i}"] = nn.Parameter(torch.ones(i + 1))
            raise AttributeError(name)

    class Odd(torch.Tensor, metaclass=Changing):
        pass

    mod = None
    made = nn.Module()
    made.forward = lambda x: x
    for i in range(20):
        made.register_parameter(f"p{i}", nn.Parameter(torch.ones(i + 1).as_subclass(Odd)))
    mod = made
    with MemTracker(source) as mt:
        mod(torch.ones(1))
        mt.get_tracker_snapshot()
    assert changes == [] and len(mod._parameters) == 20


@needs_interception
@pytest.mark.parametrize("way", ["assignment", "setattr"])
def test_a_gradient_is_not_read_while_another_thread_may_free_it(way):
    """torch frees a gradient without the GIL, and forgets it only afterwards. Nothing is read of it meanwhile."""
    mod, gate = nn.Linear(4, 4, bias=False), threading.Lock()

    def assign():
        gate.acquire()
        mod.weight.grad = None
        gate.release()

    def set_attribute():
        gate.acquire()
        mod.weight.grad = None
        gate.release()

    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt, gate:
        mod.weight.grad = torch.ones(4, 4)
        thread = threading.Thread(target=assign if way == "assignment" else set_attribute)
        thread.start()
        while sys._current_frames()[thread.ident].f_code.co_name not in ("assign", "set_attribute"):
            pass
        while_waiting = gradient_bytes(mt)
        gate.release()
        thread.join()
        gate.acquire()
        mod.weight.grad = torch.ones(4, 4)
        assert (while_waiting, gradient_bytes(mt)) == (0, 64)
