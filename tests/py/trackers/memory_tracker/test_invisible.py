"""The program is the same with the tracker as without, and afterwards nothing of it is left. Other trackers may be
active at the same time, in any order."""

import contextlib
import gc
import random
import signal
import sys
import threading
import time
import weakref

import pytest
from helpers import Boom, make, needs_interception
from memory_tracker_helpers import Net, monitored, names, operator_names, positions
from modscope import MemoryTracker, MemTracker, ModTracker, record
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import torch


def no_modes():
    return _get_current_dispatch_mode_stack() == []


def train(net, steps=3):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in net.parameters()]


def test_results_are_the_same_to_the_bit():
    torch.manual_seed(0)
    net = Net()
    torch.manual_seed(0)
    same = Net()
    with monitored(same):
        got = train(same)
    assert all(map(torch.equal, train(net), got))


def test_nothing_is_left_in_torch_or_on_modules(torch_as_found):
    net = Net()
    before = [
        {name: dict(value) if isinstance(value, dict) else value for name, value in vars(m).items()}
        for m in net.modules()
    ]
    with monitored(net):
        during = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
        net(torch.randn(3, 8))
    assert [vars(m) for m in net.modules()] == before
    assert not any(during)
    assert no_modes()


def test_a_tracker_keeps_no_module_and_no_tensor_alive():
    net = Net()
    x = torch.randn(3, 8)
    with monitored(net) as tracker:
        net(x).sum().backward()
    refs = [weakref.ref(module) for module in net.modules()] + [weakref.ref(x)]
    del net, x
    gc.collect()
    assert not any(ref() is not None for ref in refs)
    assert positions(tracker, "relu.default") == ["rest.1.forward"]


def test_operators_and_records_are_released():
    operator = torch.ops.aten.addmm.default
    net, x = Net(), torch.randn(3, 8)

    def once():
        with monitored(net) as tracker:
            net(x).sum().backward()
        tracker.memories_allocated, tracker._markers, tracker._operator_names

    once()
    gc.collect()
    before = sys.getrefcount(operator), len(gc.get_objects())
    for _ in range(5):
        once()
    gc.collect()
    assert (sys.getrefcount(operator), len(gc.get_objects())) == before


def test_other_threads_run_the_same_module_and_are_not_recorded():
    net, x, errors = Net(), torch.randn(3, 8), []

    def other():
        try:
            for _ in range(30):
                net(x).sum().backward()
                tracker.memories_allocated
        except BaseException as error:
            errors.append(error)

    with monitored(net) as tracker:
        threads = [threading.Thread(target=other) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            net(x).sum().backward()
        for thread in threads:
            thread.join(600)
    assert not errors
    assert positions(tracker, "relu.default") == ["rest.1.forward"] * 30
    assert positions(tracker, "threshold_backward.default") == ["rest.1.backward"] * 30


def test_the_root_module_may_die_while_monitoring():
    net = Net()
    tracker = MemoryTracker()
    tracker.start_monitor(net)
    net(torch.randn(3, 8))
    del net
    gc.collect()
    Net()(torch.randn(3, 8))
    tracker.stop()
    assert positions(tracker, "relu.default")[0] == "rest.1.forward" and len(positions(tracker, "relu.default")) == 2


def test_an_exception_between_start_and_stop_leaves_nothing(torch_as_found):
    def fail(module, x):
        raise Boom

    with pytest.raises(Boom), monitored(make("Root", fail)) as tracker:
        make("Other", lambda m, x: m.part(x * 2), part=make("Part", fail))(torch.ones(2))
    assert positions(tracker, "mul.Tensor") == ["Other.forward"]
    assert no_modes()


def test_two_trackers_overlap_in_any_order(torch_as_found):
    net, other = Net(), Net()
    for first_stops_first in (True, False):
        a, b = MemoryTracker(), MemoryTracker()
        a.start_monitor(net)
        torch.zeros(1)
        b.start_monitor(other)
        torch.ones(1)
        (a if first_stops_first else b).stop()
        torch.full((1,), 2.0)
        (b if first_stops_first else a).stop()
        torch.zeros(1)
        both = [".zeros.default_0", ".ones.default_0", ".full.default_0"]
        assert names(a) == (both[:2] if first_stops_first else both)
        assert names(b) == (both[1:] if first_stops_first else both[1:2])
        assert no_modes()


@pytest.mark.parametrize("source", ["auto", "dispatcher"])
def test_a_mem_tracker_inside_and_outside(source, torch_as_found):
    net = Net()
    with MemTracker(source) as outside, monitored(net) as tracker:
        net(torch.randn(3, 8)).sum().backward()
        with MemTracker(source) as inside:
            net(torch.randn(3, 8)).sum().backward()
    assert len(positions(tracker, "relu.default")) == 2
    assert outside.peak and inside.peak
    assert no_modes()


def test_a_mem_tracker_with_the_dispatcher_may_be_entered_while_monitoring():
    net = Net()
    with monitored(net) as tracker, MemTracker("dispatcher") as inside:
        net(torch.randn(3, 8)).sum().backward()
    assert positions(tracker, "relu.default") == ["rest.1.forward"] and inside.peak
    assert no_modes()


def test_a_mod_tracker_and_a_recording_at_the_same_time(tmp_path):
    net, called = Net(), []
    mt = ModTracker()
    mt.register_user_hooks(pre_fw_hook=lambda module, args: called.append(module))
    with monitored(net) as tracker, mt, record(tmp_path / "run.msc"):
        net(torch.randn(3, 8)).sum().backward()
    assert called == [net, net.first, net.rest, net.rest[0], net.rest[1]]
    assert tracker._markers == {"fw_start": 1, "fw_bw_boundary": 7}
    assert no_modes()


class Plain(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@needs_interception  # the fallback's own mode cannot be removed then either
def test_stopped_under_another_mode_it_does_nothing_and_goes_at_the_next_start():
    tracker = MemoryTracker()
    tracker.start_monitor(Net())
    with Plain():
        torch.zeros(1)
        tracker.stop()
        torch.zeros(1)
    torch.zeros(1)
    assert names(tracker) == [".zeros.default_0"]
    tracker.start_monitor(Net())
    tracker.stop()
    assert no_modes()


def test_threads_have_trackers_of_their_own():
    barrier, recorded, errors = threading.Barrier(4), {}, []

    def work(number):
        try:
            net = Net()
            barrier.wait()
            with monitored(net) as tracker:
                for _ in range(number + 1):
                    net(torch.randn(3, 8)).sum().backward()
            recorded[number] = tracker
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not errors
    for number, tracker in recorded.items():
        assert positions(tracker, "relu.default") == ["rest.1.forward"] * (number + 1)
        assert positions(tracker, "threshold_backward.default") == ["rest.1.backward"] * (number + 1)
        assert not [name for name in names(tracker) if name.startswith("Net")]


def test_a_tracker_may_be_stopped_in_another_thread():
    tracker, stopped, went_on = MemoryTracker(), threading.Event(), []

    def work():
        tracker.start_monitor(Net())
        torch.zeros(1)
        started.set()
        stopped.wait(600)
        went_on.append(torch.ones(1))

    started = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    started.wait(600)
    tracker.stop()
    stopped.set()
    thread.join(600)
    assert went_on and operator_names(tracker) == ["zeros.default_0"]


@pytest.mark.slow
def test_a_signal_handler_that_raises_leaves_a_tracker_started_or_not():
    """In every second round an alarm raises wherever the program is, within the time that the round before took."""
    net, chance, raised = Net(), random.Random(1), 0
    tracker = MemoryTracker()

    def on_alarm(number, frame):
        nonlocal armed, raised
        if armed:
            armed = False
            raised += 1
            raise Boom

    armed = False
    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        for _ in range(3000):
            began = time.perf_counter()
            tracker.start_monitor(net)
            tracker.stop()
            took = time.perf_counter() - began
            with contextlib.suppress(Boom):
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, took))
                tracker.start_monitor(net)
                tracker.stop()
                armed = False
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            if tracker._hooks:
                tracker.stop()
            assert no_modes()
            if raised > 60:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised > 60


@needs_interception  # the fallback's own mode keeps dynamo from compiling
@pytest.mark.slow
def test_a_compiled_module_stays_compiled():
    net = Net()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(net, backend=backend)
    x = torch.randn(3, 8)
    want = compiled(x)
    with monitored(net) as tracker:
        got = compiled(x)
        torch._dynamo.reset()
        again = compiled(x)
    torch._dynamo.reset()
    assert torch.equal(want, got) and torch.equal(want, again)
    assert len(graphs) == 2
    assert len(positions(tracker, "relu.default")) == 2


@pytest.mark.slow
def test_the_process_ends_well_while_monitoring():
    from helpers import run_python

    ran = run_python(
        """
        import torch, modscope
        net = torch.nn.Linear(4, 4)
        tracker = modscope.MemoryTracker()
        tracker.start_monitor(net)
        net(torch.zeros(1, 4)).sum().backward()
        print(tracker._op_index > 5)
        """
    )
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "True", "")
