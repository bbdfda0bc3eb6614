"""Train a model like Llama of 0.4 billion parameters for three steps, for ``bench/fit.py sharded``: on one GPU as it
is, and on several with FSDP2 for each layer and the model.

    fit_sharding_job.py float32 | bfloat16 | autocast | mixed

autocast: torch.autocast; mixed: the same, and FSDP2 has a MixedPrecisionPolicy of bfloat16 too. It knows nothing of
modscope."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import torch
from torch import nn

WIDTH, LAYERS, HEADS, WORDS, LENGTH, BATCH = 1536, 12, 12, 16384, 1024, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Attention()
        self.gate, self.up = nn.Linear(WIDTH, 4096, bias=False), nn.Linear(WIDTH, 4096, bias=False)
        self.down = nn.Linear(4096, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def shard(model: Model, mixed: bool) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if mixed else MixedPrecisionPolicy()
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def main() -> None:
    kind = sys.argv[1]
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    with torch.device("meta"):
        model = Model()
    if kind == "bfloat16":
        model.bfloat16()
    if several:
        dist.init_process_group("nccl")
        shard(model, kind == "mixed")
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16, enabled=kind in ("autocast", "mixed")):
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss


if __name__ == "__main__":
    main()
