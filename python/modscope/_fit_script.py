"""``modscope fit`` of a script: predict it with unlimited memory, replay what it did with each lever, and predict it again
with the levers that are shown, where that is possible without a change to the script."""

from __future__ import annotations

import argparse
from typing import Any

from modscope import _fit
from modscope._fit_answer import Answer, answer
from modscope._fit_job import Job
from modscope._fit_levers import Lever, Tried, percent
from modscope._fit_rank_levers import KEEP, RESHARD, hsdp, over_all
from modscope._fit_ranks import may_reserve
from modscope._load import CaptureError
from modscope._plan_file import plan_of
from modscope._predicted_script import PredictedScript, sharding_of
from modscope._sharding_change import ShardingChange
from modscope._virtual.gpus import GPUS, Gpu, rules_of

_LEAST_GAIN = 0.005  # of a step: what saves less time is not listed
_TRIES = 3
"""Of the fewest modules that make it fit: how often others are searched for, where a prediction needs more than a replay."""


def fit(options: argparse.Namespace, target: list[str]) -> int:
    """``target``: the script, or -m and a module, with its arguments. Returns an exit status."""
    gpus: list[Gpu] = options.gpu or list(GPUS.values())
    answers: dict[Gpu, Answer] = {}
    with PredictedScript(target, options) as script:
        for kind in _kinds(gpus):
            path = script.predict(kind, f"on {kind[0].label}")
            job = _job(script, path)
            for gpu in kind:
                answers[gpu] = answer(job, gpu)
        if len(gpus) == 1:
            answers[gpus[0]] = _with_sharding(script, verify(script, answers[gpus[0]]), sharding_of(path))
        _fit.show([answers[gpu] for gpu in gpus], options, target, target[:1])
    return 0


def _kinds(gpus: list[Gpu]) -> list[list[Gpu]]:
    """GPUs of equal rules: the script is predicted once for them."""
    kinds: dict[object, list[Gpu]] = {}
    for gpu in sorted(gpus, key=lambda gpu: -gpu.memory):
        kinds.setdefault(rules_of(gpu), []).append(gpu)
    return list(kinds.values())


def _job(script: PredictedScript, path: str) -> Job:
    job = Job(path)
    if job.device == "cpu":
        raise CaptureError(f'{script.name} used no GPU: it uses one where its device is "cuda"')
    job.file = script.name
    return job


# ---- verification ----


def verify(script: PredictedScript, found: Answer) -> Answer:
    """The rows that a prediction can verify have its figures."""
    rows: list[Tried] = []
    for tried in found.tried:
        tried = _verified(script, found, tried) if tried.lever.can_be_verified else tried
        if tried.lever.name not in [row.lever.name for row in rows]:
            rows.append(tried)
    return found._replace(tried=sorted(rows, key=lambda tried: tried.price))


def _verified(script: PredictedScript, found: Answer, tried: Tried) -> Tried:
    """Of the fewest modules that make it fit: where the prediction needs more than the GPU has, more modules are tried."""
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
    plan = plan_of(list(lever.modules)) if lever.modules else None
    job = _job(script, script.predict([found.gpu], lever.name, plan=plan, conf=lever.conf, sharding=lever.sharding))
    if plan and not job.capture.phases["recompute"].blocks:
        return tried
    before, after = found.job.median_step(), job.median_step()
    if (lever.modules or lever.sharding) and before and after:
        time = max(after / before - 1, 0.0) if lever.modules else after / before - 1
        cost = percent(time, job.has_gpu_times)
        lever = lever._replace(time=time, cost=f"{lever.cost}, {cost}" if lever.sharding and lever.cost else cost)
    capacity = may_reserve(found.gpu, job.capture)
    return Tried(lever, job.replay(capacity=capacity), None, True, capacity)


# ---- how a script shards ----


def _with_sharding(script: PredictedScript, found: Answer, shards: dict[str, Any] | None) -> Answer:
    """The answer with other arguments of fully_shard. ``shards``: those that the script passes; None: it does not use it. Where
    the job does not fit, arguments that need less memory are tried; where it fits, those that need less time."""
    if not shards:
        return found
    verified = [row.lever.name for row in found.tried if row.is_verified]
    levers = [lever for lever in _shardings(script, found, shards) if lever.name not in verified]
    tried = [_predicted(script, found, Tried(lever, found.before)) for lever in levers]
    if found.before.fits:
        rows = [row for row in tried if row.outcome.fits and row.lever.time < -_LEAST_GAIN]
        return found._replace(tried=sorted(rows, key=lambda row: row.lever.time))
    rows = [row for row in tried if row.outcome.reserved < found.before.reserved]
    return found._replace(tried=sorted([*found.tried, *rows], key=lambda row: row.price))


def _shardings(script: PredictedScript, found: Answer, shards: dict[str, Any]) -> list[Lever]:
    fits, over, ranks = found.before.fits, shards["over"], script.ranks
    levers = []
    if fits and True in shards["reshards"]:
        levers.append(_sharding(KEEP, ShardingChange(reshard="no")))
    if not fits and False in shards["reshards"]:
        levers.append(_sharding(RESHARD, ShardingChange(reshard="yes")))
    if fits and over == [ranks] and ranks > script.per_node and ranks % script.per_node == 0:
        levers.append(_sharding(hsdp(script.per_node, ranks), ShardingChange(over=script.per_node)))
    if not fits and len(over) == 1 and over[0] < ranks and ranks % over[0] == 0:
        levers.append(_sharding(over_all(ranks, over[0]), ShardingChange(over=ranks)))
    return levers


def _sharding(name: str, change: ShardingChange) -> Lever:
    return Lever(name, [], "", can_be_verified=True, sharding=change)
