"""memory_tracking shows the whole latest step: every call of a root module that belongs to it."""

import pytest
from memory_helpers import CPU, every_source
from modscope import MemTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


class Scene:
    def __init__(self, source):
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.tracker = MemTracker(source)
        self.tracker.track_external(self.net, self.optimizer)

    def batch(self):
        return self.net(torch.randn(4, 8)).sum()

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def counts(self, module):
        return {
            str(state): len(found) for state, found in self.tracker.memory_tracking[module].snapshots.items() if found
        }

    def totals(self, module, state):
        return [found[CPU]["Total"] for found in self.tracker.memory_tracking[module].snapshots[state]]


@pytest.fixture
def scene(source):
    return Scene(source)


def entries(count):
    return dict.fromkeys(
        ("Pre-Forward", "Post-Forward", "Peak-Forward", "Pre-Backward", "Peak-Backward", "Post-Backward"), count
    )


@every_source
def test_micro_batches(scene):
    with scene.tracker:
        for count in (4, 2, 3):
            for _ in range(count):
                scene.batch().backward()
            scene.step()
            for module in scene.net.modules():
                assert scene.counts(module) == entries(count)


@every_source
def test_two_forwards_before_one_backward(scene):
    with scene.tracker:
        for _ in range(3):
            (scene.batch() + scene.batch()).backward()
            scene.step()
    assert scene.counts(scene.net) == entries(2)
    first, second = scene.totals(scene.net, "Post-Forward")
    assert second > first  # the second one holds what the first one saved


@every_source
def test_recomputes_of_all_micro_batches(scene):
    with scene.tracker:
        for _ in range(3):
            checkpoint(scene.net, torch.randn(4, 8), use_reentrant=False).sum().backward()
        scene.step()
    assert scene.counts(scene.net)["Pre-Forward-AC"] == scene.counts(scene.net)["Pre-Forward"] == 3


@every_source
def test_a_forward_without_gradients_in_a_step_belongs_to_it(scene):
    with scene.tracker:
        loss = scene.batch()
        with torch.no_grad():
            scene.batch()
        loss.backward()
    assert scene.counts(scene.net)["Pre-Forward"] == 2


@every_source
def test_of_an_evaluation_the_latest_call_is_shown(scene):
    with scene.tracker:
        scene.batch().backward()
        scene.batch().backward()
        scene.step()
        assert scene.counts(scene.net)["Pre-Forward"] == 2
        with torch.no_grad():
            for _ in range(5):
                scene.batch()
        assert scene.counts(scene.net) == {"Pre-Forward": 1, "Post-Forward": 1, "Peak-Forward": 1}
