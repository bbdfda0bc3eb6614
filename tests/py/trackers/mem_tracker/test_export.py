"""torch.export runs the model inside a module of its own. The model keeps its name, and what it holds."""

import pytest
from helpers import needs_interception
from memory_helpers import CPU, every_source, parameter_bytes
from modscope import MemTracker, ModTracker

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x)).relu()


def owners(mt: MemTracker) -> dict[str, int]:
    found = mt.get_module_snapshot()[CPU]
    return {fqn: figures["Parameter"] for fqn, figures in found.items() if figures["Parameter"]}


@every_source
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=needs_interception)])  # dynamo traces no hooks in C
@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("built_inside", [False, True])
def test_the_model_keeps_its_name_when_it_is_exported(source, strict, called_before, built_inside):
    model, x = Net(), torch.ones(2, 8)
    with MemTracker(source) as mt, ModTracker() as t:
        if built_inside:
            model = Net()
        if called_before:
            model(x)
        exported = torch.export.export(model, (x,), strict=strict)
        model(x)
        assert t.get_known_fqn(model) == "Net"
        assert t.get_known_fqn(model.fc1) == "Net.fc1"
        assert mt.memory_tracking[model.fc1].mod_fqn == "Net.fc1"
        assert owners(mt) == {f"Net.{name}": parameter_bytes(getattr(model, name)) for name in ("fc1", "fc2")}
        exported.module()(x)
        assert owners(mt) == {f"Net.{name}": parameter_bytes(getattr(model, name)) for name in ("fc1", "fc2")}


def test_inside_an_export_only_the_models_own_modules_run():
    seen = []

    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(t.parents)
            return x + 1

    model = nn.Sequential(Looking())
    with ModTracker() as t:
        torch.export.export(model, (torch.ones(2),), strict=False)
    assert seen and all(parents == {"Global", "Sequential", "Sequential.0"} for parents in seen)
