"""What captures of a GPU note: whether requests, streams and the times of calls are right, and what noting them costs.

    python bench/gpu_notes.py [--rounds 12] [--seconds 12] [--only NAME]
    python bench/gpu_notes.py --quick        # requests, streams, and the times of one model
    python bench/gpu_notes.py --replay       # only that part

requests   every allocation of a program with streams, odd sizes, convolutions and an optimizer, compared with
           torch's own trace (_record_memory_history): the bytes requested and the stream, in the same order
times      by module: the GPU's time of a forward as a capture has it, and by a pair of torch.cuda.Events in hooks,
           which slow a program down that the CPU limits
replay     a run of its own under `modscope run`, replayed with its requests and streams: what is reserved, compared
           with torch.cuda.max_memory_reserved(), and at how many events it differs; and with expandable segments,
           compared with a run that has them
cost       milliseconds per step, alternately: untracked; the control; recorded without these notes; with requests and
           streams; with times, too. Ratios of lower quartiles. A turn has 20 steps, so that the parts of steps that are
           timed are as in a long run. The last columns: bytes of the file for each event, without and with notes
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import gpu_models
import modscope
from common import lower_quartile
from modscope import _capture, _native
from modscope._read.types import calls_of

import torch
from torch import nn

FILE = os.path.join(tempfile.mkdtemp(), "x.msc")


def train(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(**batch)[0].backward()
        optimizer.step()
        optimizer.zero_grad()


def make(name: str) -> tuple[nn.Module, Any, torch.optim.Optimizer]:
    with torch.device("cuda"):
        model, batch = gpu_models.MODELS[name](False)
    model.train()
    return model, batch, torch.optim.AdamW(model.parameters())


# ---- requests and streams ----


def odd_program() -> None:
    kept = [
        torch.empty(size, dtype=torch.uint8, device="cuda")
        for size in (1, 511, 512, 513, 12345, 2**20 + 1, 3 * 2**20 + 7, 20 * 2**20 + 513)
    ]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept += [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (77, 5 * 2**20 + 3)]
        kept.append(torch.randn(100, 100, device="cuda") @ torch.randn(100, 100, device="cuda"))
    model = nn.Sequential(nn.Conv2d(3, 17, 3), nn.BatchNorm2d(17), nn.ReLU(), nn.Flatten(), nn.LazyLinear(101)).cuda()
    model(torch.randn(5, 3, 31, 31, device="cuda"))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(5, 3, 31, 31, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    kept.append(torch.randn(100003, device="cuda").sort()[0].unique())
    kept.append(torch.randn(1001, 1003, device="cuda").nonzero())
    del kept[::2]
    torch.cuda.synchronize()


def captured_requests() -> list[tuple[int, int, int]]:
    """(size of the block, bytes requested, stream) of each block of the GPU, in order."""
    capture = modscope.load(FILE)
    with open(FILE, "rb") as opened:
        notes = iter([*_capture.Reader(opened.fileno()).notes(), None])
    blocks: list[list[int]] = []
    in_slot: dict[int, int] = {}
    stream = 0
    note = next(notes)
    for event in [*capture.events("add"), None]:
        while note is not None and (event is None or note[0] <= event.number):
            _, kind, slot, value = note
            if kind == "requested" and slot in in_slot:
                blocks[in_slot[slot]][1] = value
            elif kind == "stream" and slot in in_slot:
                blocks[in_slot[slot]][2] = stream = value
            note = next(notes)
        if event is not None:
            in_slot.pop(event.slot, None)
            if event.device and event.device.startswith("cuda"):
                in_slot[event.slot] = len(blocks)
                blocks.append([event.bytes, event.bytes, stream])
    return [(block[0], block[1], block[2]) for block in blocks]


def traced_requests() -> list[tuple[int, int]]:
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    return [(entry["size"], entry["stream"]) for entry in trace if entry["action"] == "alloc"]


def check_requests(what: str, program: Callable[[], None]) -> bool:
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10**6)
    try:
        with modscope.record(FILE, overwrite=True):
            program()
        theirs = traced_requests()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    ours = captured_requests()
    ours = ours[max(0, len(ours) - len(theirs)) :]  # those that existed before come first
    print(f"\n{what}: {len(ours)} blocks in the capture, {len(theirs)} in torch's trace")
    print("  agreed, disagreed:", _native.cuda_requests(), " streams:", sorted({stream for _, _, stream in ours}))
    wrong, pairs = [], set()
    for i, ((size, requested, stream), (size_of_trace, stream_of_trace)) in enumerate(zip(ours, theirs)):
        pairs.add((stream, stream_of_trace))
        if requested != size_of_trace:
            wrong.append((i, size, requested, size_of_trace))
    one_to_one = len(pairs) == len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs})
    print(
        f"  requests that differ: {len(wrong)}; larger blocks than requests: "
        f"{sum(size > asked for size, asked, _ in ours)}; "
        f"streams one to one: {one_to_one} {sorted(pairs)}"
    )
    for i, size, requested, size_of_trace in wrong[:10]:
        print(f"    block {i}: size {size}, requested {requested} in the capture, {size_of_trace} in the trace")
    return not wrong and one_to_one and len(ours) == len(theirs)


# ---- times ----


def hooked_times(model: nn.Module, run: Callable[[int], None], steps: int) -> dict[str, float]:
    """Module to the median of the milliseconds of its forwards, by events in hooks."""
    pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {}
    handles = []
    for name, module in model.named_modules():

        def before(_m: nn.Module, _a: Any, _k: Any, name: str = name) -> None:
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pairs.setdefault(name, []).append(pair)
            pair[0].record()

        def after(_m: nn.Module, _a: Any, _k: Any, _o: Any, name: str = name) -> None:
            pairs[name][-1][1].record()

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    run(steps)
    torch.cuda.synchronize()
    for handle in handles:
        handle.remove()
    return {name: statistics.median(begin.elapsed_time(end) for begin, end in of) for name, of in pairs.items()}


def captured_times(steps: int) -> tuple[dict[str, float], int]:
    capture = modscope.load(FILE)
    times: dict[str, list[int]] = {}
    for call in calls_of(capture.whole_stream(), 0):
        times.setdefault(capture.module_names[call.path], []).append(call.gpu_nanoseconds)
    return {name: statistics.median(of) / 1e6 for name, of in times.items()}, sum(len(of) for of in times.values())


def check_times(name: str) -> None:
    model, batch, optimizer = make(name)

    def run(steps: int) -> None:
        train(model, batch, optimizer, steps)

    run(3)
    torch.cuda.synchronize()
    before = hooked_times(model, run, 4)
    with modscope.record(FILE, overwrite=True):
        run(6)
        torch.cuda.synchronize()
    print(f"\n{name}: cuda_times (why not, timed, missed, pairs of events):", _native.cuda_times())
    ours, count = captured_times(6)
    after = hooked_times(model, run, 4)
    root = type(model).__name__
    rows = []
    for module, time_of_hooks in before.items():
        mine = ours.get(f"{root}.{module}" if module else root)
        if mine is not None:
            rows.append((module or root, mine, time_of_hooks, after[module]))
    print(f"  {count} calls; milliseconds of a forward: in the capture, by hooks before, by hooks after")
    for module, mine, first, second in sorted(rows, key=lambda row: -row[1])[:14]:
        print(f"    {module:45} {mine:9.3f} {first:9.3f} {second:9.3f}")
    large = [mine / min(first, second) - 1 for _, mine, first, second in rows if min(first, second) > 0.05]
    print(
        f"  modules of more than 0.05 ms: {len(large)}; median difference "
        f"{100 * statistics.median(map(abs, large)):.2f} %, largest {100 * max(large, key=abs):.2f} %; "
        f"not in the capture: {len(before) - len(rows)}; without a time: {sum(not mine for _, mine, _, _ in rows)}"
    )
    modscope_times(name)


def modscope_times(name: str) -> None:
    from modscope._fit.job import Job

    job = Job(FILE)
    roots = [call.seconds for call in job.calls if call.parent is None]
    print(
        f"  fit: has_gpu_times {job.has_gpu_times}; forward {1e3 * statistics.median(roots):.2f} ms of a step of "
        f"{1e3 * job.step_time.total:.2f} ms; "
        f"checkpointing everything "
        f"+{100 * (job.share_of_step([call for call in job.calls if call.parent is None]) or 0):.1f} %; steps "
        f"{len(job.steps)}"
    )


# ---- replay ----


def run_child(name: str) -> None:
    model, batch, optimizer = make(name)
    train(model, batch, optimizer, 4)
    torch.cuda.synchronize()
    print("reserved", torch.cuda.max_memory_reserved())


def start_child(name: str, command: list[str], conf: str = "") -> int:
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf, "PYTORCH_ALLOC_CONF": conf} if conf else None
    ran = subprocess.run([*command, __file__, "--child", name], capture_output=True, text=True, env=environment)
    words = [line.split() for line in ran.stdout.splitlines()]
    found = [int(line[1]) for line in words if len(line) == 2 and line[0] == "reserved"]
    if not found:
        raise RuntimeError(f"the run of {name} failed: {ran.stderr[-2000:]}")
    return found[0]


def check_replay(name: str) -> bool:
    from modscope._fit.job import Job

    expandable = "expandable_segments:True"
    real = start_child(name, [sys.executable, "-m", "modscope", "run", "--force", "-o", FILE])
    other = start_child(name, [sys.executable], expandable)
    job = Job(FILE)
    result = job.stream.replay(job.number, None, version=job.version)
    predicted = job.replay(conf=expandable).reserved
    print(
        f"{name:28} reserved {real / 2**20:10.1f} MiB, replayed {result['reserved_peak'] / 2**20:10.1f} MiB, "
        f"events that differ {result['disagreements']} of {job.stream.events};  "
        f"expandable {other / 2**20:10.1f} MiB, replayed {predicted / 2**20:10.1f} MiB "
        f"({100 * (predicted / other - 1):+.2f} %)",
        flush=True,
    )
    return result["reserved_peak"] == real


# ---- cost ----


@contextlib.contextmanager
def recording(requests: bool, times: bool) -> Iterator[None]:
    _native.set_cuda_requests(requests)
    _native.set_cuda_times(times)
    with modscope.record(FILE, overwrite=True):
        yield
    _native.set_cuda_requests(True)
    _native.set_cuda_times(True)


def measure_cost(name: str, rounds: int, seconds: float) -> None:
    model, batch, optimizer = make(name)
    variants: dict[str, Callable[[], Any]] = {
        "untracked": contextlib.nullcontext,
        "again": contextlib.nullcontext,
        "recorded": lambda: recording(False, False),
        "requests": lambda: recording(True, False),
        "and times": lambda: recording(True, True),
    }
    found: dict[str, list[float]] = {key: [] for key in variants}
    per_event: dict[str, float] = {}
    train(model, batch, optimizer, 3)
    until = time.perf_counter() + seconds
    keys = list(variants)
    for turn in range(rounds):
        for key in keys if turn % 2 == 0 else reversed(keys):
            with variants[key]():
                train(model, batch, optimizer, 1)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                train(model, batch, optimizer, 20)
                torch.cuda.synchronize()
                found[key].append((time.perf_counter() - begin) / 20)
            if key not in ("untracked", "again") and key not in per_event:
                per_event[key] = os.path.getsize(FILE) / modscope.load(FILE).event_count
        if time.perf_counter() > until and turn >= 2:
            break
    base = lower_quartile(found["untracked"])
    ratios = "  ".join(f"{key} {lower_quartile(found[key]) / base:.4f}" for key in keys[1:])
    sizes = "  ".join(f"{key} {value:.2f}" for key, value in per_event.items())
    print(f"{name:28} {1e3 * base:8.2f} ms  {ratios}   bytes/event: {sizes}  (turns {len(found['again'])})", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=12.0, help="for each model's cost")
    parser.add_argument("--only", help="a part of a model's name")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a GPU that torch can use", file=sys.stderr)
        return 1
    if arguments.child:
        run_child(arguments.child)
        return 0
    print("torch", torch.__version__, torch.cuda.get_device_name())
    names = [name for name in gpu_models.MODELS if not arguments.only or arguments.only in name]
    if arguments.replay:
        outcomes = [check_replay(name) for name in names]
        return 0 if all(outcomes) else 1
    right = check_requests("odd sizes and streams", odd_program)
    for name in names[:1] if arguments.quick else names:
        model, batch, optimizer = make(name)
        right &= check_requests(name, functools.partial(train, model, batch, optimizer, 2))
        del model, batch, optimizer
        torch.cuda.empty_cache()
        check_times(name)
        torch.cuda.empty_cache()
    if not arguments.quick:
        print("\ncost: ratios to the untracked step")
        for name in names:
            measure_cost(name, arguments.rounds, arguments.seconds)
            torch.cuda.empty_cache()
    print("\nrequests and streams are right" if right else "\nSOMETHING DIFFERS: see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
