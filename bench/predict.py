"""Predictions beside what training jobs really took on a GPU: the table of docs/measurements/predictions.md.

    python bench/predict.py JOBS.py [--own-tables] [--table FILE] [--only NAME ...]

JOBS.py lists the jobs (``JOBS``); truth.json beside it has what each took, and h200/NAME.ops.json its operators. Each
job runs in a process of its own, two side by side.

allocated, reserved   the peaks in MiB as predicted, and how far they are from the real ones step
milliseconds of a step as predicted and as measured (the larger of wall and kernel time counts) seconds
what the prediction took, without imports, and how much of that on the processor verdict               whether the job
fits each known GPU, by reserved memory; wrong only where the real peak is more than
                      3 % away from what the GPU has
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from modscope._virtual.gpus import GPUS

HERE = Path(__file__).parent
MIB = 1 << 20
MARGIN = 0.03


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, help="jobs.py, with truth.json beside it")
    parser.add_argument("--own-tables", action="store_true", help="take workspaces from each job's own measurements")
    parser.add_argument("--table", help="a table that modscope calibrate wrote")
    parser.add_argument("--torch", default="2.11", help="the version of torch whose rules are used")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these jobs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    return parser.parse_args()


def predict(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """The figures of one job, or None if it could not be predicted."""
    command = [sys.executable, str(HERE / "predict_job.py"), str(options.jobs), name, "--torch", options.torch]
    if options.own_tables:
        own = options.jobs.parent / "h200" / f"{name}.ops.json"
        if not own.exists():
            print(f"{name} is skipped: there is no {own.name}", file=sys.stderr, flush=True)
            return None
        command += ["--own-table", str(own)]
    if options.table:
        command += ["--table", options.table]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or [f"exit status {ran.returncode}"]
        print(f"{name} failed: {last[0]}", file=sys.stderr, flush=True)
        return None
    result: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    print(f"{name} {result['seconds']:.1f} s", file=sys.stderr, flush=True)
    return result


# ---- the table ----


def error(predicted: float, real: float) -> float:
    return 100 * (predicted / real - 1)


def wrong_verdicts(predicted: int, real: int) -> list[str]:
    """The GPUs of which it is said wrongly that the job fits or does not."""
    return [
        gpu.name
        for gpu in GPUS.values()
        if abs(real / gpu.capacity - 1) > MARGIN and (predicted <= gpu.capacity) != (real <= gpu.capacity)
    ]


def row(name: str, result: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    real_step = truth.get("step_ms")
    return {
        "job": name,
        "allocated": result["allocated_peak"],
        "allocated_real": truth["allocated_peak"],
        "allocated_error": error(result["allocated_peak"], truth["allocated_peak"]),
        "reserved": result["reserved_peak"],
        "reserved_real": truth["reserved_peak"],
        "reserved_error": error(result["reserved_peak"], truth["reserved_peak"]),
        "step_ms": result["step_ms"] or None,
        "step_ms_real": real_step,
        "step_ratio": result["step_ms"] / real_step if result["step_ms"] and real_step else None,
        "margin": result["margin"],
        "seconds": result["seconds"],
        "cpu_seconds": result["cpu_seconds"],
        "wrong": wrong_verdicts(result["reserved_peak"], truth["reserved_peak"]),
    }


def as_line(row: dict[str, Any]) -> str:
    step = (
        f"{row['step_ms']:.1f} | {row['step_ms_real']:.1f} | {row['step_ratio']:.2f}"
        if row["step_ratio"]
        else f"- | {row['step_ms_real'] or '-'} | -"
    )
    return (
        f"| {row['job']} | {row['allocated'] / MIB:.1f} | {row['allocated_real'] / MIB:.1f} | "
        f"{row['allocated_error']:+.3f} % "
        f"| {row['reserved'] / MIB:.0f} | {row['reserved_real'] / MIB:.0f} | {row['reserved_error']:+.3f} % | {step} "
        f"| {row['seconds']:.1f} ({row['cpu_seconds']:.1f}) "
        f"| {', '.join(row['wrong']) or 'right'} |"
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for what in ("allocated", "reserved"):
        errors = sorted(abs(row[f"{what}_error"]) for row in rows)
        exact = sum(row[what] == row[f"{what}_real"] for row in rows)
        within = sum(error <= 1 for error in errors)
        lines.append(
            f"- {what} peak: median error {statistics.median(errors):.3f} %, worst {errors[-1]:.2f} %; exact for "
            f"{exact} of "
            f"{len(rows)} jobs, within 1 % for {within}"
        )
    ratios = [max(row["step_ratio"], 1 / row["step_ratio"]) for row in rows if row["step_ratio"]]
    if ratios:
        near = sum(ratio <= 1.25 for ratio in ratios)
        lines.append(
            f"- time a step: within 25 % for {near} of {len(ratios)} jobs, at worst wrong by a factor of "
            f"{max(ratios):.2f}"
        )
    within = sum(abs(row["reserved"] - row["reserved_real"]) <= row["margin"] for row in rows)
    lines.append(f"- reserved peak: off by no more than a verdict takes it to be for {within} of {len(rows)} jobs")
    seconds = [row["seconds"] for row in rows]
    lines.append(f"- seconds to predict: median {statistics.median(seconds):.1f}, worst {max(seconds):.1f}")
    lines.append(
        f"- verdicts on {len(GPUS)} GPUs: {sum(len(row['wrong']) for row in rows)} wrong of {len(GPUS) * len(rows)}"
    )
    return lines


def main() -> int:
    options = parse()
    truth = json.loads((options.jobs.parent / "truth.json").read_text())
    names = [name for name in truth if options.only is None or name in options.only]
    unknown = set(options.only or ()) - set(truth)
    if unknown or not names:
        print(f"truth.json has no job {', '.join(sorted(unknown))}: it has {', '.join(truth)}", file=sys.stderr)
        return 2
    print(
        "| job | allocated MiB | real | error | reserved MiB | real | error | step ms | real | ratio | seconds | "
        "verdicts |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    with ThreadPoolExecutor(options.processes) as pool:
        for name, result in zip(names, pool.map(lambda name: predict(name, options), names), strict=True):
            if result:
                rows.append(row(name, result, truth[name]))
                print(as_line(rows[-1]), flush=True)
    if rows:
        print("\n" + "\n".join(summary(rows)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if len(rows) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
