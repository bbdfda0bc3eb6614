"""Levers of modscope fit against real runs with the lever applied, and against predictions with the lever applied.

    python bench/fit.py truth FOLDER            captures h200/*.msc, variants.json and truth.json of the folder
    python bench/fit.py predicted [NAME ...]    predict small jobs with and without the lever, and compare
    python bench/fit.py sharded [KIND ...]      the levers of FSDP2, on a model of 0.4 billion parameters and on small
                                                ones of other shapes

The first needs captures of a GPU beside the figures of the same jobs with one thing changed. The others need torch
without CUDA. All print a table of errors, and exit with 1 if an error is above the limit."""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fit_jobs import JOBS, Figures, predict  # noqa: E402
from modscope._fit.job import Job, Outcome  # noqa: E402
from modscope._fit.levers import checkpoints, host_memory, optimizer, settings  # noqa: E402
from modscope._fit.levers.registry import Case, Lever, combine  # noqa: E402
from modscope._fit.two_captures import Batches  # noqa: E402
from modscope._virtual.gpus import find_gpu  # noqa: E402

_LIMIT = 0.15  # the worst error that is accepted: products may take other workspaces with another batch
Row = tuple[str, str, int, int, str]


def _print(rows: list[Row]) -> int:
    print(f"{'job':26} {'lever':14} {'fit':>10} {'real':>10} {'error':>8}  time")
    errors: dict[str, list[float]] = {}
    for job, lever, found, real, time in rows:
        error = found / real - 1
        errors.setdefault(lever, []).append(abs(error))
        print(f"{job:26} {lever:14} {found / 2**20:10.0f} {real / 2**20:10.0f} {100 * error:+7.2f}%  {time}")
    for lever, values in errors.items():
        print(
            f"{lever}: median {100 * statistics.median(values):.2f} %, worst {100 * max(values):.2f} % of {len(values)}"
        )
    return int(any(max(values) > _LIMIT for values in errors.values()))


def _named(job: Job) -> dict[str, Lever]:
    gpu = find_gpu("h200")
    case = Case(job, gpu, gpu.capacity, job.replay())
    found = {
        "expandable": [lever for lever in settings.allocator(case) if lever.conf.startswith("expandable")],
        "fused": optimizer.fused(case),
        "single": optimizer.single_tensor(case),
        "zero_grad": optimizer.zero_grad(case),
        "save_on_cpu": host_memory.saved_tensors(case),
    }
    named = {name: levers[0] for name, levers in found.items() if levers}
    every = checkpoints.checkpoint_all(case)
    # transformers checkpoints the groups in groups too, which is no lever
    return {**named, "checkpoint": combine(*every)} if every and len(every) == len(case.groups) else named


def _truth(folder: pathlib.Path) -> list[Row]:
    variants = json.loads((folder / "variants.json").read_text())
    rows: list[Row] = []
    for name, real in variants.items():
        job = Job(str(folder / "h200" / f"{name}.msc"))
        named = _named(job)
        for key in ("expandable", "checkpoint", "fused", "single"):
            if key not in real or key not in named:
                continue
            lever = named[key]
            time = ""
            if key == "checkpoint":
                time = (
                    f"{lever.cost}, really {100 * (real[key]['step_ms'] / real['base']['step_ms'] - 1):+.0f} "
                    f"%: {lever.name}"
                )
            rows.append((name, key, job.replay(lever.edits, lever.conf).reserved, real[key]["reserved_peak"], time))
    return sorted(rows, key=lambda row: row[1])


def _predicted(names: list[str]) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
        for name in names or list(JOBS):
            rows += _of_job(name, pathlib.Path(folder))
    return sorted(rows, key=lambda row: row[1])


def _of_job(name: str, folder: pathlib.Path) -> list[Row]:
    def real(lever: str, scale: float = 1.0) -> tuple[pathlib.Path, Figures]:
        path = folder / f"{name}-{lever}-{scale}.msc"
        return path, predict(name, path, lever, scale)

    base, figures = real("")
    job = Job(str(base))
    rows: list[Row] = [(name, "nothing", job.replay().reserved, figures.reserved, "")]
    for key, lever in _named(job).items():
        if key in ("zero_grad", "single"):
            continue
        _, with_lever = real(key)
        outcome: Outcome = job.replay(lever.edits, lever.conf)
        time = ""
        if figures.step and with_lever.step:
            time = f"{lever.cost}, predicted {100 * (with_lever.step / figures.step - 1):+.0f} %"
        rows.append((name, key, outcome.reserved, with_lever.reserved, time))
    keeping, _ = real("keep_gradients")
    kept = Job(str(keeping))
    rows.append((name, "zero_grad", kept.replay([("zero_grad",)]).reserved, figures.reserved, ""))
    small, large = real("", 0.25)[0], real("", 0.5)[0]
    batches = Batches(Job(str(small)), Job(str(large)))
    ratio = batches.large_size
    for times, scale in ((2, 1.0), (4, 2.0)):
        expected = figures if scale == 1.0 else real("", scale)[1]
        found = batches.large.replay(batches.edits(times * ratio)).reserved
        rows.append((name, f"batch * {times}", found, expected.reserved, ""))
    return rows


if __name__ == "__main__":
    kind, *rest = sys.argv[1:] or ["predicted"]
    if kind == "sharded":
        import fit_sharding

        sys.exit(fit_sharding.main(rest, _LIMIT))
    sys.exit(_print(_truth(pathlib.Path(rest[0])) if kind == "truth" else _predicted(rest)))
