"""What it costs that each block of a capture knows its line, beside captures without lines.

    python bench/lines.py [--rounds 150] [--seconds 40]

On the CPU: the stack of bench/trackers.py, forward and backward. The variants take turns in one process, as in
bench/capture.py. Each figure is the ratio of the lower quartile to that of the untracked step; `stacks=N` is a
recording that keeps N frames for each block, and the last column is how many bytes a block takes more in the file
with stacks=1.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from capture import STACK_STEPS, Recorder
from common import CALLS, lower_quartile, stack, take_turns

import modscope

DEPTHS = [0, 1, 16]


def recorder(file: str, depth: int) -> Recorder:
    return Recorder(lambda: modscope.record(file, overwrite=True, stacks=depth))


def bytes_per_block(folder: str) -> float:
    files = {depth: os.path.join(folder, f"stacks={depth}") for depth in (0, 1)}
    blocks = sum(phase.blocks for phase in modscope.load(files[1]).phases.values())
    return (os.path.getsize(files[1]) - os.path.getsize(files[0])) / blocks


def compare(title: str, step: Callable[[], Any], rounds: int, seconds: float, clear: Callable[[], Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        variants: dict[str, AbstractContextManager[Any]] = {"untracked": nullcontext(), "again": nullcontext()}
        for depth in DEPTHS:
            variants[f"stacks={depth}"] = recorder(os.path.join(folder, f"stacks={depth}"), depth)
        times = take_turns(variants, step, timed=STACK_STEPS, rounds=rounds, seconds=seconds, clear=clear)
        typical = {name: lower_quartile(taken[len(taken) // 10 :]) for name, taken in times.items()}
        cells = [title, f"{typical['untracked'] * 1e3:.2f} ms"]
        cells += [f"{typical[name] / typical['untracked']:.3f}" for name in typical if name != "untracked"]
        print("| " + " | ".join([*cells, f"{bytes_per_block(folder):.2f}"]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = ["program", "untracked", "again", *[f"stacks={depth}" for depth in DEPTHS], "bytes a block"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for blocks, calls in CALLS.items():
        model, x = stack(blocks, "cpu")

        def step(model: Any = model, x: torch.Tensor = x) -> None:
            model(x).sum().backward()

        compare(f"stack of {blocks}, {calls} module calls", step, options.rounds, options.seconds, model.zero_grad)


if __name__ == "__main__":
    main()
