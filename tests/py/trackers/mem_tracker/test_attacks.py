"""Programs written to break MemTracker. Each of them once had a wrong result."""

import threading

import numpy as np
import pytest
from helpers import make, needs_interception, rss, run_python
from memory_helpers import CPU, every_source, now
from modscope import MemTracker, _native
from modscope._trackers import mem_tracker

import torch
from torch import nn


class Wrapped(torch.Tensor):
    """A tensor subclass in Python that wraps another tensor."""

    on_flatten = None

    @staticmethod
    def __new__(cls, inner):
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        self.inner = inner
        return self

    def __tensor_flatten__(self):
        hook, Wrapped.on_flatten = Wrapped.on_flatten, None
        if hook:
            hook()
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def holder_of_wrapped():
    mod = make("Holder", lambda m, x: x)
    for i in range(3):
        mod.register_buffer(f"b{i}", Wrapped(torch.zeros(5)))
    return mod


@needs_interception
def test_the_last_tracker_is_left_by_python_that_a_claim_runs():
    mod, mt = holder_of_wrapped(), MemTracker("allocator")
    mt.track_external(mod)
    mt.__enter__()
    Wrapped.on_flatten = mt.__exit__
    mt.get_tracker_snapshot()
    assert Wrapped.on_flatten is None and not _native.blocks_intercepted()


@needs_interception
def test_the_last_tracker_is_left_by_another_thread_while_calls_claim():
    stop = threading.Event()

    def train():
        while not stop.is_set():
            holder_of_wrapped()(torch.zeros(1))

    thread = threading.Thread(target=train)
    thread.start()
    for _ in range(300):
        with MemTracker("allocator"):
            pass
    stop.set()
    thread.join()


@every_source
@pytest.mark.parametrize("how", ["script", "trace"])
def test_what_a_torchscript_module_holds(source, how):
    plain, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(3, 4)
    mod = torch.jit.script(plain) if how == "script" else torch.jit.trace(plain, x)
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        assert now(mt, "Parameter") == (16 + 4 + 4 + 4) * 4
        assert now(mt, "Buffer") == (4 + 4) * 4 + 8
        mod(x).sum().backward()
        assert now(mt, "Gradient") == (16 + 4 + 4 + 4) * 4


class Raising(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError


@every_source
def test_after_a_step_that_raised_a_tensor_is_what_it_would_be(source):
    opt = Raising([nn.Parameter(torch.zeros(2))], lr=0.1)
    with MemTracker(source) as mt:
        try:
            opt.step()
        except ValueError:
            pass
        kept = torch.zeros(1000)
        assert now(mt, "Other") == kept.nbytes and now(mt, "Temp") == 0
        assert mt.peak[CPU].phase == "idle"


@every_source
def test_an_error_while_entering_leaves_nothing(source, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    mt = MemTracker(source)
    with monkeypatch.context() as patch:
        patch.setattr(mem_tracker.MemTracker, "_claim", interrupt)
        with pytest.raises(KeyboardInterrupt):
            mt.__enter__()
    assert not (_native.blocks_intercepted() or _native.calls_intercepted() or _native.nodes_intercepted())
    with pytest.raises(RuntimeError):
        mt.__exit__()
    with mt:
        kept = torch.zeros(10)
        assert now(mt, "Total") == kept.nbytes


@pytest.mark.slow
def test_the_first_entering_of_all_is_interrupted():
    done = run_python(
        """
        import torch
        from modscope import MemTracker
        from modscope._torch import layout
        learn, calls = layout.learn_nodes, []
        def interrupted():
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return learn()
        layout.learn_nodes = interrupted
        try:
            MemTracker().__enter__()
        except KeyboardInterrupt:
            pass
        with MemTracker() as mt:
            kept = torch.zeros(10)
            print(mt.get_tracker_snapshot()[torch.device("cpu")]["Total"])
        """
    )
    assert done.stdout.strip() == "40", done.stderr


def test_a_tracker_that_may_choose_joins_the_dispatcher():
    with MemTracker("dispatcher"), MemTracker() as inner:
        assert inner.source == "dispatcher"


@every_source
def test_calls_from_before_are_not_an_inner_tracker_s(source):
    mod = nn.Linear(2, 2)
    with MemTracker(source) as outer:
        mod(torch.zeros(1, 2))
        with MemTracker(source) as inner:
            assert (len(outer.memory_tracking), len(inner.memory_tracking)) == (1, 0)
            mod(torch.zeros(1, 2))
            assert len(inner.memory_tracking) == 1


@needs_interception
def test_memory_from_outside_that_is_seen_in_parts_counts_as_its_largest():
    memory = np.zeros(1000, dtype=np.float32)
    mod = nn.ParameterList([torch.from_numpy(memory[:10]), torch.from_numpy(memory)])
    mt = MemTracker("allocator")
    mt.track_external(mod)
    with mt:
        assert mt.outside[CPU]["Parameter"] == now(mt, "Parameter") == 4000


@every_source
def test_a_parameter_that_is_in_the_state_too_stays_a_parameter(source):
    mod = nn.Linear(4, 4)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1, momentum=0.9)
    mt = MemTracker(source)
    mt.track_external(mod, opt)
    with mt:
        mod(torch.zeros(1, 4)).sum().backward()
        for p in mod.parameters():
            opt.state[p]["same"] = p.data
        opt.step()
        assert now(mt, "Parameter") == 80
        assert now(mt, "Optstate") == 80


def test_threads_that_ended_leave_little_behind():
    def once():
        nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()

    with MemTracker():
        once()
        before = rss()
        for _ in range(200):
            thread = threading.Thread(target=once)
            thread.start()
            thread.join()
        assert rss() - before < 60 * 2**20


@every_source
def test_the_cpu_is_there_before_anything_is_held(source):
    with MemTracker(source) as mt:
        assert mt.get_tracker_snapshot()[CPU]["Total"] == mt.get_tracker_snapshot("peak")[CPU]["Total"] == 0
