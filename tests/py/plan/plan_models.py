"""Models that the tests of plans train."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.act = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU()
        self.narrow, self.dropout = nn.Linear(4 * width, width), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.narrow(self.act(self.wide(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, count: int = 4, width: int = 16) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block(width) for _ in range(count))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.h:
            x = block(x)
        return self.head(x)


class Odd(nn.Module):
    """It takes keywords, among them one that checkpoint has itself, and returns a dict with something that is no
    tensor."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None, debug: bool = False) -> dict[str, object]:
        y = torch.tanh(self.layer(x))
        return {"y": y if scale is None else y * scale, "debug": debug, "name": "odd"}


class Twice(nn.Module):
    """It calls a module twice, and one with keywords."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.block, self.odd = Block(width), Odd(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.odd(self.block(self.block(x)), scale=torch.full((16,), 2.0), debug=True)
        assert out["debug"] is True and out["name"] == "odd"
        return out["y"]  # type: ignore[return-value]


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stage(x).mean((2, 3)))
