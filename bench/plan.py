"""Plans beside what they really give: the table of docs/measurements/fit-and-plan.md.

    python bench/plan.py JOBS.py [--only NAME ...] [--gpu h200]

Each job of JOBS.py (``JOBS``) is predicted on a virtual GPU, planned for three budgets, and predicted again with each
plan. bench/plan_gpu.py does the same on a real GPU.

- budget: what may be reserved, between what the job takes and the least that whole modules can give
- planned: what the plan says, which may keep results of operators: reserved in MiB, and the time of a step
- whole: the time of a step that a plan of whole modules says for the same budget
- got: what the job took with the plan, and how far the plan is from that"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from modscope import load
from modscope._plan.plan import make_plan
from modscope._plan.problem import PlanLimits, Problem
from modscope._plan.search import EMPTY, Search

HERE = Path(__file__).parent
MIB = 1 << 20
PARTS = (0.25, 0.55, 0.85)
"""Of what checkpointing can save: how much each budget asks for."""
USUAL = (
    "gpt2",
    "gpt2-amp",
    "gpt2-accumulate",
    "bert",
    "llama-bf16",
    "vit",
    "resnet50",
    "convnext",
    "unet-amp",
    "encoder",
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, help="jobs.py")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these jobs")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--torch", help="the version of torch whose rules are used")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    return parser.parse_args()


def predict(options: argparse.Namespace, name: str, folder: Path, plan: Path | None = None) -> dict[str, Any] | None:
    """The result of ``modscope predict``; the capture is FOLDER/NAME.msc. None, with a line, if it failed."""
    out = folder / "result.json"
    capture = folder / ("planned.msc" if plan else f"{name}.msc")
    command = [
        sys.executable,
        "-m",
        "modscope",
        "predict",
        "--gpu",
        options.gpu,
        "--steps",
        str(options.steps),
        "--seconds",
        "300",
    ]
    command += ["-q", "-f", "-o", str(capture), "--json", str(out)]
    command += ["--torch", options.torch] if options.torch else []
    command += ["--plan", str(plan)] if plan else []
    command += [str(HERE / "plan_job.py"), str(options.jobs), name, str(options.steps)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if ran.returncode or not out.exists():
        last = ran.stderr.strip().splitlines()[-1:] or [f"exit status {ran.returncode}"]
        print(f"{name} failed: {last[0]}", file=sys.stderr, flush=True)
        return None
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def rows_of(options: argparse.Namespace, name: str, folder: Path) -> list[dict[str, Any]]:
    if predict(options, name, folder) is None:
        return []
    file = folder / f"{name}.msc"
    whole_modules = PlanLimits(keeps_results=False)
    whole = Problem(load(file), "cuda:0", whole_modules)
    highest, lowest = whole.reserved(EMPTY), whole.reserved(Search(whole, False).least())
    rows = []
    for part in PARTS:
        budget = int(highest - part * (highest - lowest))
        begin = time.process_time()
        report, plan = make_plan(str(file), load(file), "cuda:0", budget)
        seconds = time.process_time() - begin
        other, _ = make_plan(str(file), load(file), "cuda:0", budget, limits=whole_modules)
        plan.write(folder / "plan.json")
        got = predict(options, name, folder, folder / "plan.json")
        if got is None:
            continue
        after = report["after"]
        rows.append(
            {
                "job": name,
                "budget": budget,
                "without": report["before"]["reserved"],
                "step_ms_without": report["before"]["step_ms"],
                "modules": len(plan.modules),
                "groups": report["groups"],
                "solver": report["solver"],
                "reserved": after["reserved"],
                "reserved_got": got["reserved_peak"],
                "reserved_error": 100 * (after["reserved"] / got["reserved_peak"] - 1),
                "over_budget": 100 * (got["reserved_peak"] / budget - 1),
                "allocated": after["allocated"],
                "allocated_got": got["allocated_peak"],
                "step_ms": after["step_ms"],
                "step_ms_whole": other["after"]["step_ms"],
                "search_seconds": seconds,
                "step_ms_got": got["step_ms"],
                "step_error": 100 * (after["step_ms"] / got["step_ms"] - 1) if got["step_ms"] else None,
            }
        )
    return rows


def as_line(row: dict[str, Any]) -> str:
    step = (
        f"{row['step_ms']:.1f} | {row['step_ms_got']:.1f} | {row['step_error']:+.1f} %"
        if row["step_error"] is not None
        else "- | - | -"
    )
    return (
        f"| {row['job']} | {row['without'] / MIB:.0f} | {row['budget'] / MIB:.0f} | {row['modules']} | "
        f"{row['reserved'] / MIB:.0f} "
        f"| {row['reserved_got'] / MIB:.0f} | {row['reserved_error']:+.2f} % | {row['over_budget']:+.2f} % "
        f"| {row['step_ms_without']:.1f} | {row['step_ms_whole']:.1f} | {step} |"
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    errors = [abs(row["reserved_error"]) for row in rows]
    times = [abs(row["step_error"]) for row in rows if row["step_error"] is not None]
    over = max(row["over_budget"] for row in rows)
    lines = [
        f"- reserved: median error {statistics.median(errors):.2f} %, worst {max(errors):.2f} %; within 2 % for "
        f"{sum(error <= 2 for error in errors)} of {len(rows)} plans",
        f"- above the budget: {over:+.2f} % at most; by more than 1 % for "
        f"{sum(row['over_budget'] > 1 for row in rows)} plans",
    ]
    added = [(row["step_ms"] - row["step_ms_without"], row["step_ms_whole"] - row["step_ms_without"]) for row in rows]
    shares = [selective / whole for selective, whole in added if whole > 0]
    slower = sum(selective > whole + 1e-6 for selective, whole in added)
    lines.append(
        f"- slower than whole modules: {slower} of {len(rows)} plans"
        + (
            f"; of the time that those add, the median plan adds {100 * statistics.median(shares):.0f} %"
            if shares
            else ""
        )
    )
    lines.append(f"- the search took {max(row['search_seconds'] for row in rows):.1f} s of processor time at most")
    if times:
        lines.append(
            f"- time of a step: median error {statistics.median(times):.1f} %, worst {max(times):.1f} %; within "
            f"10 % for {sum(error <= 10 for error in times)} of {len(times)}"
        )
    return lines


def main() -> int:
    options = parse()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="modscope-plan-") as folder:
        for name in options.only or USUAL:
            for row in rows_of(options, name, Path(folder)):
                rows.append(row)
                print(as_line(row), file=sys.stderr, flush=True)
    if not rows:
        return 1
    print(
        "| job | without | budget | modules | planned | got | error | above budget | step without, ms | whole | "
        "planned | got | error |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join([*map(as_line, rows), "", *summary(rows)]))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
