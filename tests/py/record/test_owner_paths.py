"""The gradients of a module have the path of its calls, also where its first call came after they were claimed."""

from __future__ import annotations

from pathlib import Path

import modscope
import pytest
from helpers import needs_interception

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Listed(nn.Module):
    """Its ModuleList is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def positions(model: nn.Module, file: Path) -> list[tuple[str | None, str | None]]:
    """The phase and module of each position that a recording of two steps contains."""
    with modscope.record(file):
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
    return [(event.phase, event.module) for event in modscope.load(file).events("position")]


@needs_interception
@pytest.mark.parametrize("model", [nn.Sequential(Block(), Block()), Listed()], ids=["Sequential", "ModuleList"])
def test_accumulating_a_gradient_is_no_other_position_than_its_modules_backward(
    model: nn.Module, tmp_path: Path
) -> None:
    found = positions(model, tmp_path / "run.msc")
    assert sum(phase == "backward" and str(module).endswith(".0.linear") for phase, module in found) == 2
    assert not [later for earlier, later in zip(found, found[1:], strict=False) if earlier == later]
