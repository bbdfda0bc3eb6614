"""A signal handler of the program may raise while modscope runs Python code: the exception reaches the program, and
torch is left as it was."""

import dataclasses
import random
import signal
import time

import pytest
from helpers import INTERCEPTION, make, torch_globals
from memory_helpers import every_source
from modscope import MemTracker
from modscope._torch import global_hooks
from modscope._trackers import mem_tracker
from torch.optim import optimizer
from torch.utils.hooks import RemovableHandle

import torch


class Alarm(Exception):
    pass


class Handler:
    """How often it was called."""

    def __init__(self, kind):
        self.kind, self.calls = kind, 0

    def __call__(self, number, frame):
        self.calls += 1
        raise self.kind

    def handle(self, number, frame):  # a bound method is a handler, too
        self(number, frame)


@pytest.fixture(params=[Alarm, TimeoutError, KeyboardInterrupt], ids=lambda kind: kind.__name__)
def handler(request):
    handler = Handler(request.param)
    before = signal.signal(signal.SIGALRM, handler)
    yield handler
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def step_hooks():
    """What modscope may change to see optimizer steps."""
    wrap = optimizer.Optimizer.__dict__["profile_hook_step"]
    return len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks), wrap


registers_hooks = pytest.mark.skipif(INTERCEPTION, reason="only the fallback registers hooks")


def raise_once(handler, function):
    """The function, with an alarm just before its first run."""

    def wrapped(*args, **kwargs):
        if handler.calls == 0:
            signal.raise_signal(signal.SIGALRM)
        return function(*args, **kwargs)

    return wrapped


@registers_hooks
@every_source
def test_an_alarm_while_hooks_are_removed(source, handler, monkeypatch):
    before, hooks = torch_globals(), step_hooks()
    with pytest.raises(handler.kind):
        with MemTracker(source):
            monkeypatch.setattr(RemovableHandle, "remove", raise_once(handler, RemovableHandle.remove))
    assert handler.calls == 1 and step_hooks() == hooks and torch_globals() == before


@registers_hooks
@every_source
def test_an_alarm_when_a_hook_is_registered_and_its_handle_is_not_known(source, handler, monkeypatch):
    register = global_hooks.optimizer_module.register_optimizer_step_post_hook

    def interrupted(hook):
        handle = register(hook)
        signal.raise_signal(signal.SIGALRM)
        return handle

    monkeypatch.setattr(global_hooks.optimizer_module, "register_optimizer_step_post_hook", interrupted)
    before, hooks = torch_globals(), step_hooks()
    with pytest.raises(handler.kind), MemTracker(source):
        pass
    assert step_hooks() == hooks and torch_globals() == before


@dataclasses.dataclass
class Output:
    out: torch.Tensor


@pytest.mark.parametrize("by_method", [False, True])
def test_an_alarm_while_an_output_is_read(handler, by_method):
    """A field that is a property runs Python code. Its own errors are not the program's, those of the handler are."""
    if by_method:
        signal.signal(signal.SIGALRM, handler.handle)

    def own_error(self):
        raise ValueError("of the property")

    def alarm(self):
        signal.raise_signal(signal.SIGALRM)

    output = Output(torch.ones(1))
    with MemTracker():
        mod = make("Out", lambda m, x: output)
        Output.out = property(own_error)
        mod(torch.ones(1))
        assert handler.calls == 0
        Output.out = property(alarm)
        try:
            with pytest.raises(handler.kind):
                mod(torch.ones(1))
                for _ in range(1000):
                    pass
        finally:
            del Output.out
    assert handler.calls >= 1


def test_alarms_at_random_moments(handler):
    mod = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1)

    def enter_and_leave():
        mt = MemTracker()
        mt.track_external(mod, opt)
        with mt:
            pass

    enter_and_leave()
    begun = time.perf_counter()
    for _ in range(10):
        enter_and_leave()
    longest, rng, hooks = (time.perf_counter() - begun) / 10, random.Random(1), step_hooks()
    for _ in range(200):
        calls, caught = handler.calls, 0
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, longest))
            enter_and_leave()
            while signal.getitimer(signal.ITIMER_REAL)[0]:
                pass
            for _ in range(1000):
                pass
        except handler.kind:
            caught = 1
        assert caught == handler.calls - calls
        assert mem_tracker.active_trackers() == [] and step_hooks() == hooks
