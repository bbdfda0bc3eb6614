"""Predict one job of a job list on a virtual GPU, in this process, and print the figures as JSON (bench/predict.py starts it)."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import sys
import time
import warnings
from typing import Any

from modscope._virtual import operators, table
from modscope._virtual.device import VirtualDevice
from modscope._virtual.gpus import find_gpu

STEPS = 3


class TableOnly(operators.Rules):
    """The memory beside results as a job's own table has it."""

    def __init__(self, of: table.Table) -> None:
        self._table = of

    def events(self, op: Any, args: Any, kwargs: Any, specs: Any) -> Any:
        found = self._table.find(op, args, kwargs)
        return found.events if found is not None else None


def load_jobs(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("jobs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
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
    parser.add_argument("--log", help="write the blocks' events to this file")
    return parser.parse_args()


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    own = table.from_truth(options.own_table) if options.own_table else None
    device = VirtualDevice(find_gpu(options.gpu), options.torch, **({"table": table.load(options.table)} if options.table else {}))
    device.install()
    log: list[tuple[int, int]] = []
    rules_before = operators.rules
    if own is not None:
        operators.rules = TableOnly(own)
    if options.log:
        log_blocks(log)
    began, step_seconds = time.perf_counter(), None
    job = load_jobs(options.jobs)[options.name]()
    imported = time.perf_counter()
    try:
        with torch.device("cuda"):
            model = job.make()
        optimizer, batch = job.optimizer(model), job.batch("cuda")
        for step in range(STEPS):
            if own is not None:
                own.begin_step(step)
            before = clock(device)
            job.step(model, optimizer, batch)
            step_seconds = clock(device) - before
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    result = {
        "allocated_peak": torch.cuda.max_memory_allocated(),
        "reserved_peak": torch.cuda.max_memory_reserved(),
        "step_ms": step_seconds * 1000 if step_seconds else None,
        "fits": fits,
        "seconds": time.perf_counter() - imported,
        "import_seconds": imported - began,
    }
    if options.log:
        with open(options.log, "w") as file:
            json.dump(log, file)
    model = optimizer = batch = None
    operators.rules = rules_before
    device.remove()
    return result


def clock(device: Any) -> float:
    """The virtual device's time in seconds; 0 where it has no clock."""
    now = getattr(device, "now", None)
    return float(now()) if callable(now) else 0.0


def log_blocks(log: list[tuple[int, int]]) -> None:
    """Note the requested bytes of every block that operators make."""
    from modscope import _native

    empty, take = _native.virtual_empty, _native.virtual_take

    def noted_empty(size: Any, strides: Any, dtype: Any, item_size: int) -> Any:
        tensor = empty(size, strides, dtype, item_size)
        if tensor is not None:
            log.append((tensor.untyped_storage().nbytes(), 0))
        return tensor

    def noted_take(bytes: int) -> Any:
        log.append((bytes, 1))
        return take(bytes)

    _native.virtual_empty, _native.virtual_take = noted_empty, noted_take


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print(json.dumps(run(parse())))
