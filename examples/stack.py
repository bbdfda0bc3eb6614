"""Train a small model for a few steps and print its phase and running modules.

python examples/stack.py
"""

from __future__ import annotations

from modscope import ModTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

tracker = ModTracker()


def show(event: str) -> None:
    """Print the phase and the running modules. Any code can do this: an operator, a hook, a logger."""
    print(f"  {tracker.phase:9}  {' > '.join(tracker.stack) or '-':62}  {event}")


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = torch.softmax(q @ k.transpose(-1, -2), dim=-1)
        show("attention scores")
        if scores.requires_grad:
            scores.register_hook(lambda grad: show("gradient of the attention scores"))
        result: torch.Tensor = self.out(scores @ v)
        return result


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        result: torch.Tensor = x + self.mlp(x)
        return result


class Model(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = Block(width)
        self.checkpointed = Block(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = checkpoint(self.checkpointed, x, use_reentrant=False)
        result: torch.Tensor = self.head(x)
        return result


class LoggingSGD(torch.optim.SGD):
    def zero_grad(self, set_to_none: bool = True) -> None:
        show("gradients are cleared")
        super().zero_grad(set_to_none)


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = LoggingSGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: show("the optimizer steps"))
    model.head.weight.register_post_accumulate_grad_hook(lambda parameter: show("head.weight has its gradient"))
    with tracker:
        for step in range(1, 3):
            print(f"step {step}")
            loss = model(torch.randn(2, 8, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            show(f"loss {loss.item():.4f}")
    print(
        f"{len(tracker.modules)} modules known, among them {tracker.modules['Model.first.mlp.1']!r} as "
        f"Model.first.mlp.1"
    )


if __name__ == "__main__":
    main()
