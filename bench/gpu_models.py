"""MemTracker on real models: what it costs, whether it is exact, and how well fake tensors predict the peak.

    python bench/gpu_models.py [--device cuda] [--rounds 12] [--seconds 8] [--no-torch] [--json FILE] [--only NAME]
    python bench/gpu_models.py --device cpu --tiny        # the same code, to try it without a GPU

Whole training steps with Adam and random weights. The columns:

untracked     milliseconds per step. The variants take turns as in bench/trackers.py; `again`
              (the control), `MemTracker` and `torch's` are ratios of lower quartiles to it
difference    the difference in bytes between MemTracker's Total less `outside` and
              torch.cuda.memory_stats(), both as changes since entering; the largest one seen after
              each forward, backward, optimizer step and clearing of the gradients in two steps
of the peak   the same for the peaks of these two steps
peak          the most that the model, its optimizer, its batch and two steps held, by memory_stats()
              (on the CPU: by MemTracker)
fake          the same model and steps in a FakeTensorMode: how many seconds they took, and how far
              MemTracker's peak is from the real one

If a column cannot be measured, stderr says why, the other columns are still measured, and the exit
status is 1. The models need transformers and torchvision.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import modscope
from common import lower_quartile, nothing, take_turns, waiter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker as TorchMemTracker

import torch
from torch import nn

THEIRS = "torch's"
THEIR_FORWARD_SECONDS = 5  # give up after a slower forward: the whole step would take about 20 seconds
THEIR_SECONDS = 8
COLUMNS = ["model", "untracked", "again", "MemTracker", THEIRS, "difference", "of the peak", "peak"]
FAKE_COLUMNS = ["fake: seconds", "fake: error of the peak"]


# ---- the models: each function returns a model and its batch, on the default device ----


def tokens(vocabulary: int, batch: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids.clone()}


def gpt2(tiny: bool) -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100) if tiny else GPT2Config()
    return GPT2LMHeadModel(config), tokens(config.vocab_size, *((2, 16) if tiny else (8, 512)))


def bert(tiny: bool) -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForMaskedLM

    small = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=100, **small) if tiny else BertConfig()
    return BertForMaskedLM(config), tokens(config.vocab_size, *((2, 16) if tiny else (16, 256)))


def llama(tiny: bool) -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    keys = ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads"]
    size = dict(zip(keys, [64, 128, 2, 100, 2] if tiny else [2048, 8192, 16, 128256, 32], strict=True))
    kv_heads = size["num_attention_heads"] // (2 if tiny else 4)
    config = LlamaConfig(**size, num_key_value_heads=kv_heads, tie_word_embeddings=True, use_cache=False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model, tokens(config.vocab_size, *((2, 16) if tiny else (2, 1024)))


class Classifier(nn.Module):
    """An image model with its loss, called as the models of transformers are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
        return (nn.functional.cross_entropy(self.model(images), labels),)


def images(batch: int, side: int, classes: int) -> dict[str, torch.Tensor]:
    return {"images": torch.randn(batch, 3, side, side), "labels": torch.randint(0, classes, (batch,))}


def vit(tiny: bool) -> tuple[nn.Module, Any]:
    from torchvision.models import VisionTransformer, vit_b_16

    if tiny:
        small = VisionTransformer(32, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10)
        return Classifier(small), images(2, 32, 10)
    return Classifier(vit_b_16()), images(32, 224, 1000)


def resnet(tiny: bool) -> tuple[nn.Module, Any]:
    from torchvision.models import resnet18, resnet50

    if tiny:
        return Classifier(resnet18(num_classes=10)), images(2, 32, 10)
    return Classifier(resnet50()), images(64, 224, 1000)


def convnext(tiny: bool) -> tuple[nn.Module, Any]:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt, convnext_tiny

    if tiny:
        small = ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=10)
        return Classifier(small), images(2, 32, 10)
    return Classifier(convnext_tiny()), images(64, 224, 1000)


MODELS: dict[str, Callable[[bool], tuple[nn.Module, Any]]] = {
    "GPT-2, 8 by 512": gpt2,
    "BERT-base, 16 by 256": bert,
    "Llama 1B bf16, 2 by 1024": llama,
    "ViT-B/16, batch 32": vit,
    "ResNet-50, batch 64": resnet,
    "ConvNeXt-tiny, batch 64": convnext,
}


# ---- a step ----


class Training:
    """A model, its optimizer and its batch, on a device."""

    def __init__(self, make: Callable[[bool], tuple[nn.Module, Any]], tiny: bool, device: str) -> None:
        with torch.device(device):
            self.model, self.batch = make(tiny)
        self.model.train()
        # foreach is the default on CUDA, but not for fake tensors: both must run the same operators.
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=True)

    @property
    def objects(self) -> list[Any]:
        return [self.model, self.optimizer, self.batch]

    def step(self, look: Callable[[str], Any] = nothing) -> None:
        loss = self.model(**self.batch)[0]
        look("forward")
        loss.backward()
        look("backward")
        self.optimizer.step()
        look("step")
        self.optimizer.zero_grad()
        look("clearing")


def figure(snapshot: dict[Any, dict[Any, int]], device: torch.device) -> int:
    return snapshot.get(device, {}).get("Total", 0)


def own(tracker: Any, device: torch.device, kind: str) -> int:
    """The tracker's figure for what the allocator has allocated."""
    return figure(tracker.get_tracker_snapshot(kind), device) - figure(tracker.outside, device)


def clear_device(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


# ---- the columns ----


def time_steps(training: Training, device: torch.device, rounds: int, seconds: float) -> dict[str, Any]:
    tracker = modscope.MemTracker()
    tracker.track_external(*training.objects)
    trackers = {"untracked": contextlib.nullcontext(), "again": contextlib.nullcontext(), "MemTracker": tracker}
    times = take_turns(trackers, training.step, rounds=rounds, seconds=seconds, wait=waiter(device.type))
    typical = {name: lower_quartile(taken) for name, taken in times.items()}
    return {
        "untracked_ms": typical["untracked"] * 1e3,
        "again": typical["again"] / typical["untracked"],
        "tracked": typical["MemTracker"] / typical["untracked"],
        "rounds": len(times["untracked"]),
        "source": tracker.source,
        "lost": tracker.lost,
    }


class TooSlow(Exception):
    pass


def time_theirs(training: Training, device: torch.device, untracked_ms: float) -> dict[str, Any]:
    """PyTorch's own tracker: one untimed step and one timed step, or only the first if it is slow."""
    wait = waiter(device.type)
    tracker = TorchMemTracker()
    tracker.track_external(*training.objects)
    begin = time.perf_counter()

    def give_up(after: str) -> None:
        if after == "forward" and time.perf_counter() - begin > THEIR_FORWARD_SECONDS:
            raise TooSlow(f"its forward alone took {time.perf_counter() - begin:.0f} s")

    taken = 0.0
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            wait()
            begin = time.perf_counter()
            training.step(give_up)
            wait()
            taken = time.perf_counter() - begin
            if taken > THEIR_SECONDS:
                break
    return {"theirs": taken * 1e3 / untracked_ms}


def compare_with_allocator(training: Training, device: torch.device, base: int) -> dict[str, Any]:
    """Run two steps and compare the tracker's figures with those of memory_stats()."""
    tracker = modscope.MemTracker()
    tracker.track_external(*training.objects)
    cuda = device.type == "cuda"

    def allocated(which: str) -> int:
        return torch.cuda.memory_stats(device)[f"allocated_bytes.all.{which}"]

    differences: list[int] = []
    with tracker:
        own_before = own(tracker, device, "current")
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats(device)
            before = allocated("current")

        def look(after: str) -> None:
            differences.append((own(tracker, device, "current") - own_before) - (allocated("current") - before))

        for _ in range(2):
            training.step(look if cuda else nothing)
        peak = own(tracker, device, "peak")
        if not cuda:
            return {"peak": peak, "tracked_peak": peak}
        real_peak = allocated("peak")
    return {
        "difference": max(differences, key=abs),
        "peak_difference": (peak - own_before) - (real_peak - before),
        "peak": real_peak - base,
        "tracked_peak": peak,
    }


def run_fake(make: Callable[[bool], tuple[nn.Module, Any]], tiny: bool, device: torch.device) -> dict[str, Any]:
    begin = time.perf_counter()
    # trunc_normal_ reads values, which fake weights do not have.
    no_init = mock.patch.object(nn.init, "trunc_normal_", lambda tensor, *_, **__: tensor)
    with FakeTensorMode(), no_init:
        training = Training(make, tiny, str(device))
        tracker = modscope.MemTracker()
        tracker.track_external(*training.objects)
        with tracker:
            for _ in range(2):
                training.step()
            source = tracker.source
    return {
        "fake_seconds": time.perf_counter() - begin,
        "fake_peak": figure(tracker.get_tracker_snapshot("peak"), device),
        "fake_source": source,
    }


# ---- the table ----


class Row(dict[str, Any]):
    """What was measured of a model. The error of a part that fails is kept, and the other parts still run."""

    def part(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        try:
            self.update(work())
        except ImportError as error:
            self.setdefault("skipped", {})[name] = str(error)
        except TooSlow as error:
            self.setdefault("skipped", {})[name] = f"too slow: {error}"
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # the frames would keep the model alive
            frames = traceback.extract_tb(error.__traceback__)
            where = [f"{at.filename}:{at.lineno}" for at in frames if "site-packages/torch/" not in at.filename]
            self.setdefault("failed", {})[name] = f"{type(error).__name__}: {error} (from {' '.join(where[-3:])})"

    def cell(self, key: str, form: str, unit: str = "") -> str:
        return format(self[key], form) + unit if key in self else "-"

    def cells(self) -> list[str]:
        if "fake_peak" in self and self.get("peak"):
            self["fake_error"] = 100 * (self["fake_peak"] - self["peak"]) / self["peak"]
        if "peak" in self:
            self["peak_mib"] = self["peak"] / 2**20
        return [
            self["model"],
            self.cell("untracked_ms", ".1f", " ms"),
            self.cell("again", ".3f"),
            self.cell("tracked", ".3f"),
            self.cell("theirs", ".1f"),
            self.cell("difference", ",d"),
            self.cell("peak_difference", ",d"),
            self.cell("peak_mib", ",.1f", " MiB"),
            self.cell("fake_seconds", ".1f"),
            self.cell("fake_error", "+.2f", " %"),
        ]

    def show(self) -> None:
        print("| " + " | ".join(self.cells()) + " |", flush=True)
        for kind in "skipped", "failed":
            for name, why in self.get(kind, {}).items():
                print(f"{self['model']}, {name}: {kind}: {why.strip()}", file=sys.stderr)
        if self.get("lost") or self.get("source", "allocator") != "allocator":
            print(f"{self['model']}: source {self['source']}, {self['lost']} events lost", file=sys.stderr)
        sys.stderr.flush()


def measure(name: str, arguments: argparse.Namespace) -> Row:
    device, make = arguments.device, MODELS[name]
    row = Row(model=name, tiny=arguments.tiny)
    clear_device(device)
    base = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    made: list[Training] = []

    def prepare() -> dict[str, Any]:
        training = Training(make, arguments.tiny, str(device))
        for _ in range(2):  # creates the optimizer's state and the libraries' workspaces
            training.step()
        made.append(training)
        return {"parameters": sum(p.numel() for p in training.model.parameters())}

    row.part("creation", prepare)
    if made:
        row.part("exactness", lambda: compare_with_allocator(made[0], device, base))
        row.part("timing", lambda: time_steps(made[0], device, arguments.rounds, arguments.seconds))
        if arguments.torch and "untracked_ms" in row:
            row.part(THEIRS, lambda: time_theirs(made[0], device, row["untracked_ms"]))
        made.clear()
        clear_device(device)
        row.part("fake", lambda: run_fake(make, arguments.tiny, device))
    clear_device(device)
    return row


def warm_up(device: torch.device) -> None:
    """Make the matrix libraries allocate their workspaces in both threads, so that they count for no model."""
    for kind in torch.float32, torch.bfloat16:
        x = torch.randn(256, 256, device=device, dtype=kind, requires_grad=True)
        ((x @ x) + nn.functional.linear(x, x, x[0])).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description="MemTracker on real models")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=8, help="no round of a model begins after so many seconds")
    parser.add_argument(
        "--torch", action=argparse.BooleanOptionalAction, default=True, help="also time PyTorch's own tracker"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try this script")
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--json", metavar="FILE", help="also write one JSON object per model to this file")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    arguments.device = device
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # PyTorch's tracker warns about modules that were deleted
    with contextlib.suppress(ImportError):
        import transformers

        transformers.logging.set_verbosity_error()
    if device.type == "cpu":
        torch.set_num_threads(1)
    warm_up(device)

    begin = time.perf_counter()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"torch {torch.__version__}, {name}; training steps with Adam{', tiny models' if arguments.tiny else ''}\n")
    print("| " + " | ".join(COLUMNS + FAKE_COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS + FAKE_COLUMNS), flush=True)
    failed = False
    with open(arguments.json, "w") if arguments.json else contextlib.nullcontext() as lines:
        for name in MODELS:
            if arguments.only.lower() not in name.lower():
                continue
            row = measure(name, arguments)
            row.show()
            failed = failed or "failed" in row
            if lines:
                print(json.dumps(row), file=lines, flush=True)
    print(f"\n{time.perf_counter() - begin:.0f} seconds")
    sys.exit(failed)


if __name__ == "__main__":
    main()
