"""What MemoryTracker costs, compared with PyTorch's own and with no tracker.

    python bench/operators.py [--device cpu] [--rounds 60] [--blocks 100]

First one operator on a tiny tensor outside autograd, in microseconds: the least of all rounds, which other work of the
machine does not change. Then steps of a stack of small modules; the variants take turns, as in trackers.py. `an empty
mode` is a TorchDispatchMode in Python that only calls the operator: what any tool costs that sees operators in Python.
PyTorch's MemoryTracker needs an accelerator. On the CPU it gets one whose memory functions return constants at once, so
its own cost there is a lower bound."""

from __future__ import annotations

import argparse
import contextlib
import time
import types
from typing import Any

import modscope
from common import lower_quartile, stack, take_turns, waiter
from torch.distributed._tools.memory_tracker import MemoryTracker as TorchMemoryTracker
from torch.utils._python_dispatch import TorchDispatchMode

import torch
from torch import nn

CONSTANTS = types.SimpleNamespace(
    empty_cache=lambda: None,
    memory_allocated=lambda: 0,
    memory_reserved=lambda: 0,
    memory_stats=lambda: {"active_bytes.all.current": 0},
)


class Monitored:
    """A context manager of a tracker that is started and stopped."""

    def __init__(self, tracker: Any, root: nn.Module) -> None:
        self.tracker, self.root = tracker, root

    def __enter__(self) -> None:
        self.tracker.start_monitor(self.root)

    def __exit__(self, *exception: object) -> None:
        self.tracker.stop()


class Empty(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def torch_tracker(device: str) -> Any:
    tracker = TorchMemoryTracker()
    if device == "cpu":
        tracker._device_module = CONSTANTS
    return tracker


def time_operator(variants: dict[str, Any], device: str, rounds: int) -> dict[str, float]:
    """The least microseconds of one operator."""
    x, repeats = torch.ones(4, 16, device=device), 200
    found = dict.fromkeys(variants, float("inf"))
    with torch.no_grad():
        for _ in range(rounds):
            for name, variant in variants.items():
                with variant:
                    x.relu()
                    begin = time.perf_counter()
                    for _ in range(repeats):
                        x.relu()
                    found[name] = min(found[name], (time.perf_counter() - begin) / repeats * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--blocks", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, x = stack(options.blocks, options.device)

    def step() -> None:
        model(x).sum().backward()

    counter = modscope.MemoryTracker()
    with Monitored(counter, model):
        step()
    operators = len(counter.memories_allocated)
    variants: dict[str, Any] = {
        "untracked": contextlib.nullcontext(),
        "untracked again": contextlib.nullcontext(),
        "an empty mode": Empty(),
        "modscope MemoryTracker": Monitored(modscope.MemoryTracker(), model),
        "torch MemoryTracker": Monitored(torch_tracker(options.device), model),
    }
    for name, microseconds in time_operator(variants, options.device, options.rounds).items():
        print(f"one operator, {name:24} {microseconds:6.2f} us")
    times = take_turns(variants, step, rounds=options.rounds, clear=model.zero_grad, wait=waiter(options.device))
    found = {name: lower_quartile(taken[5:]) for name, taken in times.items()}
    print(
        f"stack of {options.blocks} on {options.device}: {operators} operators, untracked "
        f"{found['untracked'] * 1e3:.2f} ms"
    )
    for name, taken in found.items():
        extra = (taken - found["untracked"]) / operators * 1e6
        print(f"{name:24} {taken / found['untracked']:6.2f}   {extra:6.2f} us more for each operator")


if __name__ == "__main__":
    main()
