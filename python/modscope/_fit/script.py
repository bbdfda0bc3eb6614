"""``modscope fit`` of a script: predict it with unlimited memory, replay what it did with each lever, and predict it
again with the levers that are shown, where that is possible without a change to the script."""

from __future__ import annotations

from modscope._fit.activation_budget import with_budgets
from modscope._fit.epoch_job import cap_of, job_of, what_was_read
from modscope._fit.levers import fsdp2
from modscope._fit.levers.registry import Lever, Tried, longer_step
from modscope._fit.verdict import Answer, answer
from modscope._plan.file import plan_of
from modscope._predict.capture_of_script import PredictedScript, is_compiled, sharding_of
from modscope._predict.result import ShardingFacts
from modscope._virtual.gpus import Gpu, rules_of

_LEAST_GAIN = 0.005  # of a step: what saves less time is not listed
_TRIES = 3
"""Of the fewest modules that make it fit: how often others are searched for, where a prediction needs more than a
replay."""


def answer_script(script: PredictedScript, gpus: list[Gpu]) -> list[Answer]:
    answers: dict[Gpu, Answer] = {}
    for kind in _kinds(gpus):
        path = script.predict(kind, f"on {kind[0].label}")
        job = job_of(script, path)
        for gpu in kind:
            answers[gpu] = _with_epoch(answer(job, gpu))
    if len(gpus) == 1:
        found = _with_sharding(script, verify(script, answers[gpus[0]]), sharding_of(path))
        answers[gpus[0]] = with_budgets(script, found) if is_compiled(path) else found
    return [answers[gpu] for gpu in gpus]


def _with_epoch(found: Answer) -> Answer:
    """With what was read of the epoch, and the largest length with which every batch fits."""
    if found.job.epoch is None:
        return found
    row = found.job.epoch.on(found.gpu)
    tried = sorted([*found.tried, *cap_of(found.job.epoch, row)], key=lambda tried: tried.price)
    return found._replace(tried=tried, about=what_was_read(found.job.epoch, row), on_epoch=row)


def _kinds(gpus: list[Gpu]) -> list[list[Gpu]]:
    """GPUs of equal rules: the script is predicted once for them."""
    kinds: dict[object, list[Gpu]] = {}
    for gpu in sorted(gpus, key=lambda gpu: -gpu.memory):
        kinds.setdefault(rules_of(gpu), []).append(gpu)
    return list(kinds.values())


# ---- verification ----


def verify(script: PredictedScript, found: Answer) -> Answer:
    """The rows that a prediction can verify have its figures."""
    rows: list[Tried] = []
    for tried in found.tried:
        tried = _verified(script, found, tried) if tried.lever.can_be_verified else tried
        if not any(_is_same(tried, row) for row in rows):
            rows.append(tried)
    return found._replace(tried=sorted(rows, key=lambda tried: tried.price))


def _is_same(tried: Tried, other: Tried) -> bool:
    """Whether both were predicted with the same changes: the fewest modules that fit may become all of them."""
    one, two = tried.lever, other.lever
    same = (one.kinds, one.modules, one.conf, one.sharding) == (two.kinds, two.modules, two.conf, two.sharding)
    return same and one.can_be_verified and two.can_be_verified


def _verified(script: PredictedScript, found: Answer, tried: Tried) -> Tried:
    """Verify the fewest modules that make it fit: where the prediction needs more than the GPU has, more modules are
    tried."""
    capacity = found.capacity
    for _ in range(_TRIES):
        verified = _predicted(script, found, tried)
        excess = verified.outcome.reserved - tried.outcome.reserved
        if tried.again is None or verified.outcome.fits_at_once or excess <= 0:
            break
        capacity -= excess
        more = tried.again(capacity)
        if more is None or more.lever.modules == tried.lever.modules:
            break
        tried = more
    return verified


def _predicted(script: PredictedScript, found: Answer, tried: Tried) -> Tried:
    """With the figures of a prediction; the same as before if the plan could not be applied to the script."""
    lever = tried.lever
    plan = plan_of(list(lever.modules), keep=lever.keep) if lever.modules else None
    job = job_of(script, script.predict([found.gpu], lever.name, plan=plan, conf=lever.conf, sharding=lever.sharding))
    if plan and not job.capture.phases["recompute"].blocks:
        return tried
    before, after = found.job.step_time.total, job.step_time.total
    if (lever.modules or lever.sharding) and before and after:
        time = max(after / before - 1, 0.0) if lever.modules else after / before - 1
        others = [cost._replace(time=0.0) for cost in lever.costs] if lever.sharding else []
        lever = lever._replace(costs=(*others, longer_step(time, job.has_gpu_times)))
    capacity = job.may_reserve(found.gpu)
    return Tried(lever, job.replay(capacity=capacity), None, True, capacity)


# ---- how a script shards ----


def _with_sharding(script: PredictedScript, found: Answer, shards: ShardingFacts | None) -> Answer:
    """The answer with other arguments of fully_shard. ``shards``: those that the script passes; None: it does not use
    it. Where the job does not fit, arguments that need less memory are tried; where it fits, those that need less
    time."""
    if not shards:
        return found
    verified = [(row.lever.kinds, row.lever.sharding) for row in found.tried if row.is_verified]
    levers = [lever for lever in _shardings(script, found, shards) if (lever.kinds, lever.sharding) not in verified]
    tried = [_predicted(script, found, Tried(lever, found.before)) for lever in levers]
    if found.before.fits:
        rows = [row for row in tried if row.outcome.fits and row.lever.time < -_LEAST_GAIN]
        return found._replace(tried=sorted(rows, key=lambda row: row.lever.time))
    rows = [row for row in tried if row.outcome.reserved < found.before.reserved]
    return found._replace(tried=sorted([*found.tried, *rows], key=lambda row: row.price))


def _shardings(script: PredictedScript, found: Answer, shards: ShardingFacts) -> list[Lever]:
    fits, over, ranks = found.before.fits, shards["over"], script.ranks
    levers = []
    if fits and True in shards["reshards"]:
        levers.append(fsdp2.keep_lever([]))
    if not fits and False in shards["reshards"]:
        levers.append(fsdp2.reshard_lever([]))
    if fits and over == [ranks] and ranks > script.per_node and ranks % script.per_node == 0:
        levers.append(fsdp2.hsdp_lever(script.per_node, ranks, []))
    if not fits and len(over) == 1 and over[0] < ranks and ranks % over[0] == 0:
        levers.append(fsdp2.over_all_lever(ranks, over[0], []))
    return levers
