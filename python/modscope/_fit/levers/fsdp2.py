"""Levers of several GPUs: FSDP2 for a job that does not use it, over more ranks for one that does, whether it reshards
after forward, and how many ranks hold one copy of the model (HSDP). Needs no torch."""

from __future__ import annotations

from modscope._fit import sharding
from modscope._fit.job import Edit, Job
from modscope._fit.levers.registry import Case, Cost, Lever, Tried, lever
from modscope._predict.options import ShardingChange
from modscope._read.ranks import ranks_per_node, world_of
from modscope._virtual.ranks.network import RANKS_PER_NODE, communicator_bytes

_RANKS = (2, 4, 8)
_LESS_TIME = Cost("less time for gathers")


def _name(ranks: int, mixed: bool, which: str = "") -> str:
    return f"FSDP2 over {which}{ranks} GPUs{' with a MixedPrecisionPolicy' if mixed else ''}"


def _per_node(case: Case) -> int:
    return ranks_per_node(case.job.capture) or RANKS_PER_NODE


def _more_gpus(count: int) -> Cost:
    return Cost(f"{count} more GPUs", extra_gpus=count)


# ---- other arguments of fully_shard ----


def _is_job_of_fsdp2(case: Case) -> bool:
    return case.is_sharded and world_of(case.job.capture) > 1 and case.job.whole_steps > 0


def reshard_lever(edits: list[Edit], *costs: Cost) -> Lever:
    change = ShardingChange(reshard="yes")
    return Lever(("reshard",), "reshard after forward", edits, costs, can_be_verified=True, sharding=change)


def over_all_lever(world: int, over: int, edits: list[Edit], *costs: Cost) -> Lever:
    name, change = f"shard over all {world} GPUs instead of {over}", ShardingChange(over=world)
    return Lever(("shard_over_all",), name, edits, costs, can_be_verified=True, sharding=change)


def keep_lever(edits: list[Edit], *costs: Cost) -> Lever:
    name, change = "keep parameters after forward (reshard_after_forward=False)", ShardingChange(reshard="no")
    return Lever(("keep_parameters",), name, edits, costs, can_be_verified=True, sharding=change)


def hsdp_lever(over: int, world: int, edits: list[Edit], *costs: Cost) -> Lever:
    name, change = f"HSDP: shard over {over} GPUs, replicate {world // over} times", ShardingChange(over=over)
    return Lever(("hsdp",), name, edits, costs, can_be_verified=True, sharding=change)


@lever("reshard")
def reshard(case: Case) -> list[Lever]:
    """Parameters that are freed after forward, and gathered again in backward."""
    if not _is_job_of_fsdp2(case) or sharding.is_resharded(case.job):
        return []
    edits = sharding.reshard(case.job)
    return [reshard_lever(edits, Cost("gathers again in backward"))] if edits else []


@lever("shard_over_all")
def over_all(case: Case) -> list[Lever]:
    """One copy of the model instead of several."""
    world = world_of(case.job.capture)
    over = sharding.ranks_of_a_copy(case.job.capture, world) if _is_job_of_fsdp2(case) else 0
    if not 0 < over < world or world % over:
        return []
    return [over_all_lever(world, over, sharding.over(case.job, over, world), Cost("gathers among all GPUs"))]


@lever("keep_parameters", saves_time=True)
def keep(case: Case) -> list[Lever]:
    """Parameters that stay after forward, and are not gathered again."""
    edits = sharding.keep(case.job) if _is_job_of_fsdp2(case) else []
    return [keep_lever(edits, _LESS_TIME)] if edits else []


@lever("hsdp", saves_time=True)
def hsdp(case: Case) -> list[Tried]:
    """A copy of the model on each node: gathers stay inside one."""
    world, per_node = world_of(case.job.capture), _per_node(case)
    if not _is_job_of_fsdp2(case) or not world > per_node or world % per_node:
        return []
    if sharding.ranks_of_a_copy(case.job.capture, world) != world:
        return []
    edits = sharding.over(case.job, world, per_node, in_copies=True)
    made = hsdp_lever(per_node, world, edits, _LESS_TIME)
    return [case.attempt(made, max(case.capacity - communicator_bytes(world // per_node), 0))]


# ---- more GPUs ----


def rank_counts(case: Case) -> tuple[int, ...]:
    """The numbers of GPUs over which the job could be sharded. One that runs on several already keeps them."""
    world = world_of(case.job.capture)
    if not case.job.caching:
        return ()
    if case.is_sharded:
        more = (case.ranks,) if case.ranks else tuple(world * more for more in _RANKS)
        return tuple(count for count in more if count > case.ranks_of_a_copy) if world > 1 else ()
    if case.ranks > 1:
        return (case.ranks,)
    return (world,) if world > 1 else _RANKS


def sharded(case: Case, ranks: int, mixed: bool = False) -> Lever | None:
    """``ranks``: one of rank_counts. ``mixed``: with a MixedPrecisionPolicy, which is a lever of jobs with autocast."""
    world = world_of(case.job.capture)
    more = max(ranks - world, 0)
    if case.is_sharded:
        edits = [] if mixed else sharding.over(case.job, case.ranks_of_a_copy, ranks)
        costs = (_more_gpus(more) if more else Cost("gathers among all GPUs"),)
        made = Lever(("fsdp2",), _name(ranks, mixed), edits, costs, is_approximate=True)
        return made._replace(can_be_verified=True, sharding=ShardingChange(ranks)) if edits else None
    edits = sharding.edits(case.job, ranks, mixed)
    if not edits:
        return None
    gpus = (
        [] if world == ranks else [Cost("a second GPU", extra_gpus=1) if (world, ranks) == (1, 2) else _more_gpus(more)]
    )
    gathers = [Cost("gathers in every step")] if world > 1 else []
    which = "the " if world == ranks else ""
    return Lever(("fsdp2",), _name(ranks, mixed, which), edits, (*gpus, *gathers), is_approximate=True)


@lever("fsdp2")
def over_more(case: Case) -> list[Tried]:
    """As many GPUs as were asked for; otherwise the fewest on which it fits, best without giving memory back. If it
    fits on none of these numbers, the most that help. Over few GPUs the buffers of gathers may take more than sharding
    saves."""
    if case.ranks:
        return case.on_ranks
    return [*_over_fewest(case, False), *_over_fewest(case, True)]


def _over_fewest(case: Case, mixed: bool) -> list[Tried]:
    rows = [case.attempt(made) for ranks in rank_counts(case) if (made := sharded(case, ranks, mixed))]
    rows = [tried for tried in rows if case.helps(tried)]
    at_once = [tried for tried in rows if tried.outcome.fits_at_once]
    fitting = at_once or [tried for tried in rows if tried.outcome.fits]
    return fitting[:1] or rows[-1:]


# ---- as many GPUs as were asked for ----


def over_asked(case: Case) -> list[Tried]:
    """What each of ``case.ranks`` GPUs would take. Empty: that is not known (why_not_over). For a job on one GPU also
    other ways that fit, which take less time than resharding over all."""
    job, ranks = case.job, case.ranks
    if not ranks or not job.caching or not job.whole_steps:
        return []
    rows = [case.attempt(made) for mixed in (False, True) if (made := sharded(case, ranks, mixed))]
    return [*rows, *other_ways(case)] if rows and world_of(job.capture) == 1 else rows


def why_not_over(job: Job) -> str:
    """Why nothing is known of more ranks, in a sentence's words."""
    if not job.caching:
        return "the figures are those of the CPU, which do not show what a GPU reserves"
    if not job.whole_steps:
        return "the capture has no whole training step"
    return "the capture does not show parameters that could be sharded"


def other_ways(case: Case) -> list[Tried]:
    """For a job on one GPU that is to be sharded over ``case.ranks``: parameters that are kept after forward, and
    several copies of the model, where that fits."""
    ranks, per_node = case.ranks, _per_node(case)
    found = []
    for mixed in (False, True):
        kept = sharding.edits(case.job, ranks, mixed, keeps=True)
        how = "kept after forward (reshard_after_forward=False)"
        found.append(_other_way(case, mixed, how, kept, communicator_bytes(ranks)))
        if ranks > per_node and ranks % per_node == 0:
            edits = sharding.edits(case.job, per_node, mixed)
            nccl = communicator_bytes(per_node) + communicator_bytes(ranks // per_node)
            found.append(_other_way(case, mixed, f"{per_node} of them hold one copy (HSDP)", edits, nccl))
    return [tried for tried in found if tried and tried.outcome.fits_at_once]


def _other_way(case: Case, mixed: bool, how: str, edits: list[Edit], nccl: int) -> Tried | None:
    """``how``: what is different from sharding over all; ``nccl``: what its communicators take of the GPU."""
    costs = (_more_gpus(case.ranks - 1), _LESS_TIME)
    made = Lever(("fsdp2",), f"{_name(case.ranks, mixed)}, {how}", edits, costs, is_approximate=True)
    return case.attempt(made, max(case.capacity - nccl, 0)) if edits else None
