"""Plans of captures of a GPU, beside runs on that GPU with the plan applied: a table of
docs/measurements/fit-and-plan.md.

    python bench/plan_gpu.py JOBS.py [--only NAME ...] [--json OUT]

Each job of JOBS.py (``JOBS``) is recorded on this machine's GPU, planned for three budgets, and run with each plan. Two
of the budgets are what the job reserves with two usual ways of checkpointing, so that a plan can be compared with each:

all        every member of the outermost groups of equal siblings, such as GPT2.h.* second     every second one of them

PyTorch's own planner (sac_ilp) is given the budgets too, where it can be imported; it fails on most models. What it
chooses is checkpointed as a whole, because fractions of a module cannot be applied to a program.

Every run is a process of its own, forked before CUDA is initialized: reserved bytes are those of a fresh process. Times
are the lower quartile of twenty steps, and nothing else runs on the GPU meanwhile."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modscope
from modscope import load
from modscope._fit.job import Job
from modscope._fit.siblings import find_siblings, outermost
from modscope._plan.file import plan_of
from modscope._plan.plan import make_plan

import torch

MIB = 1 << 20
USUAL = (
    "gpt2",
    "gpt2-amp",
    "gpt2-accumulate",
    "bert",
    "llama-bf16",
    "qwen2-bf16",
    "vit",
    "vit-amp",
    "convnext",
    "whisper",
    "encoder",
    "unet-amp",
)
WARM_UP, TIMED = 3, 20
SAC_SECONDS = 60
"""After which PyTorch's planner is given up."""
Figures = dict[str, Any]


def start(work: Callable[..., Figures], *arguments: Any) -> tuple[int, int]:
    """Begin ``work`` in a forked process, for ``finish``."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = work(*arguments)
        except BaseException as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"[:200]}
        with os.fdopen(send, "w") as file:
            json.dump(result, file)
        os._exit(0)
    os.close(send)
    return child, receive


def finish(started: tuple[int, int]) -> Figures:
    """The result of the work; {"error": text} if it failed."""
    child, receive = started
    with os.fdopen(receive) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process died"}


def in_child(work: Callable[..., Figures], *arguments: Any) -> Figures:
    return finish(start(work, *arguments))


def load_jobs(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("jobs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["jobs"] = module
    spec.loader.exec_module(module)
    return module.JOBS


def record(make_job: Callable[[], Any], file: str) -> Figures:
    job = make_job()
    with modscope.record(file):
        with torch.device("cuda"):
            model = job.make()
        optimizer, batch = job.optimizer(model), job.batch("cuda")
        for _ in range(WARM_UP):
            job.step(model, optimizer, batch)
    return {"reserved": torch.cuda.memory_stats()["reserved_bytes.all.peak"]}


def measure(make_job: Callable[[], Any], modules: list[str]) -> Figures:
    job = make_job()
    with torch.device("cuda"):
        model = job.make()
    optimizer, batch = job.optimizer(model), job.batch("cuda")
    if modules:
        modscope.apply(plan_of(modules), model)
    seconds = []
    for _ in range(WARM_UP + TIMED):
        torch.cuda.synchronize()
        began = time.perf_counter()
        job.step(model, optimizer, batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    stats = torch.cuda.memory_stats()
    quartile = statistics.quantiles(seconds[WARM_UP:], n=4)[0]
    return {
        "reserved": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "step_ms": 1e3 * quartile,
    }


def usual_ways(file: str) -> dict[str, list[str]]:
    """Modules to checkpoint: all members of the outermost groups of siblings, and every second one."""
    job = Job(file)
    names = [name for group in outermost(find_siblings(job, job.replay().reserved)) for name, _ in group.members]
    return {"all": names, "second": names[::2]} if names else {}


def plan(file: str, budget: int, use_highs: bool) -> Figures:
    report, found = make_plan(file, load(file), "cuda:0", budget, use_highs=use_highs)
    after, before = report["after"], report["before"]
    return {
        "modules": found.modules,
        "groups": report["groups"],
        **after,
        "step_ms_before": before["step_ms"],
        "solver": report["solver"],
    }


def sac_ilp(make_job: Callable[[], Any], budgets: list[int]) -> Figures:
    """By budget: the modules that PyTorch's planner checkpoints in part or as a whole."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator
    from torch.distributed._tools.sac_estimator import SACEstimator
    from torch.distributed._tools.sac_ilp import sac_milp

    signal.alarm(SAC_SECONDS)
    job = make_job()
    with FakeTensorMode():
        with torch.device("cuda"):
            model = job.make()
        optimizer, batch = job.optimizer(model), job.batch("cuda")
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                job.step(model, optimizer, batch)
                if step == 0:
                    tracker.reset_mod_stats()
        times, operators = RuntimeEstimator(), SACEstimator()
        for estimator in (times, operators):
            with estimator("operator-level-cost-model"):
                job.step(model, optimizer, batch)
        info = aggregate_stats(model, tracker, times, operators, torch.device("cuda:0"))
    graph = parse_module_info(info)
    found = {}
    for budget in budgets:
        decisions, _, peak = sac_milp(graph, memory_budget=budget / 2**30)
        found[str(budget)] = {"modules": sorted(decisions), "peak": peak}
    return found


def rows_of(make_job: Callable[[], Any], name: str, prepared: Figures) -> list[Figures]:
    """Run the job without a plan, in the usual ways, and with the plans of ``prepared``."""
    if "error" in prepared:
        print(f"{name}: {prepared['error']}", file=sys.stderr)
        return []
    first = in_child(measure, make_job, [])
    rows: list[Figures] = []
    for key, planned in prepared["plans"].items():
        usual = prepared["usual"].get(key)
        rows.append(
            {
                "job": name,
                "budget_of": key,
                "without": first,
                "planned": planned,
                "got": in_child(measure, make_job, planned["modules"]) if "modules" in planned else None,
                "usual": in_child(measure, make_job, usual) if usual else None,
                "sac_ilp": run_theirs(make_job, prepared, planned),
            }
        )
    again = in_child(measure, make_job, [])
    first["step_ms"] = min(first["step_ms"], again["step_ms"])  # a program that is slower than its GPU varies
    for row in rows:
        print(as_line(row), file=sys.stderr, flush=True)
    return rows


def run_theirs(make_job: Callable[[], Any], prepared: Figures, planned: Figures) -> Figures:
    theirs: Figures = prepared["sac_ilp"]
    if "error" in theirs:
        return theirs
    answer = theirs.get(str(planned.get("budget")), {})
    if not answer.get("modules"):
        return {"error": "it found no plan"}
    return {**in_child(measure, make_job, answer["modules"]), "modules": answer["modules"]}


def prepare(file: str, make_job: Callable[[], Any]) -> Figures:
    """Plan a recorded job for three budgets."""
    job = Job(file)
    highest = job.replay().reserved
    usual = usual_ways(file)
    levers = {
        key: job.replay([("checkpoint", call.number) for call in job.calls if job.modules[call.path] in set(names)])
        for key, names in usual.items()
    }
    lowest = min([outcome.reserved for outcome in levers.values()], default=highest // 2)
    budgets = {"part": highest - (highest - lowest) // 4, **{key: outcome.reserved for key, outcome in levers.items()}}
    plans: Figures = {}
    for key, budget in budgets.items():
        try:
            plans[key] = {"budget": budget, **plan(file, budget, True), "greedy": plan(file, budget, False)["step_ms"]}
        except ValueError as error:
            plans[key] = {"budget": budget, "error": str(error)}
    return {"plans": plans, "usual": usual, "sac_ilp": in_child(sac_ilp, make_job, list(budgets.values()))}


def as_line(row: Figures) -> str:
    planned, got, usual, theirs = row["planned"], row["got"], row["usual"], row["sac_ilp"]
    cells = [row["job"], mib(row["without"]["reserved"]), mib(planned["budget"])]
    if not got or "error" in got:
        return "| " + " | ".join([*cells, planned.get("error") or str(got)]) + " |"
    base = row["without"]["step_ms"]
    cells += [
        str(len(planned["modules"])),
        mib(planned["reserved"]),
        mib(got["reserved"]),
        percent(planned["reserved"], got["reserved"]),
    ]
    cells += [
        percent(got["reserved"], planned["budget"]),
        f"{base:.1f}",
        f"{expected_ms(row):.1f}",
        f"{got['step_ms']:.1f}",
    ]
    cells += [percent(expected_ms(row), got["step_ms"], 1)]
    cells += [f"{row['budget_of']} {usual['step_ms']:.1f}" if usual and "step_ms" in usual else "-"]
    cells += [f"{theirs['step_ms']:.1f}" if "step_ms" in theirs else theirs["error"][:60]]
    return "| " + " | ".join(cells) + " |"


def expected_ms(row: Figures) -> float:
    """The step that was measured without the plan, and what the plan says to add to it."""
    planned = row["planned"]
    return float(row["without"]["step_ms"] + planned["step_ms"] - planned["step_ms_before"])


def mib(bytes: int) -> str:
    return f"{bytes / MIB:.0f}"


def percent(value: float, of: float, digits: int = 2) -> str:
    return f"{100 * (value / of - 1):+.{digits}f} %"


HEAD = (
    "job",
    "without",
    "budget",
    "modules",
    "planned",
    "got",
    "error",
    "above budget",
    "step without, ms",
    "planned",
    "got",
    "error",
    "usual way",
    "sac_ilp",
)


def summary(rows: list[Figures]) -> list[str]:
    ran = [row for row in rows if row["got"] and "step_ms" in row["got"]]
    errors = [abs(100 * (row["planned"]["reserved"] / row["got"]["reserved"] - 1)) for row in ran]
    over = [100 * (row["got"]["reserved"] / row["planned"]["budget"] - 1) for row in ran]
    times = [abs(100 * (expected_ms(row) / row["got"]["step_ms"] - 1)) for row in ran]
    compared = [
        row["got"]["step_ms"] / row["usual"]["step_ms"] for row in ran if row["usual"] and "step_ms" in row["usual"]
    ]
    return [
        f"- reserved: median error {statistics.median(errors):.2f} %, worst {max(errors):.2f} %; within 2 % for "
        f"{sum(error <= 2 for error in errors)} of {len(ran)} plans",
        f"- above the budget: {max(over):+.2f} % at most; by more than 1 % for {sum(each > 1 for each in over)} plans",
        f"- time of a step: median error {statistics.median(times):.1f} %, worst {max(times):.1f} %; within 10 % "
        f"for {sum(error <= 10 for error in times)} of {len(ran)}",
        f"- the plan's step beside the usual way's with the same memory: median "
        f"{statistics.median(compared):.3f}, at most {max(compared):.3f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, help="jobs.py")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these jobs")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    jobs = load_jobs(options.jobs)
    names = options.only or [name for name in USUAL if name in jobs]
    for name in names:
        jobs[name]()  # imports what it needs, once
    with tempfile.TemporaryDirectory(prefix="modscope-plan-") as folder:
        files = {name: f"{folder}/{name}.msc" for name in names}
        # one by one: their times count
        recorded = {name: in_child(record, jobs[name], file) for name, file in files.items()}
        started = {
            name: start(prepare, file, jobs[name]) for name, file in files.items() if "error" not in recorded[name]
        }
        prepared = {**recorded, **{name: finish(each) for name, each in started.items()}}
    rows = [row for name in names for row in rows_of(jobs[name], name, prepared[name])]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    print("\n".join([*map(as_line, rows), "", *summary(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
