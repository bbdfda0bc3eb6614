"""What ``modscope fit`` answers: whether a job fits a GPU, and what would make it fit. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from modscope import _fit_rank_levers
from modscope._categories import Category
from modscope._fit_batch import Batches
from modscope._fit_job import Job, Moment, Outcome
from modscope._fit_levers import Lever, Levers, Tried, combine
from modscope._fit_modules import outermost
from modscope._fit_ranks import may_reserve, nccl_bytes, world_of
from modscope._virtual.gpus import Gpu


class Answer(NamedTuple):
    job: Job
    gpu: Gpu
    before: Outcome
    tried: list[Tried]
    """Those that help, the cheapest first."""
    rest: int
    """Bytes of parameters, gradients and the optimizer's state."""
    capacity: int
    """What the job may reserve of the GPU."""
    about: Sequence[str] = ()
    """Sentences about the captures."""
    ranks: int = 0
    """Over how many GPUs it could be sharded, if that was asked."""
    on_ranks: Sequence[Tried] = ()
    """What each of them would take. Where the job does not fit one GPU, these are among ``tried``."""


def answer(
    job: Job, gpu: Gpu, batches: Batches | None = None, levers: bool = True, faster: bool = False, ranks: int = 0
) -> Answer:
    """``faster``: where it fits, try what would be faster and still fit. ``ranks``: over how many GPUs it could be sharded."""
    capacity = may_reserve(gpu, job.capture)
    before = job.replay(capacity=capacity)
    tried: list[Tried] = []
    of_job = Levers(job, gpu, capacity, before, ranks)
    on_ranks = _fit_rank_levers.over_asked(of_job) if ranks else []
    if before.fits and faster:
        tried = _fit_rank_levers.faster(of_job)
    elif levers and not before.fits:
        tried = _table(of_job, batches, on_ranks)
    return Answer(job, gpu, before, tried, _held(job), capacity, ranks=ranks, on_ranks=on_ranks)


def _held(job: Job) -> int:
    state = (Category.PARAM, Category.GRAD, Category.OPT)
    found = [sums for at in _ends(job) if (sums := job.capture.snapshot(at).totals.get(job.device))]
    return max((sum(sums[kind] for kind in state) for sums in found), default=0)


def _ends(job: Job) -> list[int | str]:
    return ["peak", *(f"step:{number}" for _, number, _ in job.steps[: job.whole_steps][:2])]


# ---- the table ----


def _table(levers: Levers, batches: Batches | None, on_ranks: list[Tried]) -> list[Tried]:
    free = [tried for lever in levers.free() if levers.helps(tried := levers.attempt(lever))]
    free = _with_one_setting(free)
    rows = [*free, *_batch(levers, batches), *_checkpoints(levers)]
    rows += [
        tried for lever in (*levers.single_tensor(), *levers.on_cpu()) if levers.helps(tried := levers.attempt(lever))
    ]
    rows += [tried for lever in _fit_rank_levers.smaller(levers) if levers.helps(tried := levers.attempt(lever))]
    rows += on_ranks if levers.ranks else [*_sharded(levers), *_sharded(levers, mixed=True)]
    rows += _combined(levers, [tried.lever for tried in free], rows)
    return sorted(rows, key=lambda tried: tried.price)


def _checkpoints(levers: Levers) -> list[Tried]:
    """Of each group the fewest modules that make it fit, and all. A group in another one is listed if it needs less."""
    rows: list[Tried] = []
    least: dict[str, int] = {}
    for siblings in levers.groups:
        all_of = levers.attempt(levers.checkpoint(siblings, len(siblings.members)))
        around = [least[name] for name in least if siblings.name.startswith(name + ".")]
        least[siblings.name] = all_of.outcome.reserved
        if not levers.helps(all_of) or any(reserved <= all_of.outcome.reserved for reserved in around):
            continue
        fewest = levers.fewest(siblings)
        rows += [fewest] if fewest and fewest.lever.name != all_of.lever.name else []
        rows.append(all_of)
    return rows + _all_checkpoints(levers)


def _with_one_setting(free: list[Tried]) -> list[Tried]:
    """Of the allocator's settings only the one that reserves least: settings are not combined."""
    settings = sorted((tried for tried in free if tried.lever.conf), key=lambda tried: tried.outcome.reserved)
    return [tried for tried in free if not tried.lever.conf or tried is settings[0]]


def _batch(levers: Levers, batches: Batches | None) -> list[Tried]:
    if batches is None:
        return []
    largest = batches.largest(levers.capacity)
    if largest is None or largest >= batches.large_size:
        return []
    cost = f"{batches.large_size / largest:.3g} times the steps"
    return [levers.attempt(Lever(batches.describe(largest), batches.edits(largest), cost))]


def _all_checkpoints(levers: Levers) -> list[Tried]:
    """All groups together, where several do not lie in each other."""
    groups = outermost(levers.groups)
    if len(groups) < 2:
        return []
    return [levers.attempt(combine(*(levers.checkpoint(each, len(each.members)) for each in groups)))]


def _sharded(levers: Levers, mixed: bool = False) -> list[Tried]:
    """Over the fewest GPUs on which it fits, best without giving memory back. If it fits on none of these numbers, over the most that help. Over
    few GPUs the buffers of gathers may take more than sharding saves."""
    rows = [levers.attempt(lever) for ranks in levers.rank_counts() if (lever := levers.sharded(ranks, mixed))]
    rows = [tried for tried in rows if levers.helps(tried)]
    at_once = [tried for tried in rows if tried.outcome.fits_at_once]
    fitting = at_once or [tried for tried in rows if tried.outcome.fits]
    return fitting[:1] or rows[-1:]


def _combined(levers: Levers, free: list[Lever], rows: list[Tried]) -> list[Tried]:
    """The cheapest combination that fits, where no single lever without a cost does; if none fits, the one that needs
    least."""
    if any(tried.outcome.fits and tried.lever.cost == "none" for tried in rows):
        return []
    if len(free) > 1 and (tried := levers.attempt(combine(*free))).outcome.fits:
        return [tried]
    alone = min((tried.lever.time for tried in rows if tried.outcome.fits and not tried.lever.more), default=None)
    found = [found for siblings in levers.groups for few in _subsets(free) if (found := levers.fewest(siblings, *few))]
    cheaper = [tried for tried in found if alone is None or tried.lever.time < alone]
    if cheaper:
        return [min(cheaper, key=lambda tried: tried.lever.time)]  # of equals the first, which combines less
    if any(tried.outcome.fits for tried in rows):
        return []
    return _with_everything(levers, free)


def _subsets(free: list[Lever]) -> list[list[Lever]]:
    """Each of them, then all together."""
    return [[lever] for lever in free] + ([free] if len(free) > 1 else [])


def _with_everything(levers: Levers, free: list[Lever]) -> list[Tried]:
    all_of = [levers.checkpoint(siblings, len(siblings.members)) for siblings in outermost(levers.groups)]
    state = [lever for lever in levers.on_cpu() if "optimizer" in lever.name]
    fused = [lever for lever in free if not state or "optimizer" not in lever.name]
    ways = [[*fused, *all_of, *state]]
    ways += [[*free, *all_of, lever] for ranks in levers.rank_counts() if (lever := levers.sharded(ranks))]
    tried = []
    for way in ways:
        if len(way) > 1:
            tried.append(levers.attempt(combine(*way)))
            if tried[-1].outcome.fits:
                return [tried[-1]]
    return [min(tried, key=lambda each: each.outcome.reserved)] if tried else []


# ---- as JSON ----


def as_json(found: Answer) -> dict[str, Any]:
    job = found.job
    return {
        "file": job.file,
        "device": job.device,
        "gpu": found.gpu.name,
        "title": found.gpu.title,
        "memory": found.gpu.memory,
        "context": found.gpu.context,
        "caching": job.caching,
        "is_lower_bound": job.is_lower_bound,
        "has_damaged_notes": job.has_damaged_notes,
        "whole_steps": job.whole_steps,
        "died": job.died,
        "notes": list(found.about),
        "ranks": world_of(job.capture),
        "communicator_bytes": nccl_bytes(job.capture),
        "may_reserve": found.capacity,
        **_outcome(found.before, found.capacity),
        "held_by_parameters_gradients_state": found.rest,
        "levers": [_lever(tried, found) for tried in found.tried],
        "ranks_asked": found.ranks,
        "on_ranks": [_lever(tried, found) for tried in found.on_ranks],
    }


def _lever(tried: Tried, found: Answer) -> dict[str, Any]:
    return {"name": tried.lever.name, "cost": tried.lever.cost, **_figures(tried, found)}


def _figures(tried: Tried, found: Answer) -> dict[str, Any]:
    lever = tried.lever
    return {
        "allocator": lever.conf,
        "time": lever.time or None,
        "gpus": world_of(found.job.capture) + lever.more,
        "is_approximate": tried.is_approximate,
        "is_verified": tried.is_verified,
        **_outcome(tried.outcome, found.capacity if tried.capacity is None else tried.capacity),
    }


def _outcome(outcome: Outcome, capacity: int) -> dict[str, Any]:
    return {
        "reserved_peak": outcome.reserved,
        "reserved_on_gpu": outcome.reserved_on_gpu,
        "allocated_peak": outcome.allocated,
        "fits": outcome.fits,
        "to_spare": capacity - outcome.reserved_on_gpu,
        "retries": outcome.retries,
        "failure": _moment(outcome.failed, outcome.requested),
    }


def _moment(at: Moment | None, requested: int) -> dict[str, Any] | None:
    return {**at._asdict(), "requested": requested} if at else None
