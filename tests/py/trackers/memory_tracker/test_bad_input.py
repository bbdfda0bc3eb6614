"""Bad input is an error that says what to do, and leaves the tracker as it was."""

import pytest
from helpers import make
from memory_tracker_helpers import Net, monitored, names
from modscope import MemoryTracker, ModTracker, _native
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import torch


@pytest.mark.parametrize("root", [None, 3, "net", torch.zeros(2), torch.nn.Linear])
def test_a_root_that_is_no_module(root):
    tracker = MemoryTracker()
    with pytest.raises(TypeError, match="nn.Module"):
        tracker.start_monitor(root)
    with pytest.raises(AssertionError):
        tracker.stop()


def test_starting_twice_is_refused_and_the_first_goes_on():
    net = Net()
    with monitored(net) as tracker:
        torch.zeros(1)
        with pytest.raises(AssertionError, match=r"stop\(\) first"):
            tracker.start_monitor(net)
        torch.zeros(1)
    assert names(tracker) == [".zeros.default_0", ".zeros.default_1"]


def test_stopping_what_was_not_started_is_refused():
    tracker = MemoryTracker()
    with pytest.raises(AssertionError, match="start_monitor"):
        tracker.stop()
    tracker.start_monitor(Net())
    tracker.stop()
    with pytest.raises(AssertionError, match="start_monitor"):
        tracker.stop()


def test_loading_while_monitoring_is_refused(tmp_path):
    with monitored(Net()) as tracker:
        tracker.save_stats(tmp_path / "stats")
        with pytest.raises(AssertionError, match=r"stop\(\)"):
            tracker.load(tmp_path / "stats")
        torch.zeros(1)
    assert names(tracker) == [".zeros.default_0"]


def test_odd_arguments_of_summary():
    tracker = MemoryTracker()
    for top in (None, 1.5, "3", True):
        with pytest.raises(TypeError, match="top"):
            tracker.summary(top)
    with pytest.raises(ValueError, match="top"):
        tracker.summary(-1)


def test_a_device_that_is_not_there():
    with pytest.raises(RuntimeError):
        MemoryTracker(device="nowhere")
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            MemoryTracker(device="cuda").start_monitor(Net())
    assert _get_current_dispatch_mode_stack() == []


def log_of(**changed):
    given = {"root": torch.nn.ReLU(), "name_in": lambda module, fqn: fqn, "stats": None, "device": 0, "ignored": None}
    return _native.OperatorLog(**(given | changed))


def test_figures_that_cannot_be_read_are_counted_as_lost_and_do_not_reach_the_program():
    def fail(device):
        raise ValueError("no figures")

    log = log_of(stats=fail, device="x")
    log.recording = True
    assert torch.equal(log.run(None, torch.ops.aten.add.Tensor, (), (torch.ones(2), 1), None), torch.full((2,), 2.0))
    assert (log.count, log.lost) == (0, 1)
    with pytest.raises(ValueError, match="no figures"):
        log.figures()


@pytest.mark.parametrize(
    "stats", [{}, [], None, {"allocated_bytes": 3}, {"allocated_bytes": {"all": {"current": "x"}}}]
)
def test_odd_statistics_are_zero(stats):
    assert log_of(stats=lambda device: stats, device="x").figures() == (0.0, 0.0, 0.0)


def test_a_name_that_cannot_be_found_is_counted_as_lost():
    def fail(module, fqn):
        raise ValueError("no name")

    log = log_of(name_in=fail)
    log.recording = True
    net = make("Root", lambda m: log.run(None, torch.ops.aten.ones.default, (), ((1,),), {}))
    with ModTracker():
        net()
        log.run(None, torch.ops.aten.ones.default, (), ((1,),), {})
    assert (log.count, log.lost) == (1, 1)


def test_odd_arguments_of_the_log():
    log = log_of()
    for given in ((), (None, abs), (None, abs, (), [1]), (None, abs, (), (1,), {}, 3)):
        with pytest.raises(TypeError):
            log.run(*given)
    with pytest.raises(TypeError):
        log_of(device="cpu")
    with pytest.raises(TypeError):
        log_of(root=3)
    log.recording = True
    with pytest.raises(TypeError):
        log.run(None, abs, (), ("x",), None)
    log.run(None, abs, (), (-1,), None)
    assert log.counts() == {"abs": 1}
