"""What ModuleTracker and ModTracker cost, compared with PyTorch's own and with no tracker.

    python bench/trackers.py [--device cpu] [--rounds 160]

In every round each variant has one turn, in random order and in one process, so that changes of
the machine's speed affect all variants alike. A turn begins with an untimed step. Each figure is
the ratio of the lower quartile to that of the untracked step. `untracked again` is the control:
its difference from 1.00 is noise.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import Any

import modscope
from common import CALLS, lower_quartile, nothing, stack, take_turns, waiter
from torch.distributed._tools.mod_tracker import ModTracker as TorchModTracker
from torch.utils.module_tracker import ModuleTracker as TorchModuleTracker

import torch
from torch import nn


def with_hooks(tracker: Any) -> Any:
    tracker.register_user_hooks(nothing, nothing, nothing, nothing)
    return tracker


VARIANTS: dict[str, Callable[[], Any]] = {
    "untracked": contextlib.nullcontext,
    "untracked again": contextlib.nullcontext,
    "modscope ModuleTracker": modscope.ModuleTracker,
    "modscope ModTracker": modscope.ModTracker,
    "modscope ModTracker, four hooks": lambda: with_hooks(modscope.ModTracker()),
    "torch ModuleTracker": TorchModuleTracker,
    "torch ModTracker": TorchModTracker,
    "torch ModTracker, four hooks": lambda: with_hooks(TorchModTracker()),
}


def time_steps(blocks: int, rounds: int, device: str) -> dict[str, float]:
    model, x = stack(blocks, device)
    times = take_turns(
        {name: make() for name, make in VARIANTS.items()},
        lambda: model(x).sum().backward(),
        rounds=rounds,
        clear=model.zero_grad,
        wait=waiter(device),
    )
    return {name: lower_quartile(taken[5:]) for name, taken in times.items()}


def nested(depth: int, body: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    class Level(nn.Module):
        def __init__(self, below: nn.Module | None) -> None:
            super().__init__()
            self.below = below

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return body(x) if self.below is None else self.below(x)

    model = None
    for _ in range(depth):
        model = Level(model)
    assert model is not None
    return model


def time_call(work: Callable[[], Any], repeats: int = 2000) -> float:
    def once() -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - begin) / repeats

    return min(once() for _ in range(5)) * 1e6


def time_reads() -> dict[str, float]:
    found = {}

    def body(x: torch.Tensor) -> torch.Tensor:
        found["t.parents in forward, 10 deep"] = time_call(lambda: tracker.parents)
        y = x * 2
        y.register_hook(in_backward)
        return y

    def in_backward(grad: torch.Tensor) -> None:
        found["t.parents in backward, 10 deep"] = time_call(lambda: tracker.parents)

    tracker = modscope.ModTracker()
    with tracker:
        nested(10, body)(torch.ones(1, requires_grad=True)).backward()

    def enter_and_leave() -> None:
        with tracker:
            pass

    found["entering and leaving a tracker"] = time_call(enter_and_leave)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="what tracking costs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=160)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    columns = {
        blocks: time_steps(blocks, max(40, arguments.rounds * 25 // blocks), arguments.device) for blocks in CALLS
    }
    print(f"torch {torch.__version__}, {arguments.device}; forward and backward, ratio to the untracked step\n")
    print("| | " + " | ".join(f"{CALLS[blocks]} module calls" for blocks in columns) + " |")
    print("|---|" + "---|" * len(columns))
    for name in VARIANTS:
        if name == "untracked":
            cells = [f"{taken[name] * 1e3:.2f} ms" for taken in columns.values()]
        else:
            cells = [f"{taken[name] / taken['untracked']:.3f}" for taken in columns.values()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n| | microseconds |\n|---|---|")
    for name, microseconds in time_reads().items():
        print(f"| {name} | {microseconds:.2f} |")


if __name__ == "__main__":
    main()
