"""What FSDPMemTracker costs on the CPU, compared with PyTorch's FSDPMemTracker and with no tracker.

    python bench/fsdp.py [--rounds 40] [--layers 12] [--seconds 60] [--quick]

The model is the transformer of PyTorch's own test of its FSDPMemTracker, sharded by FSDP2 over torch's fake process
group of 4 ranks. A step is forward, backward and Adam. The variants take turns as in bench/trackers.py; each figure is
the ratio of the lower quartile to that of the untracked step, and `untracked again` is the control. PyTorch's is slow,
so it gets only a few steps, and none with --quick."""

from __future__ import annotations

import argparse
import contextlib
import warnings
from typing import Any

import modscope
import torch.distributed as dist
from common import lower_quartile, take_turns
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker as TorchFSDPMemTracker
from torch.distributed.fsdp import fully_shard

import torch

OURS, THEIRS = "modscope FSDPMemTracker", "torch FSDPMemTracker"
NAMES = ["untracked", "untracked again", "modscope MemTracker", OURS, THEIRS]
RANKS, THEIR_SECONDS = 4, 10


def make_job(layers: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]:
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    args = ModelArgs(n_layers=layers, vocab_size=1024, max_seq_len=128, dim=256, n_heads=8, dropout_p=0.0)
    model = Transformer(args)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters()), torch.randint(0, args.vocab_size, (4, args.max_seq_len))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quick", action="store_true", help="leave out PyTorch's tracker")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model, optimizer, tokens = make_job(arguments.layers)

    def step() -> None:
        model(tokens).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    ours, plain, theirs = (
        modscope.FSDPMemTracker(model, optimizer),
        modscope.MemTracker(),
        TorchFSDPMemTracker(model, optimizer),
    )
    plain.track_external(model, optimizer)
    trackers: dict[str, Any] = dict(
        zip(NAMES, [contextlib.nullcontext(), contextlib.nullcontext(), plain, ours, theirs], strict=True)
    )
    if arguments.quick:
        del trackers[THEIRS]
    times = take_turns(
        trackers,
        step,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        timed=2,
        before={THEIRS: theirs.reset_mod_stats},
        slow=[THEIRS],
        slow_seconds=THEIR_SECONDS,
    )
    untracked = lower_quartile(times["untracked"])
    print(f"| program | {' | '.join(NAMES)} | aim |\n|{'---|' * (len(NAMES) + 2)}")
    ratios = [f"{lower_quartile(times[name]) / untracked:.3f}" if name in times else "-" for name in NAMES[1:]]
    print(
        f"| transformer, {arguments.layers} layers, {RANKS} ranks | {untracked * 1e3:.1f} ms | "
        f"{' | '.join(ratios)} | 1.10 |"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
