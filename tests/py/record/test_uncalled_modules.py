"""A capture knows modules that are never called, also if they are gone before the recording ends."""

import copy

from modscope import load, record

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


BYTES = {"up": 4 * (64 * 256 + 256), "down": 4 * (256 * 64 + 64)}


def parameters_at_peak(path):
    found = load(str(path)).snapshot("peak").by_module()["cpu"]
    return {fqn: sums["Parameter"] for fqn, sums in found.items() if sums["Parameter"]}


def named(*roots):
    return {f"{root}.{child}": size for root in roots for child, size in BYTES.items()}


def train(model, optimizer, steps=1):
    for _ in range(steps):
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_copy_and_a_spare_model_are_told_apart_from_the_model(tmp_path):
    def program():
        model = Net()
        average = copy.deepcopy(model)
        spare = Net()
        train(model, torch.optim.SGD(model.parameters(), 0.1))
        return average is spare

    with record(str(tmp_path / "run.msc")):
        program()
    assert parameters_at_peak(tmp_path / "run.msc") == named("model", "average", "spare")


def test_a_copy_that_is_made_after_some_steps(tmp_path):
    def program():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train(model, optimizer, 3)
        average = copy.deepcopy(model)
        train(model, optimizer, 3)
        del average

    with record(str(tmp_path / "run.msc")):
        program()
    assert parameters_at_peak(tmp_path / "run.msc") == named("model", "average")
