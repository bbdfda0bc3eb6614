"""Train a sharded model for three steps as one of many ranks: ``ranks_job.py NAME [--fake RANKS] [--stats FILE]``.

It knows nothing of modscope. Without --fake it is what torchrun starts on every rank. With it, it runs alone on a real
GPU as rank 0 of so many, with torch's fake process group, which moves nothing. --stats writes torch's own figures."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import torch
from torch import nn

WIDTH, LAYERS, HEADS, WORDS, LENGTH, BATCH = 2048, 8, 16, 16384, 1024, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = nn.RMSNorm(WIDTH), Attention(), nn.RMSNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# ---- how the model is sharded ----

MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def shard(model: Model, mesh: DeviceMesh, **options: Any) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def flat(ranks: int) -> DeviceMesh:
    return init_device_mesh("cuda", (ranks,))


def with_tensor_parallel(model: Model, ranks: int) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (ranks // 8, 8), mesh_dim_names=("data", "tensor"))
    split = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block.mlp, mesh["tensor"], split)
    shard(model, mesh["data"], mp_policy=MIXED)


def hybrid(model: Model, ranks: int) -> None:
    shard(model, init_device_mesh("cuda", (ranks // 8, 8), mesh_dim_names=("replicate", "shard")), mp_policy=MIXED)


JOBS: dict[str, Callable[[Model, int], None]] = {
    "float32": lambda model, ranks: shard(model, flat(ranks)),
    "mixed": lambda model, ranks: shard(model, flat(ranks), mp_policy=MIXED),
    "kept": lambda model, ranks: shard(model, flat(ranks), mp_policy=MIXED, reshard_after_forward=False),
    "offloaded": lambda model, ranks: shard(model, flat(ranks), mp_policy=MIXED, offload_policy=CPUOffloadPolicy()),
    "accumulated": lambda model, ranks: shard(model, flat(ranks), mp_policy=MIXED),
    "hybrid": hybrid,
    "tensor": with_tensor_parallel,
}
"""By name: FSDP2 in float32 and in mixed precision, without resharding after the forward, with offloading to the CPU,
with gradients that are accumulated without communication, on a mesh of two dimensions, and with tensor parallelism."""


# ---- training ----


def train(name: str, ranks: int) -> None:
    with torch.device("meta"):
        model = Model()
    JOBS[name](model, ranks)
    model.to_empty(device="cpu" if name == "offloaded" else "cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    words = torch.randint(0, WORDS, (BATCH, LENGTH)).cuda()
    for _ in range(3):
        for last in (False, True) if name == "accumulated" else (True,):
            model.set_requires_gradient_sync(last)
            loss = nn.functional.cross_entropy(model(words).flatten(0, 1).float(), words.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=list(JOBS))
    parser.add_argument("--fake", type=int, default=0)
    parser.add_argument("--stats", default="")
    options = parser.parse_args()
    if options.fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=options.fake)
    else:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    train(options.name, dist.get_world_size())
    stats = torch.cuda.memory_stats()
    figures = {"allocated_peak": stats["allocated_bytes.all.peak"], "reserved_peak": stats["reserved_bytes.all.peak"]}
    if options.stats:
        with open(options.stats, "w", encoding="utf-8") as file:
            json.dump(figures, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
