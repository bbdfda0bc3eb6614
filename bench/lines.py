"""What it costs that each block of a capture knows its line, beside captures without lines and other tools' lines.

    python bench/lines.py [--rounds 150] [--seconds 40] [--only NAME] [--json FILE]
    python bench/lines.py --device cuda              # the models of bench/gpu_models.py, in three minutes

On the CPU: the stack of bench/trackers.py, forward and backward, and the small GPT-2 of bench/capture.py (needs
transformers). The variants take turns in one process, as in bench/capture.py. Each figure is the ratio of the lower
quartile to that of the untracked step; `again` is the control. `stacks=N` is a recording that keeps N frames for each
block, and `stacks=1 less stacks=0` is what lines cost. `memray` is memray's tracker, without native stacks, if it is
installed. `history` is torch.cuda.memory._record_memory_history(stacks="python"), which supports only CUDA. The last
column is how many bytes a block takes more in the file with stacks=1."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gpu_models
import modscope
from capture import STACK_STEPS, Recorder, gpt2_training
from common import CALLS, lower_quartile, stack, take_turns, waiter

import torch

DEPTHS = {"cpu": [0, 1, 16], "cuda": [0, 1]}
MEMRAY, HISTORY = "memray", "history"


def recorder(file: str, depth: int) -> Recorder:
    return Recorder(lambda: modscope.record(file, overwrite=True, stacks=depth))


def memray_tracker(file: str) -> Any:
    import memray

    return memray.Tracker(destination=memray.FileDestination(file, overwrite=True))


@contextlib.contextmanager
def history() -> Iterator[None]:
    torch.cuda.memory._record_memory_history(stacks="python")
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


def variants_for(device: str, folder: str) -> dict[str, AbstractContextManager[Any]]:
    found: dict[str, AbstractContextManager[Any]] = {"untracked": nullcontext(), "again": nullcontext()}
    for depth in DEPTHS[device]:
        found[f"stacks={depth}"] = recorder(os.path.join(folder, f"stacks={depth}"), depth)
    if importlib.util.find_spec("memray"):
        found[MEMRAY] = Recorder(lambda: memray_tracker(os.path.join(folder, MEMRAY)))
    if device == "cuda":
        found[HISTORY] = Recorder(history)
    return found


def bytes_per_block(folder: str) -> float:
    files = {depth: os.path.join(folder, f"stacks={depth}") for depth in (0, 1)}
    blocks = sum(phase.blocks for phase in modscope.load(files[1]).phases.values())
    return (os.path.getsize(files[1]) - os.path.getsize(files[0])) / blocks


class Table:
    def __init__(self, device: str) -> None:
        self.device = device
        self.rows: list[dict[str, Any]] = []
        self._columns = [
            "untracked",
            "again",
            *[f"stacks={depth}" for depth in DEPTHS[device]],
            "less",
            MEMRAY,
            HISTORY,
        ]
        heads = [
            "program",
            *["stacks=1 less stacks=0" if word == "less" else word for word in self._columns],
            "bytes a block",
        ]
        print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads), flush=True)

    def add(self, title: str, step: Callable[[], Any], **turns: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            variants = variants_for(self.device, folder)
            times = take_turns(
                variants, step, wait=waiter(self.device), slow=[MEMRAY], slow_seconds=turns["seconds"] / 4, **turns
            )
            typical = {name: lower_quartile(taken[len(taken) // 10 :]) for name, taken in times.items() if taken}
            figures = {name: value / typical["untracked"] for name, value in typical.items()}
            figures["less"] = figures["stacks=1"] - figures["stacks=0"]
            figures["untracked"] = typical["untracked"] * 1e3
            more = bytes_per_block(folder)
        self.rows.append({"program": title, **figures, "bytes_a_block": more, "rounds": len(times["untracked"])})
        cells = [f"{figures[word]:.3f}" if word in figures else "-" for word in self._columns]
        cells[0] = f"{figures['untracked']:.2f} ms"
        print("| " + " | ".join([title, *cells, f"{more:.2f}"]) + " |", flush=True)


def run_on_cpu(table: Table, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    for blocks, calls in CALLS.items():
        title = f"stack of {blocks}, {calls} module calls"
        if options.only.lower() not in title:
            continue
        model, x = stack(blocks, "cpu")

        def step(model: Any = model, x: torch.Tensor = x) -> None:
            model(x).sum().backward()

        table.add(title, step, timed=STACK_STEPS, rounds=options.rounds, seconds=options.seconds, clear=model.zero_grad)
    title = "GPT-2, 6 layers of 256, batch 4 by 128, with AdamW"
    if options.only.lower() in title.lower():
        train = gpt2_training()
        if train is not None:
            table.add(title, train, timed=2, rounds=max(2, options.rounds // 10), seconds=2 * options.seconds)


def run_on_gpu(table: Table, options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    gpu_models.warm_up(device)
    for name, make in gpu_models.MODELS.items():
        if options.only.lower() not in name.lower():
            continue
        gpu_models.clear_device(device)
        training = gpu_models.Training(make, options.tiny, options.device)
        for _ in range(2):
            training.step()
        table.add(name, training.step, timed=4, rounds=options.rounds, seconds=options.seconds)
        del training


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=sorted(DEPTHS))
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seconds", type=float, help="for each program; by default 40 on the CPU, 15 on a GPU")
    parser.add_argument("--only", default="", help="only programs whose name contains this")
    parser.add_argument("--tiny", action="store_true", help="tiny models in place of the GPU's")
    parser.add_argument("--json", help="write the figures to this file too")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("bench/lines.py: this torch has no CUDA device. Leave out --device cuda to measure on the CPU.")
    options.seconds = options.seconds or {"cpu": 40.0, "cuda": 15.0}[options.device]
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        import transformers

        transformers.logging.set_verbosity_error()
    table = Table(options.device)
    (run_on_gpu if options.device == "cuda" else run_on_cpu)(table, options)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table.rows, file, indent=1)


if __name__ == "__main__":
    main()
