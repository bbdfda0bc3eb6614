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


@pytest.fixture
def user_signals():
    before = [(number, signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    yield
    for number, previous in before:
        signal.signal(number, previous)


def enter_while_both_come():
    mt = Slow()
    mt.inside = lambda: (signal.raise_signal(signal.SIGUSR1), signal.raise_signal(signal.SIGUSR2))
    with mt:
        pass


@pytest.mark.usefixtures("user_signals")
def test_a_handler_that_enters_a_tracker_leaves_the_other_signals_alone():
    seen = []

    def first(number, frame):
        with MemTracker():
            seen.append(number)

    signal.signal(signal.SIGUSR1, first)
    signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    enter_while_both_come()
    assert seen == [signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.usefixtures("user_signals")
def test_what_one_handler_raised_is_not_raised_in_another_one():
    seen = []

    def second(number, frame):
        with MemTracker():
            seen.append(number)

    signal.signal(signal.SIGUSR1, handle)
    signal.signal(signal.SIGUSR2, second)
    with pytest.raises(TimeoutError):
        enter_while_both_come()
    assert seen == [signal.SIGUSR2]


@pytest.mark.usefixtures("user_signals")
def test_the_exception_of_a_handler_that_is_no_python_function_is_raised():
    signal.signal(signal.SIGUSR1, len)  # refuses its two arguments
    signal.signal(signal.SIGUSR2, lambda number, frame: None)
    with pytest.raises(TypeError):
        enter_while_both_come()
