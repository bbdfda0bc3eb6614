"""What the benchmarks share: a stack of small modules, and timing variants that take turns."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

CALLS = {25: 51, 100: 201, 400: 801}  # module calls of a stack of so many blocks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def stack(blocks: int, device: str) -> tuple[nn.Module, torch.Tensor]:
    """The stack and its batch."""
    return nn.Sequential(*[Block() for _ in range(blocks)]).to(device), torch.randn(4, 16, device=device)


def nothing(*args: Any) -> None:
    pass


def waiter(device: str) -> Callable[[], Any]:
    return torch.cuda.synchronize if device.startswith("cuda") else nothing


def lower_quartile(times: list[float]) -> float:
    return sorted(times)[len(times) // 4]


def take_turns(
    trackers: Mapping[str, AbstractContextManager[Any]],
    step: Callable[[], Any],
    *,
    rounds: int,
    seconds: float = float("inf"),
    timed: int = 1,
    clear: Callable[[], Any] = nothing,
    wait: Callable[[], Any] = nothing,
    before: Mapping[str, Callable[[], Any]] = {},
    slow: Collection[str] = (),
    slow_seconds: float = float("inf"),
) -> dict[str, list[float]]:
    """The time of each timed `step` under each tracker, in seconds.

    In every round each tracker has one turn, in random order, so that changes of the machine's
    speed affect all of them alike. A turn is one untimed step and then `timed` timed ones, with
    `clear` before each timed step and the tracker's own `before` before every step. No round
    begins after `seconds`. A tracker in `slow` gets no more turns after `slow_seconds`; its time
    does not count towards `seconds`.
    """
    times: dict[str, list[float]] = {name: [] for name in trackers}
    spent = dict.fromkeys(trackers, 0.0)
    names = list(trackers)
    order = random.Random(0)
    gc.collect()
    gc.freeze()
    try:
        for _ in range(rounds):
            if sum(taken for name, taken in spent.items() if name not in slow) > seconds:
                break
            order.shuffle(names)
            for name in names:
                if name in slow and spent[name] > slow_seconds:
                    continue
                turn_begin = time.perf_counter()
                prepare = before.get(name, nothing)
                gc.collect()  # so that no variant collects another one's garbage
                with trackers[name]:
                    prepare()
                    step()  # untimed: the CPU's caches still hold the previous variant's data
                    for _ in range(timed):
                        clear()
                        prepare()
                        wait()
                        begin = time.perf_counter()
                        step()
                        wait()
                        times[name].append(time.perf_counter() - begin)
                spent[name] += time.perf_counter() - turn_begin
    finally:
        gc.unfreeze()
    return times
