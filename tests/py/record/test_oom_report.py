"""When an allocation fails, the out-of-memory report is on stderr, in the exception and in the capture."""

import gc
import traceback

import pytest
from helpers import make, needs_interception
from modscope import MemTracker, load, record
from modscope._read.text import describe_moment

import torch
from torch import nn

pytestmark = needs_interception  # the dispatcher does not see failed allocations

TOO_MUCH = 1 << 50


class Hungry(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(100, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        torch.empty(TOO_MUCH, dtype=torch.uint8)
        return y


def notes_of(error: BaseException) -> str:
    notes = getattr(error, "__notes__", [])
    assert len(notes) == 1
    return notes[0]


def test_stderr_and_the_exception_tell_what_was_asked_and_who_holds_what(capfd):
    model = Hungry()
    with pytest.raises(RuntimeError, match="memory") as caught, MemTracker() as mt:
        mt.track_external(model)
        model(torch.ones(10, 100))
    report = notes_of(caught.value)
    assert "an allocation of 1.00 PiB on cpu failed" in report
    assert "in step 1, forward of Hungry" in report
    assert "Hungry.fc: Parameter 394.53 KiB, Activation 39.06 KiB" in report
    assert "peak so far:" in report
    assert len(report.splitlines()) <= 12
    assert report in capfd.readouterr().err


@pytest.mark.parametrize(
    ("stacks", "callers", "more"),
    [(0, 0, ""), (1, 0, ""), (3, 2, ""), (8, 7, ""), (12, 7, "    (4 more of the frames that were kept)")],
)
def test_the_frames_above_the_line_are_those_of_the_traceback(capfd, stacks, callers, more):
    def grab(depth: int) -> torch.Tensor:
        if depth:
            return grab(depth - 1)
        return torch.empty(TOO_MUCH, dtype=torch.uint8)

    with pytest.raises(RuntimeError) as caught, MemTracker(stacks=stacks):
        grab(20)
    report = notes_of(caught.value)
    frames = [f"{each.filename}:{each.lineno}" for each in reversed(traceback.extract_tb(caught.value.__traceback__))]
    told = [
        line.partition(" in ")[0] for line in report.splitlines() if "requested by" in line or "called from" in line
    ]
    expected = [f"  requested by {frames[0]}", *(f"    called from {frame}" for frame in frames[1 : callers + 1])]
    assert told == (expected if stacks else [])
    assert [line for line in report.splitlines() if "more of the frames" in line] == [more] * bool(more)
    assert report in capfd.readouterr().err


def test_a_module_call_adds_it_where_the_program_catches_the_error(capfd):
    caught = []

    def attempt(self, x):
        try:
            return self.inner(x)
        except RuntimeError as error:
            caught.append(error)
            return x

    outer = make("Outer", attempt, inner=Hungry())
    with MemTracker():
        outer(torch.ones(10, 100))
    assert "forward of Outer.inner" in notes_of(caught[0])
    assert "forward of Outer.inner" in capfd.readouterr().err


def test_an_error_of_another_kind_gets_no_note(capfd):
    with pytest.raises(KeyError) as caught, MemTracker():
        with pytest.raises(RuntimeError):
            torch.empty(TOO_MUCH)
        raise KeyError("x")
    assert not hasattr(caught.value, "__notes__")
    assert "out of memory" in capfd.readouterr().err


def test_a_report_goes_only_to_its_own_exception(capfd):
    with pytest.raises(RuntimeError) as caught, MemTracker():
        with pytest.raises(RuntimeError):
            torch.empty(TOO_MUCH)
        raise RuntimeError("unsupported memory format")
    assert not hasattr(caught.value, "__notes__")


def test_without_a_tracker_there_is_none(capfd):
    with MemTracker():
        pass
    with pytest.raises(RuntimeError) as caught:
        Hungry()(torch.ones(10, 100))
    assert not hasattr(caught.value, "__notes__") and "modscope" not in capfd.readouterr().err


def test_in_backward_it_names_the_module_that_runs_backward(capfd):
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return torch.empty(TOO_MUCH, dtype=torch.uint8)

    model = nn.Sequential(nn.Linear(4, 4), make("Bad", lambda self, x: Bad.apply(x)))
    with pytest.raises(RuntimeError) as caught, MemTracker():
        model(torch.ones(2, 4)).sum().backward()
    assert "backward of Sequential.1" in notes_of(caught.value)


def test_the_capture_has_the_moment(tmp_path, capfd):
    model = Hungry()
    with pytest.raises(RuntimeError) as caught, record(tmp_path / "x.msc") as recording:
        model(torch.ones(10, 100))
    assert "on cpu failed" in notes_of(caught.value)
    assert recording.outcome.out_of_memory == 1
    capture = load(tmp_path / "x.msc")
    event = capture.last_oom
    assert (event.bytes, event.module, event.phase) == (TOO_MUCH, "Hungry", "forward")
    held = capture.snapshot("oom").by_module()["cpu"]
    assert held["Hungry.fc"]["Parameter"] == 1000 * 101 * 4
    assert held["Hungry.fc"]["Activation"] == 10 * 1000 * 4


def test_it_takes_nothing_from_torch(capfd):
    with MemTracker() as mt:
        before = mt.get_tracker_snapshot()
        with pytest.raises(RuntimeError):
            torch.empty(TOO_MUCH)
        gc.collect()
        assert mt.get_tracker_snapshot() == before
    peak = mt.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert peak == before[torch.device("cpu")]["Total"]


def test_of_many_failures_some_are_printed_and_all_are_in_the_exceptions(capfd):
    errors, model = [], Hungry()
    with MemTracker():
        for _ in range(12):
            try:
                model(torch.ones(10, 100))
            except RuntimeError as error:
                errors.append(error)
    assert len(errors) == 12 and all("on cpu failed" in notes_of(error) for error in errors)
    assert capfd.readouterr().err.count("out of memory") == 5


def test_it_says_where_it_was_in_the_words_of_a_capture(tmp_path, capfd):
    """Also where no module was running: in a backward, and in an optimizer's step."""

    class Large(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return allocate_too_much()

    class Greedy(torch.optim.SGD):
        def step(self, closure=None):
            allocate_too_much()

    def allocate_too_much():
        return torch.empty(TOO_MUCH, dtype=torch.uint8)

    path = tmp_path / "run.msc"
    net = nn.Linear(2, 2)
    with record(path):
        for fail in (
            Large.apply(net(torch.ones(2))).sum().backward,
            Greedy(net.parameters(), 0.1).step,
            allocate_too_much,
        ):
            with pytest.raises(RuntimeError):
                fail()
    said = capfd.readouterr().err
    wanted = [describe_moment(1, event.phase, event.module) for event in load(path).events("oom")]
    assert wanted == [
        "in step 1, backward outside any module",
        "in step 1, in the optimizer's step",
        "in step 1, outside any module",
    ]
    for words in wanted:
        assert f"failed, {words}\n" in said
