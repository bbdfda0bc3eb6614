"""On the CPU the figures are what a MemTracker counts; on fake tensors too."""

import pytest
from helpers import make, needs_interception
from memory_tracker_helpers import Net, monitored, names
from modscope import MemTracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch

CPU = torch.device("cpu")
on_the_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the figures are those of the GPU")
MIB = 1 << 20


class ReadAfterEach(TorchDispatchMode):
    """What a MemTracker counts after each operator, in MiB."""

    def __init__(self, tracker):
        super().__init__()
        self.tracker, self.read = tracker, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.detach.default:
            self.read.append(self.tracker.get_tracker_snapshot()[CPU]["Total"] / MIB)
        return result


def test_the_figures_are_a_mem_tracker_s_after_every_operator():
    net = Net()
    other = MemTracker()
    other.track_external(net)
    with other, monitored(net) as tracker, ReadAfterEach(other) as beside:
        for _ in range(3):
            net(torch.randn(3, 8)).sum().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.sub_(parameter.grad)
        net.zero_grad()
        torch.zeros(1)
    assert len(beside.read) > 80
    assert [figure for _, figure in tracker.memories_allocated.values()] == beside.read
    assert tracker.memories_active == tracker.memories_reserved == tracker.memories_allocated


@on_the_cpu
def test_an_operator_s_growth_is_the_size_of_its_result():
    net = make("Root", lambda m, x: x + 1)
    x = torch.zeros(MIB // 4)
    with monitored(net) as tracker:
        first = net(x)
        second = net(x)
        del first
        third = net(x)
    figures = [figure for _, figure in tracker.memories_allocated.values()]
    assert [b - a for a, b in zip(figures, figures[1:])] == [1.0, 0.0]
    assert tracker.memories_allocated[0] == (".forward.add.Tensor_0", pytest.approx(figures[1] - 1))
    del second, third


def test_parameters_that_exist_already_are_counted():
    net = make("Root", lambda m, x: x.view(-1))
    net.weight = torch.nn.Parameter(torch.zeros(MIB))
    with monitored(net) as tracker:
        net(torch.zeros(0))
    assert tracker.memories_allocated[tracker._op_index - 1][1] == 4.0


def test_figures_may_be_read_while_monitoring():
    net = Net()
    with monitored(net) as tracker:
        net(torch.randn(3, 8))
        before = dict(tracker.memories_allocated)
        net(torch.randn(3, 8))
        after = tracker.memories_allocated
    assert 0 < len(before) < len(after) and before == {i: after[i] for i in before}


def test_starting_again_begins_anew():
    net = Net()
    with monitored(net) as tracker:
        net(torch.randn(3, 8))
    tracker.start_monitor(net)
    torch.zeros(3)
    tracker.stop()
    assert names(tracker) == [".zeros.default_0"]
    assert tracker._markers == {}


def test_fake_tensors_are_counted():
    with FakeTensorMode():
        net = make("Root", lambda m, x: m.part(x), part=torch.nn.Linear(1024, 1024, bias=False))
        x = torch.randn(1024, 1024)
        with monitored(net) as tracker:
            out = net(x)
            del out
    figures = dict(tracker.memories_allocated.values())
    assert figures["part.forward.mm.default_0"] - figures["part.forward.t.default_0"] == 4.0


@needs_interception
@on_the_cpu
def test_memory_that_another_thread_allocates_counts_too():
    import threading

    net, kept = make("Root", lambda m, x: x + 1), []
    x = torch.zeros(4)
    with monitored(net) as tracker:
        net(x)
        thread = threading.Thread(target=lambda: kept.append(torch.zeros(MIB)))
        thread.start()
        thread.join()
        net(x)
    figures = [figure for _, figure in tracker.memories_allocated.values()]
    assert len(figures) == 2 and figures[1] - figures[0] == 4.0
