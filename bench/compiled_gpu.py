"""Compiled jobs, and jobs with private pools of memory, on this machine's GPU beside predictions of them: a table of
docs/measurements/predictions.md.

    python bench/compiled_gpu.py [--only NAME ...] [--processes 6] [--recorded]

Each job runs four steps in a process of its own, with an empty cache of Inductor, then again on the virtual GPU of the
same kind. Both print the peaks of torch.cuda, after the first step and after all. With --recorded each job also runs
under `modscope run`, and what is reserved is replayed from its capture: after how many events the model disagrees."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import modscope
from modscope._predict.check import find_real_gpu
from modscope._virtual.gpus import GPUS
from torch.nn import functional

import torch
from torch import nn

MARK = "PEAKS"
SECONDS = 200
Step = Callable[[], object]


class Block(nn.Module):
    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self, words: int = 50304, width: int = 768, layers: int = 6) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.words(x)
        for block in self.blocks:
            found = block(found)
        return functional.cross_entropy(self.head(found).flatten(0, 1).float(), x.flatten())


def amp() -> torch.autocast:
    return torch.autocast("cuda", torch.bfloat16)


def gpt(is_whole: bool = True, with_optimizer: bool = False, in_float32: bool = False, **options: Any) -> Step:
    model = Gpt().cuda()
    if not is_whole:
        for block in model.blocks:
            block.compile()
    function = torch.compile(model, **options) if is_whole else model
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    update = torch.compile(optimizer.step) if with_optimizer else optimizer.step

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=not in_float32):
            loss = function(torch.randint(0, 50304, (8, 1024), device="cuda"))
        loss.backward()
        update()
        optimizer.zero_grad()

    return step


def budget() -> Step:
    import torch._functorch.config

    torch._functorch.config.activation_memory_budget = 0.4
    return gpt()


def training(model: nn.Module, inputs: Callable[[], torch.Tensor], function: Any = None) -> Step:
    compiled = function or torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        compiled(inputs()).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def blocks_in_function(checkpointed: bool) -> Step:
    from torch.utils.checkpoint import checkpoint

    model = nn.ModuleList(Block() for _ in range(8)).cuda()

    @torch.compile
    def function(x: torch.Tensor) -> torch.Tensor:
        with amp():
            for i, block in enumerate(model):
                x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
                if i == 2 and not checkpointed:
                    torch._dynamo.graph_break()
        return x

    return training(model, lambda: torch.randn(16, 1024, 768, device="cuda"), function)


def convolutions() -> Step:
    def pair(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        return [first, nn.BatchNorm2d(outputs), nn.ReLU(), second, nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*pair(3, 64, 2), *pair(64, 128, 2), *pair(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(256, 1000)).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    compiled = torch.compile(amp()(model.__call__))
    return training(model, lambda: images, compiled)


def flex_attention() -> Step:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    model = nn.Linear(1024, 3072).cuda().bfloat16()
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 512), None, None, 4096, 4096)

    @torch.compile
    def function(x: torch.Tensor) -> torch.Tensor:
        parts = model(x).view(4, 4096, 3, 16, 64).permute(2, 0, 3, 1, 4)
        return flex_attention(*parts.unbind(), block_mask=mask)

    x = torch.randn(4, 4096, 1024, device="cuda", dtype=torch.bfloat16)
    return training(model, lambda: x, function)


def shapes() -> Step:
    layers = [nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024), nn.LayerNorm(1024)] * 6
    rows = iter((4096, 6144, 3000, 8192))
    return training(nn.Sequential(*layers).cuda(), lambda: torch.randn(next(rows), 1024, device="cuda"))


def dropout() -> Step:
    layers = [layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.Dropout(0.1), nn.ReLU())]
    return training(nn.Sequential(*layers).cuda(), lambda: torch.randn(16384, 2048, device="cuda"))


def cuda_graph() -> Step:
    """A training step without a compiler, captured and replayed."""
    model, inputs = nn.Sequential(*[Block() for _ in range(4)]).cuda(), torch.randn(8, 1024, 768, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    graph = torch.cuda.CUDAGraph()
    state = {"captured": False}

    def train() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def step() -> None:
        if state["captured"]:
            return graph.replay()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                train()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            train()
        state["captured"] = True

    return step


def graphed_callables() -> Step:
    blocks = [Block().cuda() for _ in range(4)]
    sample = torch.randn(8, 1024, 768, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(tuple(blocks), tuple((sample,) for _ in blocks))
    return training(nn.ModuleList(blocks), lambda: torch.randn(8, 1024, 768, device="cuda"), chain(graphed))


def chain(functions: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def run_all(x: torch.Tensor) -> torch.Tensor:
        for function in functions:
            x = function(x)
        return x

    return run_all


def mem_pools() -> Step:
    """Weights in one pool, and every other step in another one that is thrown away."""
    weights = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(weights):
        model = nn.Sequential(*[Block() for _ in range(4)]).cuda()
    train = training(model, lambda: torch.randn(8, 1024, 768, device="cuda"), model)
    state: dict[str, Any] = {"steps": 0, "weights": weights}

    def step() -> None:
        state["steps"] += 1
        if state["steps"] % 2:
            return train()  # type: ignore[return-value]
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            train()

    return step


JOBS: dict[str, Callable[[], Step]] = {
    "gpt": gpt,
    "gpt, blocks compiled": lambda: gpt(is_whole=False),
    "gpt, optimizer compiled": lambda: gpt(with_optimizer=True),
    "gpt, float32": lambda: gpt(in_float32=True),
    "gpt, activation_memory_budget": budget,
    "gpt, reduce-overhead": lambda: gpt(mode="reduce-overhead"),
    "gpt, max-autotune": lambda: gpt(mode="max-autotune"),
    "graph break": lambda: blocks_in_function(checkpointed=False),
    "checkpointed blocks": lambda: blocks_in_function(checkpointed=True),
    "convolutions": convolutions,
    "FlexAttention": flex_attention,
    "other shapes in each step": shapes,
    "dropout": dropout,
    "CUDA graph": cuda_graph,
    "graphed callables": graphed_callables,
    "MemPool": mem_pools,
}


def run(name: str) -> None:
    step = JOBS[name]()
    step()
    peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    for _ in range(3):
        step()
    print(MARK, json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), *peaks]), flush=True)


def peaks_of(words: list[str], environment: dict[str, str]) -> list[int] | str:
    """What a process prints, or the end of its errors."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    found = [json.loads(line.removeprefix(MARK)) for line in ran.stdout.splitlines() if line.startswith(MARK)]
    return found[0] if found else ran.stderr[-300:]


def replay_recorded(job: list[str], folder: str) -> str:
    """Record the job, and replay its capture."""
    capture = os.path.join(folder, "recorded.msc")
    peaks = peaks_of(["-m", "modscope", "run", "-q", "-o", capture, *job], {"TORCHINDUCTOR_CACHE_DIR": folder})
    if isinstance(peaks, str):
        return f" {peaks} |"
    replay = modscope.load(capture).replay("cuda:0")
    return f" {replay['disagreements']:,} of {replay['replayed']:,} events |"


def compare(name: str, is_recorded: bool = False) -> str:
    with tempfile.TemporaryDirectory() as folder:
        job = [__file__, "--job", name]
        predict = ["-m", "modscope", "predict", "-q", "--steps", "99", "--seconds", "0", "-o", f"{folder}/x.msc"]
        gpu = ["--gpu", name_of_this_gpu()]
        real = peaks_of(job, {"TORCHINDUCTOR_CACHE_DIR": folder})
        predicted = peaks_of([*predict, *gpu, *job], {"XDG_CACHE_HOME": folder})
        recorded = replay_recorded(job, folder) if is_recorded else ""
    if isinstance(real, str) or isinstance(predicted, str):
        return f"| {name} | {real} | {predicted} |{recorded}"
    errors = [f"{100 * (one / other - 1):+.2f} %" for one, other in zip(predicted, real, strict=True)]
    mib = [f"{bytes / 2**20:,.0f}" for bytes in real[:2]]
    return f"| {name} | {mib[0]} | {mib[1]} | {' | '.join(errors)} |{recorded}"


def name_of_this_gpu() -> str:
    """As ``--gpu`` takes it."""
    found = find_real_gpu()
    if found is None:
        sys.exit("There is no GPU here, with which predictions could be compared.")
    title, memory = found
    return next((gpu.name for gpu in GPUS.values() if gpu.title == title), str(memory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--processes", type=int, default=6, help="how many jobs run at once")
    parser.add_argument("--recorded", action="store_true", help="also replay a capture of each job")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        return run(arguments.job)
    more = " recorded: the model disagrees at |" if arguments.recorded else ""
    print(
        f"| job | allocated, MiB | reserved, MiB | allocated | reserved | allocated, step 1 | reserved, step 1 |{more}"
    )
    print("|---|---|---|---|---|---|---|" + "---|" * arguments.recorded)
    with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        for row in pool.map(lambda name: compare(name, arguments.recorded), arguments.only):
            print(row, flush=True)


if __name__ == "__main__":
    main()
