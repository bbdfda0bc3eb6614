"""The levers of ``modscope fit`` of which jobs on several GPUs have a choice: whether FSDP2 reshards after forward, and how many ranks hold one
copy of the model (HSDP). Needs no torch."""

from __future__ import annotations

from modscope import _fit_resharding, _fit_sharding
from modscope._fit_job import Edit, Job
from modscope._fit_levers import Lever, Levers, Tried, over_gpus
from modscope._fit_ranks import ranks_per_node, world_of
from modscope._sharding_change import ShardingChange
from modscope._virtual.network import communicator_bytes

KEEP = "keep parameters after forward (reshard_after_forward=False)"
RESHARD = "reshard after forward"
_REPLAYED = "less time for gathers"


def hsdp(over: int, world: int) -> str:
    return f"HSDP: shard over {over} GPUs, replicate {world // over} times"


def over_all(world: int, over: int) -> str:
    return f"shard over all {world} GPUs instead of {over}"


def smaller(levers: Levers) -> list[Lever]:
    """Of a rank of FSDP2: what needs less memory on as many GPUs."""
    job, world = levers.job, world_of(levers.job.capture)
    found = []
    if not levers.is_sharded or world == 1 or not job.whole_steps:
        return []
    if not _fit_resharding.is_resharded(job) and (edits := _fit_resharding.reshard(job)):
        found.append(
            Lever(
                RESHARD,
                edits,
                "gathers again in backward",
                can_be_verified=True,
                sharding=ShardingChange(reshard="yes"),
            )
        )
    over = _fit_resharding.ranks_of_a_copy(job.capture, world)
    if 0 < over < world and world % over == 0:
        edits = _fit_resharding.over(job, over, world)
        found.append(
            Lever(
                over_all(world, over),
                edits,
                "gathers among all GPUs",
                can_be_verified=True,
                sharding=ShardingChange(over=world),
            )
        )
    return found


def faster(levers: Levers) -> list[Tried]:
    """Of a rank of FSDP2 that fits: what takes less time, and still fits."""
    job, world, per_node = levers.job, world_of(levers.job.capture), ranks_per_node(levers.job.capture)
    if not levers.is_sharded or world == 1 or not job.whole_steps:
        return []
    tried = []
    if edits := _fit_resharding.keep(job):
        tried.append(levers.attempt(Lever(KEEP, edits, _REPLAYED)))
    over = _fit_resharding.ranks_of_a_copy(job.capture, world)
    if over == world > per_node and world % per_node == 0:
        lever = Lever(hsdp(per_node, world), _fit_resharding.over(job, world, per_node, in_copies=True), _REPLAYED)
        tried.append(levers.attempt(lever, max(levers.capacity - communicator_bytes(world // per_node), 0)))
    return [each for each in tried if each.outcome.fits_at_once]


def over_asked(levers: Levers) -> list[Tried]:
    """What each of ``levers.ranks`` GPUs would take. Empty: that is not known (why_not_over)."""
    job = levers.job
    if not job.caching or not job.whole_steps:
        return []
    rows = [levers.attempt(lever) for mixed in (False, True) if (lever := levers.sharded(levers.ranks, mixed))]
    return [*rows, *of_one_gpu(levers, levers.ranks)] if rows and world_of(job.capture) == 1 else rows


def why_not_over(job: Job) -> str:
    """Why nothing is known of more ranks, in a sentence's words."""
    if not job.caching:
        return "the figures are those of the CPU, which do not show what a GPU reserves"
    if not job.whole_steps:
        return "the capture has no whole training step"
    return "the capture does not show parameters that could be sharded"


def of_one_gpu(levers: Levers, ranks: int) -> list[Tried]:
    """Of a job on one GPU that is to be sharded over so many: other ways that fit, which take less time than resharding over all."""
    per_node = ranks_per_node(levers.job.capture)
    found = []
    for mixed in (False, True):
        found.append(_kept(levers, ranks, mixed))
        if ranks > per_node and ranks % per_node == 0:
            found.append(_in_copies(levers, ranks, mixed, per_node))
    return [tried for tried in found if tried and tried.outcome.fits_at_once]


def _kept(levers: Levers, ranks: int, mixed: bool) -> Tried | None:
    edits = _fit_sharding.edits(levers.job, ranks, mixed, keeps=True)
    return _sharded(
        levers, ranks, mixed, "kept after forward (reshard_after_forward=False)", edits, communicator_bytes(ranks)
    )


def _in_copies(levers: Levers, ranks: int, mixed: bool, over: int) -> Tried | None:
    edits = _fit_sharding.edits(levers.job, over, mixed)
    nccl = communicator_bytes(over) + communicator_bytes(ranks // over)
    return _sharded(levers, ranks, mixed, f"{over} of them hold one copy (HSDP)", edits, nccl)


def _sharded(levers: Levers, ranks: int, mixed: bool, how: str, edits: list[Edit], nccl: int) -> Tried | None:
    """``how``: what is different from sharding over all; ``nccl``: what its communicators take of the GPU."""
    if not edits:
        return None
    lever = Lever(
        f"{over_gpus(ranks, mixed)}, {how}",
        edits,
        f"{ranks - 1} more GPUs, {_REPLAYED}",
        more=ranks - 1,
        is_approximate=True,
    )
    return levers.attempt(lever, max(levers.capacity - nccl, 0))
