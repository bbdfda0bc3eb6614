"""While a tracker is entered, modscope's own functions are the signal handlers: nobody keeps them."""

import signal
import threading

import pytest
from helpers import in_child

from modscope import MemTracker


def handle(number, frame):
    raise TimeoutError


@pytest.fixture(autouse=True)
def handler():
    before = signal.signal(signal.SIGALRM, handle)
    yield
    signal.signal(signal.SIGALRM, before)


class Slow(MemTracker):
    """Runs something in the middle of entering."""

    inside = None

    def _begin(self):
        super()._begin()
        self.inside()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_another_thread_forks_meanwhile_has_the_programs_handler():
    seen, errors = [], []

    def child():
        assert signal.getsignal(signal.SIGALRM) is handle
        with pytest.raises(TimeoutError):
            signal.raise_signal(signal.SIGALRM)

    def fork():
        try:
            in_child(child)
        except BaseException as error:
            errors.append(error)

    def inside():
        seen.append(signal.getsignal(signal.SIGALRM))
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    mt = Slow()
    mt.inside = inside
    with mt:
        pass
    assert seen != [handle] and errors == [] and signal.getsignal(signal.SIGALRM) is handle


def test_a_handler_that_was_read_meanwhile_calls_the_programs_own():
    mt, seen = Slow(), []
    mt.inside = lambda: seen.append(signal.getsignal(signal.SIGALRM))
    with mt:
        pass
    with pytest.raises(TimeoutError):
        seen[0](signal.SIGALRM, None)


def test_a_handler_that_is_set_meanwhile_stays():
    mt, other = Slow(), lambda number, frame: None
    mt.inside = lambda: signal.signal(signal.SIGALRM, other)
    with mt:
        pass
    assert signal.getsignal(signal.SIGALRM) is other
