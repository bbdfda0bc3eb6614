"""Train a small GPT on made-up text for a few steps. The script does not use modscope itself:

modscope run examples/gpt.py
modscope run examples/gpt.py --out-of-memory
modscope run examples/gpt.py --batch 64 --memory 480                 # docs/tutorial.md
modscope run examples/gpt.py --batch 64 --memory 480 --checkpoint
modscope predict --gpu t4,rtx4090,h100 examples/gpt.py --batch 2048  # docs/prediction.md
"""

from __future__ import annotations

import argparse
import resource

from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(x.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(
        self, words: int, length: int, width: int, heads: int, layers: int, checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.word = nn.Embedding(words, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.word(text) + self.position(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


def make_text(words: int, batch: int, length: int, device: str) -> torch.Tensor:
    """Each row counts up from a random word, so there is something to learn."""
    return (torch.randint(words, (batch, 1), device=device) + torch.arange(length + 1, device=device)) % words


def limit_memory(mebibytes: int) -> None:
    """Limit this process to so much address space beyond what it has now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + mebibytes * 2**20, resource.RLIM_INFINITY))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on made-up text.")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--out-of-memory", action="store_true", help="make the last batch larger than any machine's memory"
    )
    parser.add_argument("--checkpoint", action="store_true", help="recompute the blocks' activations in backward")
    parser.add_argument("--memory", type=int, metavar="MIB", help="limit the memory for the training (CPU)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    words, length = 1000, 128
    model = GPT(words, length, options.width, heads=4, layers=options.layers, checkpointing=options.checkpoint)
    model = model.to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # which imports much of torch
    if options.memory:
        limit_memory(options.memory)
    for step in range(1, options.steps + 1):
        text = make_text(words, options.batch, length, options.device)
        if options.out_of_memory and step == options.steps:
            text = text[:1].expand(10**9, -1)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
