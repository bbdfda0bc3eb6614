"""What `modscope run` costs in time and file size, compared with PyTorch's profiler and memory history.

    python bench/capture.py [--rounds 150] [--quick] [--device cuda]

On the CPU: the stack of bench/trackers.py, forward and backward, and a small GPT-2 with AdamW (needs
transformers). On a GPU: the models of bench/gpu_models.py. The variants take turns in one
process. Each turn begins a recording, as `modscope run` does once torch is imported, runs one untimed
step and then the timed ones. Each figure is the ratio of the lower quartile to that of the untracked
step; `again` is the control. KiB is the file's size per step. `profiler` is torch.profiler with
profile_memory=True and its trace; `history` is torch.cuda.memory._record_memory_history() and its
snapshot, which supports only CUDA. The last line is what `modscope run` adds to a program that only
imports torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ |= {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # the profiler logs much

import gpu_models
import modscope
from common import CALLS, lower_quartile, nothing, stack, take_turns, waiter
from torch.profiler import ProfilerActivity, profile

import torch

AGAIN, OURS, PROFILER, HISTORY = "again", "modscope", "profiler", "history"
SECONDS = {"cpu": 40.0, "cuda": 15.0}


class Recorder(contextlib.AbstractContextManager[Any]):
    """Each time it is entered, it enters a new object of `make`; after leaving, `save` gets that object."""

    def __init__(self, make: Callable[[], Any], save: Callable[[Any], Any] = nothing) -> None:
        self._make, self._save = make, save

    def __enter__(self) -> None:
        self._current = self._make()
        self._current.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._current.__exit__(*error)
        self._save(self._current)


@contextlib.contextmanager
def history(file: str) -> Iterator[None]:
    torch.cuda.memory._record_memory_history()
    yield
    torch.cuda.memory._dump_snapshot(file)
    torch.cuda.memory._record_memory_history(enabled=None)


def recorders(folder: str, device: str) -> dict[str, contextlib.AbstractContextManager[Any]]:
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * device.startswith("cuda")
    files = {name: os.path.join(folder, name) for name in (OURS, PROFILER, HISTORY)}
    found: dict[str, contextlib.AbstractContextManager[Any]] = {
        "untracked": contextlib.nullcontext(),
        AGAIN: contextlib.nullcontext(),
        OURS: Recorder(lambda: modscope.record(files[OURS], overwrite=True)),
        PROFILER: Recorder(
            lambda: profile(activities=activities, profile_memory=True),
            lambda profiler: profiler.export_chrome_trace(files[PROFILER]),
        ),
    }
    if device.startswith("cuda"):
        found[HISTORY] = Recorder(lambda: history(files[HISTORY]))
    return found


STACK_STEPS = 16  # the first steps of a recording also look for modules that are never called


def compare(title: str, aim: float, device: str, step: Callable[[], Any], timed: int, **turns: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        variants = recorders(folder, device)
        times = take_turns(
            variants, step, timed=timed, wait=waiter(device), slow=[PROFILER, HISTORY], slow_seconds=20, **turns
        )
        cells = [title]
        for name in ["untracked", AGAIN, OURS, PROFILER, HISTORY]:
            typical = lower_quartile(times[name][len(times[name]) // 10 :]) if times.get(name) else 0.0
            if name == "untracked":
                untracked = typical
                cells.append(f"{typical * 1e3:.2f} ms")
                continue
            cells.append(f"{typical / untracked:.3f}" if typical else "-")
            if name != AGAIN:
                file = os.path.join(folder, name)
                size = os.path.getsize(file) if os.path.exists(file) else 0
                cells.append(f"{size / (timed + 1) / 1024:,.1f}" if size else "-")
        print("| " + " | ".join([*cells, f"{aim:.2f}"]) + " |", flush=True)


def run_on_cpu(rounds: int, quick: bool) -> None:
    for blocks, calls in CALLS.items():
        model, x = stack(blocks, "cpu")

        def step(model: Any = model, x: torch.Tensor = x) -> None:
            model(x).sum().backward()

        title = f"stack of {blocks}, {calls} module calls"
        compare(title, 1.10, "cpu", step, STACK_STEPS, rounds=rounds, seconds=SECONDS["cpu"], clear=model.zero_grad)
    train = gpt2_training()
    if train is not None:
        title = "GPT-2, 6 layers of 256, batch 4 by 128, with AdamW"
        compare(title, 1.03, "cpu", train, 1 if quick else 2, rounds=max(2, rounds // 10), seconds=100)


def gpt2_training() -> Callable[[], None] | None:
    """A training step of a small GPT-2; None, and a row that says why, without transformers."""
    try:
        import transformers
    except ImportError as error:
        print(f"| GPT-2, 6 layers: skipped, {error}: pip install transformers | | | | | | | | |", flush=True)
        return None
    config = transformers.GPT2Config(n_layer=6, n_embd=256, n_head=4)
    gpt2 = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(gpt2.parameters())
    tokens = torch.randint(0, config.vocab_size, (4, 128))

    def train() -> None:
        gpt2(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    train()
    return train


def run_on_gpu(device: str, rounds: int, tiny: bool, only: str) -> None:
    gpu_models.warm_up(torch.device(device))
    for name, make in gpu_models.MODELS.items():
        if only.lower() not in name.lower():
            continue
        gpu_models.clear_device(torch.device(device))
        training = gpu_models.Training(make, tiny, device)
        for _ in range(2):
            training.step()
        compare(name, 1.05, device, training.step, 2, rounds=rounds, seconds=SECONDS["cuda"])
        del training


def measure_start_up(times: int) -> None:
    """Print what `modscope run` adds to a program that only imports torch."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "imports.py")
        with open(script, "w") as file:
            file.write("import torch\n")
        ours = [sys.executable, "-m", "modscope", "run", "-q", "-f", "-o", os.path.join(folder, "x.msc"), script]
        taken: dict[str, list[float]] = {"python": [], "modscope run": []}
        for _ in range(times):
            for name, command in {"python": [sys.executable, script], "modscope run": ours}.items():
                begin = time.perf_counter()
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
                taken[name].append(time.perf_counter() - begin)
    plain, run = (sorted(found)[len(found) // 2] for found in taken.values())
    print(
        f"\nA program that only imports torch: {plain:.2f} s, under modscope run {run - plain:+.2f} s (the aim is "
        f"0.30 s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="what modscope run costs")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of the stack; the GPT-2 has a tenth of them")
    parser.add_argument("--quick", action="store_true", help="only try the script; the figures mean nothing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the GPU's part on a CPU")
    parser.add_argument("--only", default="", help="on a GPU: only models whose name contains this")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        import transformers

        transformers.logging.set_verbosity_error()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {arguments.device}; ratio to the untracked step\n")
    print("| | untracked | again | modscope | KiB | profiler | KiB | history | KiB | aim for ours |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    rounds = 10 if arguments.quick else arguments.rounds
    if arguments.device != "cpu" or arguments.tiny:
        run_on_gpu(arguments.device, min(rounds, 25), arguments.tiny, arguments.only)
    else:
        run_on_cpu(rounds, arguments.quick)
    measure_start_up(3 if arguments.quick else 7)


if __name__ == "__main__":
    main()
