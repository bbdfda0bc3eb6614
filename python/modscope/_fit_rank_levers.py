"""The levers of ``modscope fit`` of which jobs on several GPUs have a choice: whether FSDP2 reshards after forward, and how many ranks hold one
copy of the model (HSDP). Needs no torch."""

from __future__ import annotations

from modscope import _fit_resharding, _fit_sharding
from modscope._fit_levers import Lever, Levers, Tried
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
        found.append(Lever(RESHARD, edits, "gathers again in backward", can_be_verified=True, sharding=ShardingChange(reshard="yes")))
    over = _fit_resharding.ranks_of_a_copy(job.capture, world)
    if 0 < over < world and world % over == 0:
        edits = _fit_sharding.over_more(job, over, world)
        found.append(Lever(over_all(world, over), edits, "gathers among all GPUs", can_be_verified=True, sharding=ShardingChange(over=world)))
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
        lever = Lever(hsdp(per_node, world), _fit_sharding.over_more(job, world, per_node), _REPLAYED)
        tried.append(levers.attempt(lever, max(levers.capacity - communicator_bytes(world // per_node), 0)))
    return [each for each in tried if each.outcome.fits_at_once]


def of_one_gpu(levers: Levers, ranks: int) -> list[Tried]:
    """Of a job on one GPU that is to be sharded over so many: other ways that fit, which take less time than resharding over all."""
    found = []
    per_node = ranks_per_node(levers.job.capture)
    for mixed in (False, True):
        ways = [(ranks, True)]
        ways += [(per_node, False)] if ranks > per_node and ranks % per_node == 0 else []
        for over, keeps in ways:
            edits = _fit_sharding.edits(levers.job, levers.groups, over, mixed, keeps)
            if not edits:
                continue
            usual = levers.sharded(ranks, mixed)
            name = f"{usual.name if usual else ''}, {'kept after forward (reshard_after_forward=False)' if keeps else f'{over} of them hold one copy (HSDP)'}"
            lever = Lever(name, edits, f"{ranks - 1} more GPUs, {_REPLAYED}", more=ranks - 1, is_bound=True)
            groups = communicator_bytes(ranks) if keeps else communicator_bytes(over) + communicator_bytes(ranks // over)
            found.append(levers.attempt(lever, max(levers.capacity - groups, 0)))
    return [tried for tried in found if tried.outcome.fits_at_once]
