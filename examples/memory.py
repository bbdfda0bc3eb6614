"""Train a small model for a few steps and print which modules own its memory.

python examples/memory.py
"""

from __future__ import annotations

from modscope import MemTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return result


class Model(nn.Module):
    def __init__(self, width: int = 256, blocks: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1000)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for i, block in enumerate(self.blocks):
            # The activations of the second half are recomputed in backward instead of being kept.
            x = block(x) if i < len(self.blocks) // 2 else checkpoint(block, x, use_reentrant=False)
        result: torch.Tensor = self.head(x)
        return result


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randint(1000, (8, 64))

    tracker = MemTracker()
    tracker.track_external(model, optimizer, words)
    with tracker:
        for _ in range(3):
            loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    print("At the peak:")
    tracker.display_snapshot("peak", units="MiB", tabulate=True)
    for device, peak in tracker.peak.items():
        print(
            f"\nThe peak was on {device} in step {peak.step}, {peak.phase} of {peak.module}. The largest modules "
            f"(MiB):\n"
        )
        modules = tracker.get_module_snapshot("peak", children=True)[device]
        for fqn, held in sorted(modules.items(), key=lambda item: -item[1]["Total"])[:8]:
            parts = ", ".join(f"{held[word] / 2**20:.2f} {word}" for word in held if held[word] and word != "Total")
            print(f"  {held['Total'] / 2**20:6.2f}  {fqn:22}  {parts}")
    print("\nAround the model's own calls:")
    tracker.display_modulewise_snapshots(depth=1, units="MiB", tabulate=True)


if __name__ == "__main__":
    main()
