"""A signal handler of the program raises at random moments while trackers and recordings are entered and left.
The exception reaches the program, everything is left, and the next use works. Threads do all of it at once."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import modscope
import pytest
from helpers import SUPPORT, needs_interception, python_path
from memory_helpers import SOURCES, now
from modscope import MemTracker, ModTracker
from modscope._trackers import mem_tracker
from storm_helpers import SECONDS, SEED, rounds, state_of_process

import torch

pytestmark = pytest.mark.slow


class Alarm(Exception):
    pass


class Handler:
    """Raises when it is first called after `arm`."""

    def __init__(self):
        self.raised, self.armed = False, False

    def arm(self):
        self.raised, self.armed = False, True

    def __call__(self, number, frame):
        if self.armed:
            self.raised, self.armed = True, False
            raise Alarm


@pytest.fixture
def handler():
    handler = Handler()
    before = signal.signal(signal.SIGALRM, handler)
    yield handler
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Uses:
    """Ways to enter and leave. Each may be interrupted anywhere, and leaves what it entered."""

    def __init__(self, source, folder):
        self.source, self.path = source, str(folder / "storm.msc")
        self.mod = torch.nn.Linear(4, 4)
        self.opt = torch.optim.SGD(self.mod.parameters(), lr=0.1)
        self.mod(torch.ones(1, 4)).sum().backward()

    def tracker(self):
        mt = MemTracker(self.source)
        mt.track_external(self.mod, self.opt)
        with mt:
            pass

    def nested(self):
        with MemTracker(self.source), MemTracker(self.source):
            pass

    def again(self):
        mt = MemTracker(self.source)
        with mt, mt:
            pass

    def raising(self):
        with contextlib.suppress(ValueError), MemTracker(self.source):
            raise ValueError

    def reading(self):
        with MemTracker(self.source) as mt:
            mt.get_tracker_snapshot("peak")

    def record(self):
        with modscope.record(self.path, overwrite=True, source=self.source):
            pass

    def recorded_function(self):
        modscope.record(self.path, overwrite=True, source=self.source)(int)()

    def record_in_a_tracker(self):
        with MemTracker(self.source), modscope.record(self.path, overwrite=True, source=self.source):
            pass

    def mod_tracker(self):
        with ModTracker():
            pass


NAMES = [name for name in vars(Uses) if not name.startswith("_")]


def longest_of(use):
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        use()
        times.append(time.perf_counter() - begun)
    return sorted(times)[2]


def interrupt(use, handler, rng, longest):
    """Run `use` with an alarm at a random moment; whether the alarm came. Sometimes alarms go on coming."""
    caught = False
    try:
        handler.arm()
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, longest), rng.choice([0, 0, 0, 5e-5]))
        use()
        for _ in range(50):
            pass
    except Alarm:
        caught = True
    handler.armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert caught == handler.raised, "the program did not get the handler's exception"
    return caught


def leave_all():
    """If a test fails, the others begin without its trackers."""
    for mt in mem_tracker.active_trackers():
        mt.__exit__()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", SOURCES)
def test_alarms_while_entering_and_leaving(source, name, handler, tmp_path, request):
    request.addfinalizer(leave_all)
    uses = Uses(source, tmp_path)
    use = getattr(uses, name)
    use()
    longest, before, interrupted = 1.2 * longest_of(use), state_of_process(), 0
    for number, rng in rounds(at_least=300, seconds=0.7):
        interrupted += interrupt(use, handler, rng, longest)
        assert state_of_process() == before, f"{source}, {name}, MODSCOPE_STORM_SEED={SEED}, round {number}"
        if number % 50 == 0:
            with MemTracker(source) as mt:
                kept = torch.zeros(10)
                assert now(mt) == 40
            del kept
    assert interrupted, "no alarm came: this tests nothing"


@needs_interception
def test_handlers_are_the_programs_own_again(handler):
    """Also the flags that the program chose for a signal."""
    signal.siginterrupt(signal.SIGALRM, False)
    flags = [line for line in open("/proc/self/status") if line.startswith("Sig")]
    with MemTracker():
        assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getsignal(signal.SIGALRM) is handler
    assert flags == [line for line in open("/proc/self/status") if line.startswith("Sig")]


# ---- threads ----


HERE = os.path.dirname(__file__)


def test_threads_that_train_enter_read_and_fork(tmp_path):
    seconds = SECONDS or 5
    # Freed memory is overwritten, so that using it is noticed.
    environment = os.environ | {
        "PYTHONPATH": python_path(HERE, SUPPORT),
        "MALLOC_PERTURB_": "165",
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    }
    command = [sys.executable, os.path.join(HERE, "thread_storm.py"), str(seconds), str(SEED)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=seconds + 600)
    print(ran.stdout)
    assert ran.returncode == 0, f"MODSCOPE_STORM_SEED={SEED}: {ran.returncode}\n{ran.stderr[-6000:]}"
