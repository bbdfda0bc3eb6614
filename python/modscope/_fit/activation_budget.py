"""The activation memory budget of a compiled script: torch._functorch.config.activation_memory_budget, the part of what
torch.compile would keep for backward that it may keep. What is reserved does not follow from it, and need not fall with
it, so the script is predicted with each budget."""

from __future__ import annotations

from typing import NamedTuple

from modscope._fit.epoch_job import job_of
from modscope._fit.job import Job
from modscope._fit.levers.registry import Lever, Tried, longer_step
from modscope._fit.verdict import Answer
from modscope._predict.capture_of_script import PredictedScript
from modscope._virtual.gpus import Gpu

BUDGETS = (0.8, 0.6, 0.4, 0.2, 0.0)
SETTING = "torch._functorch.config.activation_memory_budget"
_KIND = "activation budget"
_LEAST_HELP = 0.005  # of what is reserved


class Point(NamedTuple):
    """A script with a budget."""

    budget: float | None
    """None: as the script has it."""
    reserved: int
    allocated: int
    step_ms: float | None


def predict_budgets(script: PredictedScript, gpu: Gpu, path: str) -> list[Point]:
    """``path``: of the prediction without another budget, which is the first point."""
    points = [_point(None, Job(path))]
    for budget in BUDGETS:
        points.append(_point(budget, Job(script.predict([gpu], _name(budget), activation_budget=budget))))
    return points


def _point(budget: float | None, job: Job) -> Point:
    outcome, seconds = job.replay(), job.step_time.total
    return Point(budget, outcome.reserved, outcome.allocated, 1e3 * seconds if seconds else None)


def _name(budget: float) -> str:
    return f"activation_memory_budget {budget:g}"


def with_budgets(script: PredictedScript, found: Answer) -> Answer:
    """The answer with those budgets that help a compiled script that does not fit."""
    if found.before.fits:
        return found
    rows = []
    for budget in BUDGETS:
        job = job_of(script, script.predict([found.gpu], _name(budget), activation_budget=budget))
        before, after = found.job.step_time.total, job.step_time.total
        time = max(after / before - 1, 0.0) if before and after else None
        lever = Lever((_KIND,), _name(budget), [], (longer_step(time, job.has_gpu_times),))
        outcome = job.replay(capacity=job.may_reserve(found.gpu))
        if outcome.reserved < (1 - _LEAST_HELP) * found.before.reserved:
            rows.append(Tried(lever, outcome, None, True))
    return found._replace(tried=sorted([*found.tried, *rows], key=lambda tried: tried.price))
