"""A training job whose batches have different shapes, for bench/epoch.py: epoch_job.py KIND

gpt       a GPT, padded to the longest of the batch          packed   one row of samples up to a limit of tokens
seq2seq   an encoder and a decoder, each with its own length cnn      images whose heights and widths vary
moe       a mixture of experts                               trainer  transformers' Trainer with group_by_length"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from typing import Any

from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS = 8192, 256, 4, 4
BATCHES = int(os.environ.get("EPOCH_BATCHES", "200"))


def long_tailed(count: int, least: int, most: int, seed: int = 0) -> list[int]:
    """Lengths, most of which are short."""
    generator = random.Random(seed)
    return [min(most, int(least * generator.paretovariate(1.1))) for _ in range(count)]


class Lengths(Dataset):
    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.lengths[index],), index % VOCABULARY, dtype=torch.long)


class Block(nn.Module):
    def __init__(self, cross: bool = False, experts: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cross = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) if cross else None
        self.mlp = Experts(experts) if experts else MLP()

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        if self.cross is not None:
            x = x + self.cross(x, other, other, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


class Experts(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, count), nn.ModuleList(MLP() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, WIDTH)
        weight, chosen = self.gate(flat).softmax(-1).topk(2)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            result = result.index_add(0, rows, expert(flat[rows]) * weight[rows, slot, None])
        return result.view_as(x)


class GPT(nn.Module):
    def __init__(self, experts: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(experts=experts) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


class Seq2seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.encoder = nn.ModuleList(Block() for _ in range(2))
        self.decoder = nn.ModuleList(Block(cross=True) for _ in range(2))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x, y = self.embed(source), self.embed(target)
        for block in self.encoder:
            x = block(x)
        for block in self.decoder:
            y = block(y, x)
        return F.cross_entropy(self.head(y).view(-1, VOCABULARY), target.view(-1))


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in zip(widths, widths[1:])
        )
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            images = layer(images)
        return F.cross_entropy(self.head(images.mean((2, 3))), labels)


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(samples, batch_first=True)


class Packed:
    """A sampler: as many samples as have at most so many tokens together."""

    def __init__(self, lengths: list[int], most: int) -> None:
        self.batches: list[list[int]] = [[]]
        for index, length in enumerate(lengths):
            if self.batches[-1] and sum(lengths[i] for i in self.batches[-1]) + length > most:
                self.batches.append([])
            self.batches[-1].append(index)
        self.batches = self.batches[:BATCHES]

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Pairs(Dataset):
    def __len__(self) -> int:
        return 8 * BATCHES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        source, target = long_tailed(2, 16, 500, index)
        return torch.ones(source, dtype=torch.long), torch.ones(target, dtype=torch.long)


class Images(Dataset):
    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        height, width = (random.Random(2 * index + i).randrange(128, 513) for i in (0, 1))
        return torch.zeros(16, 3, height, width), torch.zeros(16, dtype=torch.long)


def train(model: nn.Module, loader: DataLoader[Any]) -> None:
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        items = batch if isinstance(batch, (list, tuple)) else [batch]
        loss = model(*(item.to("cuda") for item in items))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_with_trainer() -> None:
    from transformers import DataCollatorForLanguageModeling, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=1024)
    data = [
        {"input_ids": [index % 100 + 1] * length} for index, length in enumerate(long_tailed(4 * BATCHES, 20, 1000))
    ]

    class Collator:
        def __call__(self, samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
            ids = padded([torch.tensor(sample["input_ids"]) for sample in samples])
            return {"input_ids": ids, "labels": ids}

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"group_by_length": True}
        if "train_sampling_strategy" in TrainingArguments.__dataclass_fields__:
            options = {"train_sampling_strategy": "group_by_length"}
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=4, num_train_epochs=1, report_to=[], save_strategy="no", **options
        )
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, data_collator=Collator()).train()
    del DataCollatorForLanguageModeling


def main(kind: str) -> None:
    torch.manual_seed(0)
    lengths = long_tailed(4 * BATCHES, 40, 1500)
    if kind in ("gpt", "moe"):
        loader = DataLoader(Lengths(lengths), batch_size=4, shuffle=True, collate_fn=padded, num_workers=0)
        train(GPT(4 if kind == "moe" else 0), loader)
    elif kind == "packed":
        packed = Packed(long_tailed(64 * BATCHES, 40, 1500), 4096)
        train(GPT(), DataLoader(Lengths(long_tailed(64 * BATCHES, 40, 1500)), batch_sampler=packed,
                                collate_fn=lambda samples: torch.cat(samples)[None]))  # fmt: skip
    elif kind == "seq2seq":
        both = lambda samples: tuple(padded([sample[i] for sample in samples]) for i in (0, 1))  # noqa: E731
        train(Seq2seq(), DataLoader(Pairs(), batch_size=8, shuffle=True, collate_fn=both))
    elif kind == "cnn":
        train(CNN(), DataLoader(Images(), batch_size=None, shuffle=True))
    else:
        train_with_trainer()


if __name__ == "__main__":
    main(sys.argv[1])
