"""Train a small model of some shape for three steps, for ``bench/fit.py sharded``: on one GPU as it is, and on several
with FSDP2 for each layer and the model.

    fit_sharding_models.py gpt | encoder-decoder | blocks | linears | plain | stages | wrapped | sequence

It knows nothing of modscope."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import torch
from torch import nn

WIDTH, LAYERS, LENGTH, BATCH, WORDS = 512, 6, 128, 2, 8000


def layers() -> list[nn.Module]:
    return [nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True) for _ in range(LAYERS)]


class Embedding(nn.Embedding):
    """Takes any floats for words: what they are does not matter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x[..., 0] * 0).long())


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers, self.head = Embedding(WORDS, WIDTH), nn.ModuleList(layers()), nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Transformer(WIDTH, 8, LAYERS, LAYERS, 4 * WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.both(x, x)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = (
            nn.Linear(WIDTH, 8 * WIDTH),
            nn.Linear(8 * WIDTH, WIDTH),
            nn.Linear(WIDTH, WORDS),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.down(torch.relu(self.up(x)))))


class Stages(nn.Module):
    """Convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Conv2d(LENGTH, 128, 1), self.stage(128, 256), self.stage(256, 512)

    def stage(self, channels: int, more: int) -> nn.Sequential:
        sizes = [(channels, more), (more, more), (more, more)]
        blocks = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sizes]
        return nn.Sequential(*blocks, nn.MaxPool2d(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.stem(x.unflatten(-1, (16, 32)))))


def make(kind: str) -> tuple[nn.Module, list[nn.Module]]:
    """The model, and the modules that FSDP2 shards each on its own."""
    if kind == "gpt":
        gpt = Gpt()
        return gpt, list(gpt.layers)
    if kind == "encoder-decoder":
        model = EncoderDecoder()
        return model, [*model.both.encoder.layers, *model.both.decoder.layers]
    if kind == "blocks":
        blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS))
        )
        return blocks, list(blocks)
    if kind == "linears":
        linears = nn.Sequential(*(nn.Linear(4 * WIDTH, 4 * WIDTH) for _ in range(LAYERS)))
        return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), *linears), list(linears)
    if kind == "plain":
        return Plain(), []
    if kind == "stages":
        stages = Stages()
        return stages, [block for stage in (stages.first, stages.second) for block in stage[:3]]
    if kind == "wrapped":
        inner = Gpt()
        return nn.Sequential(inner, nn.LayerNorm(WORDS), nn.Linear(WORDS, 10)), list(inner.layers)
    assert kind == "sequence", kind
    sequence = nn.Sequential(Embedding(WORDS, WIDTH), *layers(), nn.Linear(WIDTH, WORDS))
    return sequence, list(sequence)


def main() -> None:
    model, units = make(sys.argv[1])
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("nccl")
        for unit in units:
            fully_shard(unit)
        fully_shard(model)
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(BATCH, LENGTH, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
