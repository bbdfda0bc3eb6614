"""Small models of several kinds, and a training loop for them."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

STEPS = 5


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(Block(64), nn.ReLU(), Block(64)), torch.ones(32, 64)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    return nn.Sequential(*layers), torch.ones(2, 3, 16, 16)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.ones(2, 8, 32)


def checkpointed() -> tuple[nn.Module, torch.Tensor]:
    return Checkpointed(), torch.ones(32, 64)


def train(make: Callable[[], tuple[nn.Module, torch.Tensor]], kept: list[torch.Tensor] | None = None) -> None:
    model, x = make()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if kept is not None:
            kept.append(loss)


RUNS = [mlp, cnn, transformer, checkpointed]
