"""Training runs on the CPU and on a virtual GPU for the tests of modscope fit."""

from __future__ import annotations

import contextlib
import pathlib

import modscope

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.act, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.act(self.wide(self.norm(x))))


class Net(nn.Module):
    def __init__(self, count: int = 4, width: int = 64) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block(width) for _ in range(count))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.h:
            x = block(x)
        return self.head(x)


def train(
    path: pathlib.Path,
    *,
    batch: int = 256,
    steps: int = 3,
    count: int = 4,
    to_none: bool = True,
    micro: int = 1,
    fail_in: int = 0,
) -> None:
    """A run on the CPU. ``fail_in``: raise in the forward of this step."""
    torch.manual_seed(0)
    net = Net(count)
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(batch, 64)
    with contextlib.suppress(ZeroDivisionError), modscope.record(path):
        for step in range(1, steps + 1):
            for _ in range(micro):
                out = net(x)
                if step == fail_in:
                    raise ZeroDivisionError
                out.sum().backward()
                del out
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)


VIRTUAL = """
import contextlib, sys, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
sys.path.insert(0, {folder!r})
from fit_runs import Net
import modscope
path, lever, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
with modscope.virtual_gpu("h100", path=path) as gpu:
    model = Net(6, 512).cuda()
    if lever.startswith("checkpoint"):
        for block in list(model.h)[: int(lever[10:] or 6)]:
            forward = block.forward
            block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True if lever == "fused" else None, foreach=False if lever == "single" else None)
    x = torch.randn(batch, 128, 512, device="cuda")
    for _ in range(3):
        with torch.autograd.graph.save_on_cpu(pin_memory=True) if lever == "save_on_cpu" else contextlib.nullcontext():
            out = model(x)
        out.sum().backward()
        del out
        optimizer.step()
        optimizer.zero_grad(set_to_none=lever != "keep")
print(gpu.peak_allocated, gpu.peak_reserved)
"""


def predict(path: pathlib.Path, lever: str = "", batch: int = 32, conf: str = "") -> tuple[int, int]:
    """A run on a virtual GPU, in another process. Returns the allocated and the reserved peak."""
    import warm_python  # programs that import this file do not find it

    program = VIRTUAL.format(folder=str(pathlib.Path(__file__).parent))
    ran = warm_python.run(["-W", "ignore", "-c", program, str(path), lever, str(batch)], PYTORCH_CUDA_ALLOC_CONF=conf)
    assert ran.returncode == 0, ran.stderr
    allocated, reserved = map(int, ran.stdout.split())
    return allocated, reserved
