"""Predict one job of a job list on a virtual GPU, in this process, and print the figures as JSON (bench/predict.py
starts it)."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import sys
import time
import warnings
from typing import Any

from modscope._virtual import certainty
from modscope._virtual.device.device import VirtualDevice
from modscope._virtual.gpus import find_gpu
from modscope._virtual.operators import operators
from modscope._virtual.time import table, times

STEPS = 3


def load_jobs(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("jobs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules["jobs"] = module
    spec.loader.exec_module(module)
    return module.JOBS


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", help="jobs.py")
    parser.add_argument("name")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--torch", default="2.11")
    parser.add_argument("--table", help="a table that modscope calibrate wrote")
    parser.add_argument("--own-table", help="the job's own operators, as ops.json has them")
    parser.add_argument(
        "--log", help="write the bytes and operators of all blocks to this file, in the order of their allocation"
    )
    return parser.parse_args()


def own_table(path: str) -> table.JobTable:
    """The table of a job's operators, with the sizes that the trace beside it has."""
    import numpy

    trace = numpy.load(path.removesuffix(".ops.json") + ".npz")
    return table.from_truth(
        path, [int(bytes) for kind, bytes in zip(trace["kind"], trace["size"], strict=True) if kind == 0]
    )


def predict(job: Any, own: table.JobTable | None) -> tuple[bool, float]:
    """Run the job's steps: whether it fits, and the predicted seconds of the last step."""
    import torch

    seconds = 0.0
    try:
        with torch.device("cuda"):
            model = job.make()
        optimizer, batch = job.optimizer(model), job.batch("cuda")
        for step in range(STEPS):
            if own is not None:
                own.begin_step(step)
            before = clock()
            job.step(model, optimizer, batch)
            seconds = clock() - before
    except torch.OutOfMemoryError:
        return False, seconds
    return True, seconds


def clock() -> float:
    """The virtual device's time when everything that was launched has ended."""
    import torch

    torch.cuda.synchronize()
    return float(times.now())


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    own = own_table(options.own_table) if options.own_table else None
    measured = own if own is not None else table.load(options.table) if options.table else None
    device = VirtualDevice(find_gpu(options.gpu), options.torch, table=measured)
    device.install()
    blocks: list[tuple[int, str]] = []
    if options.log:
        log_blocks(blocks)
    job = load_jobs(options.jobs)[options.name]()
    began, began_cpu = time.perf_counter(), time.process_time()
    fits, step_seconds = predict(job, own)
    reserved = torch.cuda.max_memory_reserved()
    result = {
        "margin": certainty.margin_of(certainty.relevant(find_gpu(options.gpu), doubts()), reserved),
        "allocated_peak": torch.cuda.max_memory_allocated(),
        "reserved_peak": reserved,
        "step_ms": step_seconds * 1000,
        "fits": fits,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - began_cpu,
    }
    if own is not None:
        result["unused"] = sorted(own.unused())
    if options.log:
        with open(options.log, "w", encoding="utf-8") as file:
            json.dump(blocks, file)
    device.remove()
    return result


def doubts() -> dict[str, int]:
    """By kind, by how much the peak of what is allocated may be higher."""
    from modscope import _native

    import torch

    highest = torch.cuda.max_memory_allocated()
    return {kind: max(peak - highest, 0) for kind, peak in zip(certainty.DOUBTS, _native.virtual_doubts(0)) if peak}


def log_blocks(blocks: list[tuple[int, str]]) -> None:
    """Note the requested bytes of every block that operators make, and the operator."""
    from modscope import _native

    empty, take, call = _native.virtual_empty, _native.virtual_take, operators._call
    current = ""

    def noted_call(plan: Any, op: Any, args: Any, kwargs: Any) -> Any:
        nonlocal current
        current = str(op)
        return call(plan, op, args, kwargs)

    advance = operators.costs.advance

    def noted_advance(seconds: float) -> None:
        nonlocal current
        current = f"after {current}"
        advance(seconds)

    def noted_empty(sizes: Any, strides: Any, dtype: Any, item_size: int) -> Any:
        if 0 not in sizes:  # the tensor's storage is not asked: a reference to it keeps autograd from adding in place
            last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
            blocks.append(((last + 1) * item_size, current))
        return empty(sizes, strides, dtype, item_size)

    def noted_take(bytes: int, source: int = 0) -> Any:
        blocks.append((bytes, f"{current} workspace"))
        return take(bytes, source)

    _native.virtual_empty, _native.virtual_take, operators._call = noted_empty, noted_take, noted_call
    operators.costs.advance = noted_advance


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print(json.dumps(run(parse())))
