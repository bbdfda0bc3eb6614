"""Evaluation: forwards of root modules with grad mode off, outside a step. They begin no step."""

import subprocess
import sys

import pytest
from memory_helpers import CPU, SOURCES, every_source
from modscope import MemTracker, ModTracker, load, record
from modscope._read.leaks import describe_leaks, find_leaks
from modscope._read.text import describe_moment

import torch
from torch import nn

every_mode = pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])


class Layer(nn.Module):
    """It notes the phase, and needs 400 KB for a moment."""

    def __init__(self, tracker=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.tracker = tracker
        self.seen = []

    def forward(self, x):
        if self.tracker:
            self.seen.append(self.tracker.phase)
        torch.zeros(100_000)
        return x * self.weight


class Net(nn.Module):
    def __init__(self, layer, grad_inside=None):
        super().__init__()
        self.layer = layer
        self.grad_inside = grad_inside

    def forward(self, x):
        if self.grad_inside is None:
            return self.layer(x)
        with torch.set_grad_enabled(self.grad_inside):
            return self.layer(x)


def phase_of(net):
    """The phase in its layer."""
    net(torch.ones(8))
    return net.layer.seen[-1]


def train(net, optimizer, micro_batches=1):
    for _ in range(micro_batches):
        net(torch.ones(8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture(params=SOURCES)
def tracked(request):
    """A net that is tracked, and its optimizer."""
    with MemTracker(request.param) as memory, ModTracker() as tracker:
        net = Net(Layer(tracker))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        memory.track_external(optimizer)
        yield net, optimizer


@every_mode
def test_a_forward_after_a_step_is_evaluation(tracked, mode):
    net, optimizer = tracked
    for _ in range(3):
        train(net, optimizer)
        assert net.layer.seen[-1] == "forward"
        with mode():
            assert [phase_of(net) for _ in range(3)] == ["evaluation"] * 3


@every_mode
def test_a_forward_in_an_open_step_belongs_to_it(tracked, mode):
    net, optimizer = tracked
    with mode():
        assert phase_of(net) == "evaluation"
    loss = net(torch.ones(8)).sum()
    with mode():
        assert phase_of(net) == "forward"
    loss.backward()
    with mode():
        assert phase_of(net) == "forward"
    optimizer.step()
    with mode():
        assert phase_of(net) == "evaluation"


def test_no_grad_inside_a_root_is_forward(tracked):
    net, optimizer = tracked
    train(net, optimizer)
    assert phase_of(Net(net.layer, grad_inside=False)) == "forward"


def test_grad_inside_an_evaluation_is_evaluation(tracked):
    net, optimizer = tracked
    train(net, optimizer)
    with torch.no_grad():
        assert phase_of(Net(net.layer, grad_inside=True)) == "evaluation"


def test_without_an_optimizer_a_net_called_again_is_evaluation():
    with MemTracker(), ModTracker() as tracker:
        net, teacher = Net(Layer(tracker)), Net(Layer(tracker))
        for _ in range(3):
            net(torch.ones(8)).sum().backward()
            with torch.no_grad():
                assert phase_of(teacher) == "forward"
                assert phase_of(net) == "evaluation"
                assert phase_of(teacher) == "evaluation"


def test_without_memory_tracking_no_step_is_known():
    with ModTracker() as tracker, torch.no_grad():
        assert phase_of(Net(Layer(tracker))) == "forward"


@every_source
def test_the_peak_says_after_which_step(source):
    net = Net(Layer())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with MemTracker(source) as tracker:
        tracker.track_external(optimizer)
        for _ in range(3):
            train(net, optimizer, micro_batches=2)
        with torch.no_grad():
            for _ in range(5):
                net(torch.ones(80_000, 8))
    peak = tracker.peak[CPU]
    assert (peak.step, peak.phase) == (3, "evaluation")
    assert describe_moment(peak.step, peak.phase, peak.module).startswith("in evaluation after step 3, in ")


def _run(path):
    """Two steps, an evaluation after each; the second one has the peak."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with record(path):
        for step in range(2):
            train(net, optimizer)
            with torch.no_grad():
                for _ in range(10):
                    net(torch.ones(1000 * (1 + step), 8))


def test_a_capture_has_the_evaluations(tmp_path):
    _run(tmp_path / "run.msc")
    capture = load(tmp_path / "run.msc")
    assert (capture.last_step, capture.optimizer_steps) == (2, 2)
    assert capture.phases["evaluation"].blocks >= 20
    peak = capture.peaks["cpu"]
    assert (peak.step, peak.phase) == (2, "evaluation")
    snapshot = capture.snapshot("peak")
    assert snapshot.running[0] == "evaluation"
    made = [block for block in snapshot.blocks() if block.phase == "evaluation"]
    assert made and all(block.category == "Activation" and block.step == 2 for block in made)
    assert {event.phase for event in capture.events("position")} >= {"evaluation", "forward", "idle"}


@pytest.mark.parametrize("command", ["summary", "tree", "blocks"])
def test_commands_say_evaluation(tmp_path, command):
    _run(tmp_path / "run.msc")
    ran = subprocess.run(
        [sys.executable, "-m", "modscope", command, "run.msc"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "evaluation after step 2" in ran.stdout
    assert command != "summary" or "\n  evaluation " in ran.stdout


def test_generating_is_no_step_per_token(tmp_path):
    net = nn.Linear(8, 8)
    with record(tmp_path / "run.msc"), torch.inference_mode():
        for _ in range(20):
            net(torch.ones(8))
    capture = load(tmp_path / "run.msc")
    assert capture.last_step == 0
    assert "evaluation (no_grad, inference_mode) has no steps" in describe_leaks(find_leaks("run.msc", capture))


def test_what_an_evaluation_keeps_is_a_leak_of_the_steps(tmp_path):
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    kept = []
    with record(tmp_path / "run.msc"):
        for _ in range(8):
            train(net, optimizer)
            with torch.no_grad():
                kept.append([net(torch.ones(100, 8)) for _ in range(3)])
    (group,) = find_leaks("run.msc", load(tmp_path / "run.msc"))["groups"]
    assert (group["phases"], group["module"], group["count"], group["steps"]) == (["evaluation"], "Linear", 18, 6)
