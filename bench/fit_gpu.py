"""Levers of modscope fit beside real runs with the lever applied, on this machine's GPU: a table of
docs/measurements/fit-and-plan.md.

    python bench/fit_gpu.py JOBS.py [--only NAME ...] [--keep FOLDER] [--json OUT]

Each job of JOBS.py (``JOBS``) is recorded as it is, and run with one thing changed:

expandable   PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
checkpoint   transformers' gradient checkpointing of every block
cpu          torch.autograd.graph.save_on_cpu(pin_memory=True)
x2, x4       twice and four times the larger batch of two captures, which have a quarter and half of the job's batch

Every run is a process of its own, several at a time: only reserved bytes are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modscope
from modscope._fit.job import Job
from modscope._fit.levers import checkpoints, host_memory, settings
from modscope._fit.levers.registry import Case, Lever, combine
from modscope._fit.two_captures import Batches
from modscope._virtual.gpus import find_gpu
from plan_gpu import Figures, finish, load_jobs, start

import torch

AT_A_TIME = 12
VARIANTS = ("base", "expandable", "checkpoint", "cpu", "quarter", "half", "double")
PARTS = {"quarter": 0.25, "half": 0.5, "double": 2.0}


def scaled(batch: dict[str, torch.Tensor], part: float) -> dict[str, torch.Tensor]:
    return {
        key: value[: int(value.shape[0] * part)].clone()
        if part < 1
        else value.repeat(int(part), *[1] * (value.dim() - 1))
        for key, value in batch.items()
    }


def run(make_job: Callable[[], Any], variant: str, file: str) -> Figures:
    if variant == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    job = make_job()
    with modscope.record(file):
        with torch.device("cuda"):
            model = job.make()
        optimizer, batch = job.optimizer(model), scaled(job.batch("cuda"), PARTS.get(variant, 1.0))
        if variant == "checkpoint":
            if not getattr(model, "supports_gradient_checkpointing", False):
                return {"error": "it has no gradient checkpointing"}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for _ in range(3):
            with torch.autograd.graph.save_on_cpu(pin_memory=True) if variant == "cpu" else contextlib.nullcontext():
                job.step(model, optimizer, batch)
    stats = torch.cuda.memory_stats()
    return {"reserved": stats["reserved_bytes.all.peak"], "allocated": stats["allocated_bytes.all.peak"]}


def run_all(jobs: dict[str, Any], names: list[str], folder: str) -> dict[tuple[str, str], Figures]:
    waiting = [(name, variant) for variant in VARIANTS for name in names]
    running: list[tuple[tuple[str, str], tuple[int, int]]] = []
    results = {}
    while waiting or running:
        while waiting and len(running) < AT_A_TIME:
            key = waiting.pop(0)
            running.append((key, start(run, jobs[key[0]], key[1], f"{folder}/{key[0]}.{key[1]}.msc")))
        key, started = running.pop(0)
        results[key] = finish(started)
    return results


def levers_of(job: Job) -> dict[str, Lever]:
    gpu = find_gpu("h200")
    case = Case(job, gpu, gpu.capacity, job.replay())
    every = checkpoints.checkpoint_all(case)
    found = {
        "expandable": [lever for lever in settings.allocator(case) if lever.conf.startswith("expandable")],
        "cpu": host_memory.saved_tensors(case),
        # transformers checkpoints groups in groups too, which is no lever
        "checkpoint": [combine(*every)] if every and len(every) == len(case.groups) else [],
    }
    return {name: levers[0] for name, levers in found.items() if levers}


def compare(name: str, folder: str, results: dict[tuple[str, str], Figures]) -> dict[str, float]:
    """By lever: the error of the reserved peak in percent."""

    def error(found: int, variant: str) -> float:
        return float(100 * (found / results[name, variant]["reserved"] - 1))

    def has(*variants: str) -> bool:
        return all("reserved" in results[name, variant] for variant in variants)

    errors = {}
    if has("base"):
        job = Job(f"{folder}/{name}.base.msc")
        errors["nothing"] = error(job.replay().reserved, "base")
        for variant, lever in levers_of(job).items():
            if has(variant):
                errors[variant] = error(job.replay(lever.edits, lever.conf).reserved, variant)
    if has("quarter", "half"):
        batches = Batches(Job(f"{folder}/{name}.quarter.msc"), Job(f"{folder}/{name}.half.msc"))
        for times, variant in ((2, "base"), (4, "double")):
            if has(variant):
                errors[f"x{times}"] = error(batches.replay(times * batches.large_size).reserved, variant)
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, help="jobs.py")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these jobs")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the captures and results.json in this folder")
    parser.add_argument("--json", type=Path, help="write the errors to this file too")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    jobs = load_jobs(options.jobs)
    names = options.only or list(jobs)
    for name in names:
        jobs[name]()  # imports what it needs, once
    with (
        tempfile.TemporaryDirectory(prefix="modscope-fit-")
        if not options.keep
        else contextlib.nullcontext(options.keep) as folder
    ):
        os.makedirs(folder, exist_ok=True)
        results = run_all(jobs, names, folder)
        if options.keep:
            Path(folder, "results.json").write_text(
                json.dumps({".".join(key): value for key, value in results.items()}, indent=1)
            )
        table = {name: compare(name, folder, results) for name in names}
    columns = ("nothing", "expandable", "checkpoint", "cpu", "x2", "x4")
    print("| job | " + " | ".join(columns) + " |\n|---" + "|---" * len(columns) + "|")
    for name, errors in table.items():
        print(
            f"| {name} | "
            + " | ".join(f"{errors[column]:+.2f} %" if column in errors else "" for column in columns)
            + " |"
        )
    for column in columns:
        values = [abs(errors[column]) for errors in table.values() if column in errors]
        if values:
            print(
                f"- {column}: exact for {sum(value == 0 for value in values)} of {len(values)}, median "
                f"{statistics.median(values):.2f} %, worst {max(values):.2f} %"
            )
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
