"""What MemTracker costs on the CPU, compared with PyTorch's MemTracker and with no tracker.

    python bench/memory.py [--rounds 200] [--quick]

Two programs are timed: the stack of bench/trackers.py, forward and backward, and whole training
steps of a small GPT-2 with AdamW (needs transformers). The variants take turns as in
bench/trackers.py; each figure is the ratio of the lower quartile to that of the untracked step,
and `untracked again` is the control. PyTorch's MemTracker is slow, so it gets only a few steps.
"""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import modscope
from common import CALLS, lower_quartile, stack, take_turns
from torch.distributed._tools.mem_tracker import MemTracker as TorchMemTracker

import torch

OURS, THEIRS = "modscope MemTracker", "torch MemTracker"
NAMES = ["untracked", "untracked again", OURS, THEIRS]
STACK_SECONDS, GPT2_SECONDS = 40, 100
THEIR_SECONDS = 5


def compare(title: str, aim: float, tracked: list[Any], step: Callable[[], Any], **turns: Any) -> None:
    """Print the table's row for `step`. `tracked` are the objects for `track_external`."""
    ours, theirs = modscope.MemTracker(), TorchMemTracker()
    for tracker in ours, theirs:
        tracker.track_external(*tracked)
    trackers = dict(zip(NAMES, [contextlib.nullcontext(), contextlib.nullcontext(), ours, theirs], strict=True))
    if turns.pop("without_theirs", False):
        del trackers[THEIRS]
    times = take_turns(
        trackers, step, before={THEIRS: theirs.reset_mod_stats}, slow=[THEIRS], slow_seconds=THEIR_SECONDS, **turns
    )
    cells = [title]
    for name in NAMES:
        taken = times.get(name, [])
        typical = lower_quartile(taken[min(5, len(taken) // 4) :]) if taken else 0
        if name == "untracked":
            untracked = typical
            cells.append(f"{untracked * 1e3:.2f} ms")
        else:
            cells.append(f"{typical / untracked:.3f}" if taken else "-")
    counts = f"{len(times[OURS])}, {len(times.get(THEIRS, []))}"
    print("| " + " | ".join([*cells, f"{aim:.2f}", counts]) + " |", flush=True)
    if ours.source != "allocator" or ours.lost:
        print(f"\nwarning: {OURS} used the {ours.source} as its source and lost {ours.lost} events\n", flush=True)


def compare_stack(blocks: int, **turns: Any) -> None:
    model, x = stack(blocks, "cpu")
    compare(
        f"stack of {blocks}, {CALLS[blocks]} module calls",
        1.08,
        [model, x],
        lambda: model(x).sum().backward(),
        clear=model.zero_grad,
        seconds=STACK_SECONDS,
        **turns,
    )


def compare_gpt2(**turns: Any) -> None:
    try:
        import transformers
    except ImportError as error:
        print(f"| GPT-2, 6 layers: skipped, {error}: pip install transformers | | | | | | |", flush=True)
        return
    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(n_layer=6, n_embd=256, n_head=4)
    model = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, config.vocab_size, (4, 128))

    def step() -> None:
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # creates the optimizer's state
    title = "GPT-2, 6 layers of 256, batch 4 by 128, with AdamW"
    compare(title, 1.03, [model, optimizer, tokens], step, seconds=GPT2_SECONDS, **turns)


def main() -> None:
    parser = argparse.ArgumentParser(description="what MemTracker costs on the CPU")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of the stack; the GPT-2 has a tenth of them")
    parser.add_argument(
        "--quick", action="store_true", help="only try the script, in half a minute; the figures mean nothing"
    )
    arguments = parser.parse_args()
    rounds = min(arguments.rounds, 20) if arguments.quick else arguments.rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # PyTorch's tracker warns about modules that were deleted

    print(f"torch {torch.__version__}, cpu, one thread; ratio to the untracked step\n")
    print("| | " + " | ".join(NAMES) + " | aim for ours | timed steps: ours, torch's |")
    print("|---|" + "---|" * (len(NAMES) + 2), flush=True)
    for blocks in CALLS:
        compare_stack(blocks, rounds=rounds, without_theirs=arguments.quick and blocks == max(CALLS))
    compare_gpt2(rounds=max(2, rounds // 10), timed=1 if arguments.quick else 2)


if __name__ == "__main__":
    main()
