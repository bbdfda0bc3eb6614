"""Train a small Llama-like model: on one device, or sharded by FSDP2 over every rank that a launcher starts.

python examples/fsdp2.py                                    one GPU, or the CPU without one
torchrun --nproc-per-node 2 examples/fsdp2.py --small       two processes
modscope predict --gpu h100 --ranks 8 examples/fsdp2.py     eight GPUs that are not there
"""

from __future__ import annotations

import argparse
import os

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, dim=1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return result


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.RMSNorm(width), Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class Llama(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(self.norm(x))
        return result


def shard(model: Llama, device: str) -> None:
    """Each layer is gathered when it runs; the rest belongs to the model."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="3 million parameters instead of 1.9 billion")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    device, ranks = "cuda" if has_gpu else "cpu", int(os.environ.get("WORLD_SIZE", "1"))
    if has_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if ranks > 1:
        dist.init_process_group("nccl" if has_gpu else "gloo")

    torch.manual_seed(0)
    width, layers, heads, words, length = (256, 4, 4, 1024, 128) if options.small else (2560, 20, 20, 32000, 1024)
    with torch.device("meta"):
        model = Llama(width, layers, heads, words)
    if ranks > 1:
        shard(model, device)
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    for _ in range(options.steps):
        tokens = torch.randint(words, (options.batch, length + 1)).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=ranks == 1):
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
