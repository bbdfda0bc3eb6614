"""FSDP2 as edits of a job: of one process, which then is one of several ranks; and of a rank of FSDP2, with other
arguments of fully_shard. src/replay/sharding.c and resharding.c say what the edits do; which modules are sharded, each
on its own, is chosen here by their names. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from modscope._fit.job import Edit, Job
from modscope._read.categories import Category, Kind
from modscope._read.groups import group_modules, is_number, lies_in
from modscope._read.load import Capture

_MOST_OF_GROUP = 0.5
"""Of the parameters of a group: if one member has more, the layers are not these modules but those in them, as where a
model is one of two parts of an nn.Sequential."""
_BACKWARD = ("backward", "recompute")


def uses_fsdp2(job: Job) -> bool:
    """Whether the parameters are sharded already: the capture then has their kinds."""
    return bool(job.stream.sum(job.select(kind=Kind.SHARDED_PARAM))[2])


def held_parameters(job: Job) -> tuple[int, int, int]:
    """The bytes of parameters that are there all the time, those of the largest, and their count: of a rank of FSDP2
    its shards, without what it gathers."""
    of_kind = job.select(kind=Kind.SHARDED_PARAM)
    return job.stream.sum(of_kind if uses_fsdp2(job) else job.select(Category.PARAM))


def _if_possible(job: Job, edit: Edit) -> list[Edit]:
    """The edit; empty if it changes nothing."""
    return [edit] if job.stream.changes([edit]) else []


# ---- a job of one process ----


def edits(job: Job, ranks: int, mixed: bool = False, keeps: bool = False) -> list[Edit]:
    """``mixed``: with a MixedPrecisionPolicy; ``keeps``: with reshard_after_forward=False. Empty: it has no parameters,
    or no steps that show when they are used; or it is ``mixed``, and the job does not use autocast."""
    if not job.whole_steps:
        return []
    units = _tables(job, find_units(job))
    return _if_possible(job, ("shard", *units, job.number, ranks, job.end_of_whole_steps, mixed, keeps))


def find_units(job: Job) -> list[str]:
    """Numbered modules that have parameters and lie in no others, such as GPT.h.0 to GPT.h.11; empty: FSDP2 would shard
    the model as a whole."""
    bytes_of = _bytes_by_module(job)
    names = dict.fromkeys(job.modules[call.path] for call in job.calls)
    numbered = [name for name in names if bytes_of.get(name) and is_number(name.rpartition(".")[2])]
    layers = [group.members for group in group_modules(numbered, str) if len(group.members) > 1]
    chosen = _outermost(layers)
    while (large := next((each for each in chosen if _is_split_up(each, bytes_of, layers)), None)) is not None:
        chosen.remove(large)
        chosen += _outermost(_inside(large, layers))
    return [name for each in chosen for name in each]


def _bytes_by_module(job: Job) -> dict[str, int]:
    """The parameters of each module and those in it."""
    found: dict[str, int] = {}
    for path, bytes in job.stream.owners(job.select(Category.PARAM)):
        name = job.modules[path]
        while name:
            found[name] = found.get(name, 0) + bytes
            name = name.rpartition(".")[0]
    return found


def _outermost(layers: list[list[str]]) -> list[list[str]]:
    return [each for each in layers if not any(lies_in(each[0], name) for other in layers for name in other)]


def _inside(outer: list[str], layers: list[list[str]]) -> list[list[str]]:
    return [each for each in layers if any(lies_in(each[0], name) for name in outer)]


def _is_split_up(names: list[str], bytes_of: dict[str, int], layers: list[list[str]]) -> bool:
    sizes = [bytes_of[name] for name in names]
    return max(sizes) > _MOST_OF_GROUP * sum(sizes) and bool(_inside(names, layers))


def _tables(job: Job, names: Sequence[str]) -> tuple[list[int | None], list[int | None]]:
    """By path: the number of the innermost of the named modules in which it lies, and of the one that it is."""
    numbers = {name: number for number, name in enumerate(names)}

    def around(module: str) -> int | None:
        while module and module not in numbers:
            module = module.rpartition(".")[0]
        return numbers.get(module)

    return [around(module) for module in job.modules], [numbers.get(module) for module in job.modules]


# ---- a rank of FSDP2 ----


def ranks_of_a_copy(capture: Capture, world: int) -> int:
    """How many ranks hold one copy of what is sharded, by the groups that gather and reduce. 0: they differ, as with
    tensor parallelism."""
    sizes = {group.size for kind, group, *_ in capture.collective_totals() if kind in ("all_gather", "reduce_scatter")}
    return sizes.pop() if len(sizes) == 1 else 0 if sizes else world


def is_resharded(job: Job) -> bool:
    """Whether modules are resharded after their forward: then their parameters are gathered again in backward."""
    return bool(job.stream.sum(job.select(phases=_BACKWARD, kind=Kind.UNSHARDED_PARAM))[2])


def over(job: Job, before: int, after: int, in_copies: bool = False) -> list[Edit]:
    """So many ranks hold one copy of the model instead of ``before``. ``in_copies``: there are several copies (HSDP),
    among which gradients are reduced once more."""
    return [("shard_over", job.number, before, after, in_copies)] if job.whole_steps else []


def keep(job: Job) -> list[Edit]:
    """The edits that reshard_after_forward=False makes."""
    return _if_possible(job, ("keep_gathered", job.number))


def reshard(job: Job) -> list[Edit]:
    """FSDP2's own choice: parameters are freed after the forward of every module but the outermost one."""
    names = {job.modules[path] for path, _ in job.stream.owners(job.select(kind=Kind.ALL_GATHER))}
    inner = [name for name in names if any(lies_in(name, other) for other in names)]
    return _if_possible(job, ("reshard", *_tables(job, sorted(inner)), job.number))
