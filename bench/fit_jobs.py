"""Small training jobs for bench/fit.py, each with a lever applied in the program itself, on a virtual GPU.

python bench/fit_jobs.py NAME CAPTURE LEVER SCALE    one job in this process; prints its figures as JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple


class Figures(NamedTuple):
    allocated: int
    reserved: int
    step: float
    """Milliseconds."""


class Shape(NamedTuple):
    width: int
    layers: int
    batch: int
    length: int
    autocast: bool = False
    words: int = 8000
    kind: str = "gpt"


JOBS = {
    "gpt": Shape(512, 8, 16, 256),
    "gpt-amp": Shape(768, 6, 16, 256, autocast=True),
    "wide": Shape(1536, 4, 8, 128, words=2000),
    "deep": Shape(256, 24, 32, 128, words=4000),
    "convolutions": Shape(96, 8, 32, 48, kind="convolutions", words=100),
}


def predict(name: str, capture: pathlib.Path, lever: str = "", scale: float = 1.0) -> Figures:
    """In another process."""
    environment = {**os.environ}
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if lever == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    words = [sys.executable, "-W", "ignore", __file__, name, str(capture), lever, str(scale)]
    ran = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=600)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return Figures(*json.loads(ran.stdout.splitlines()[-1]))


# ---- in the job's process ----


def _model(shape: Shape, checkpointed: bool) -> Any:
    from torch.utils.checkpoint import checkpoint

    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.unflatten(-1, (8, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            return self.out(
                nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            )

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attend, self.norm2 = nn.LayerNorm(shape.width), Attention(), nn.LayerNorm(shape.width)
            self.wide, self.narrow = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)
            self.act, self.drop = nn.GELU(), nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attend(self.norm1(x))
            return x + self.drop(self.narrow(self.act(self.wide(self.norm2(x)))))

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Conv2d(shape.width, shape.width, 3, padding=1, bias=False) for _ in range(2))
            self.norm1, self.norm2 = nn.BatchNorm2d(shape.width), nn.BatchNorm2d(shape.width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.relu(x + self.norm2(self.second(nn.functional.relu(self.norm1(self.first(x))))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            images = shape.kind == "convolutions"
            self.embed: nn.Module = (
                nn.Conv2d(3, shape.width, 3, padding=1) if images else nn.Embedding(shape.words, shape.width)
            )
            self.h = nn.ModuleList(Convolution() if images else Block() for _ in range(shape.layers))
            self.head = nn.Linear(shape.width, shape.words)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x)
            for block in self.h:
                x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
            return self.head(x.mean((2, 3)) if shape.kind == "convolutions" else x)

    return Net


def _batch(shape: Shape, count: int) -> Any:
    import torch

    if shape.kind == "convolutions":
        return torch.randn(count, 3, shape.length, shape.length, device="cuda"), torch.zeros(
            count, dtype=torch.long, device="cuda"
        )
    ids = torch.zeros(count, shape.length, dtype=torch.long, device="cuda")
    return ids, ids.flatten().clone()


def _run(name: str, capture: str, lever: str, scale: float) -> Figures:
    import modscope

    import torch

    shape = JOBS[name]
    with modscope.virtual_gpu("h200", path=capture) as gpu:
        model = _model(shape, lever == "checkpoint")().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True if lever == "fused" else None)
        x, y = _batch(shape, int(shape.batch * scale))
        hooks = (
            torch.autograd.graph.save_on_cpu(pin_memory=True) if lever == "save_on_cpu" else contextlib.nullcontext()
        )
        for _ in range(3):
            with hooks, torch.autocast("cuda", torch.bfloat16, enabled=shape.autocast):
                out = model(x)
            torch.nn.functional.cross_entropy(out.flatten(0, -2), y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=lever != "keep_gradients")
            del out
        torch.cuda.synchronize()
    return Figures(gpu.peak_allocated, gpu.peak_reserved, gpu.step_ms or 0.0)


if __name__ == "__main__":
    name, capture, lever, scale = sys.argv[1:]
    print(json.dumps(_run(name, capture, lever, float(scale))))
