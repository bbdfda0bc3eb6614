"""What results that checkpointed modules keep cost the program, in microseconds of processor time for each operator.

    python bench/selective.py

- none: an operator that is not kept, in a module that keeps another one's result
- kept: one whose result is kept, in forward, and again in the recomputation, where it is not computed
- torch: both of them with torch's own create_selective_checkpoint_contexts"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from modscope._plan import selective

import torch

CALLS, ROUNDS = 2000, 7
PLACES = (("aten::sin", 1, 0),)
_KEPT = tuple(("aten::sin", i + 1, 0) for i in range(CALLS))


def seconds(run: Callable[[], object], contexts: Callable[[], Any] = contextlib.nullcontext) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        with contexts():
            begin = time.thread_time()
            run()
            best = min(best, time.thread_time() - begin)
    return best / CALLS * 1e6


def main() -> None:
    x = torch.ones(1)

    def other() -> None:
        for _ in range(CALLS):
            torch.cos(x)

    def kept() -> None:
        for _ in range(CALLS):
            torch.sin(x)

    def region() -> Any:
        return selective.contexts(_KEPT, print)

    def recomputed() -> Any:
        forward, again = region()
        with forward:
            kept()
        return again

    def of_torch(index: int) -> Callable[[], Any]:
        def make() -> Any:
            from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

            names = {name for name, *_ in PLACES}
            policy = lambda context, operator, *args, **kwargs: (
                CheckpointPolicy.MUST_SAVE if operator.name() in names else CheckpointPolicy.PREFER_RECOMPUTE
            )
            both = create_selective_checkpoint_contexts(policy)
            if index:
                with both[0]:
                    kept()
            return both[index]

        return make

    plain = {"none": seconds(other), "kept": seconds(kept)}
    print(f"plain: none {plain['none']:.2f}, kept {plain['kept']:.2f}")
    rows = {
        "none": seconds(other, lambda: selective.contexts(PLACES, lambda _: None)[0]) - plain["none"],
        "kept, forward": seconds(kept, lambda: region()[0]) - plain["kept"],
        "kept, again": seconds(kept, recomputed) - plain["kept"],
        "torch: none": seconds(other, of_torch(0)) - plain["none"],
        "torch: kept, forward": seconds(kept, of_torch(0)) - plain["kept"],
        "torch: kept, again": seconds(kept, of_torch(1)) - plain["kept"],
    }
    for name, microseconds in rows.items():
        print(f"{name:<22} {microseconds:+6.2f}")


if __name__ == "__main__":
    main()
