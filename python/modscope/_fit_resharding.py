"""Other arguments of fully_shard as edits of the events of a rank of FSDP2, whose blocks have kinds: whether modules are resharded after their
forward, and how many ranks hold one copy of the model. Needs no torch."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from modscope._categories import KINDS, Category, Kind
from modscope._fit_casts import ROUNDED, StreamBlock
from modscope._fit_job import Call, Edit, Job
from modscope._load import Capture

_BACKWARD = ("backward", "recompute")


def _selection(job: Job, kind: Kind, *phases: str) -> tuple[int, int, int | None, int, int, int]:
    return (*job.select(phases=phases), 1 << 1 + KINDS.index(kind))


def _of_kind(job: Job, kind: Kind, *phases: str) -> list[StreamBlock]:
    """In the order in which they were allocated."""
    rows = job.stream.select(_selection(job, kind, *phases))
    return sorted(
        (StreamBlock(number, bytes, add or 0, drop, path) for number, bytes, add, drop, path in rows),
        key=lambda block: block.add,
    )


def ranks_of_a_copy(capture: Capture, world: int) -> int:
    """How many ranks hold one copy of what is sharded, by the groups that gather and reduce. 0: they differ, as with tensor parallelism."""
    sizes = {group.size for kind, group, *_ in capture.collective_totals() if kind in ("all_gather", "reduce_scatter")}
    return sizes.pop() if len(sizes) == 1 else 0 if sizes else world


def is_resharded(job: Job) -> bool:
    """Whether modules are resharded after their forward: then their parameters are gathered again in backward."""
    return bool(_of_kind(job, Kind.UNSHARDED_PARAM, *_BACKWARD))


def keep(job: Job) -> list[Edit]:
    """reshard_after_forward=False: what is gathered in forward stays until the end of the module's backward."""
    again = {block.number for block in _of_kind(job, Kind.UNSHARDED_PARAM, *_BACKWARD)}
    before: dict[tuple[int, int], list[StreamBlock]] = {}
    edits: list[Edit] = []
    for block in _of_kind(job, Kind.UNSHARDED_PARAM):
        key = block.path, block.bytes
        if block.number not in again:
            before.setdefault(key, []).append(block)
        elif before.get(key):
            edits += [("end", before[key].pop(0).number, block.drop), ("resize", block.number, 0)]
    return (
        edits + [("resize", block.number, 0) for block in _of_kind(job, Kind.ALL_GATHER, *_BACKWARD)] if edits else []
    )


# ---- other numbers of ranks ----


def over(job: Job, before: int, after: int, in_copies: bool = False) -> list[Edit]:
    """So many ranks hold one copy of the model instead of ``before``: what each has of parameters, gradients and state becomes smaller or larger. What
    is gathered and reduced stays. ``in_copies``: there are several copies (HSDP), among which gradients are reduced once more."""
    if not job.whole_steps:
        return []
    shards = [
        _selection(job, Kind.SHARDED_PARAM),
        _selection(job, Kind.SHARDED_GRAD),
        job.select(Category.OPT),
        job.select(Category.TEMP, phases=["optimizer"]),
    ]
    return [*(("scale", selection, before, after) for selection in shards), *_copies(job, before, after, in_copies)]


def _copies(job: Job, before: int, after: int, in_copies: bool) -> list[Edit]:
    """With a MixedPrecisionPolicy a rank's own part is copied in half precision before it is gathered, and the output of a reduction is copied in the
    gradients' own precision. That output is freed at once, but where copies of the model reduce it among them it stays until the end of backward,
    when the inputs of reductions are freed."""
    rows = job.stream.select(job.select(Category.ACT, Category.TEMP, Category.OTH))
    made = {add: (number, bytes) for number, bytes, add, *_ in rows}
    ends = sorted(block.drop for block in _of_kind(job, Kind.REDUCE_SCATTER) if block.drop is not None)
    steps = [event for event, _, _ in job.steps]
    edits: list[Edit] = []
    for gathered in _of_kind(job, Kind.ALL_GATHER):
        number = _made_before(made, gathered, -(-gathered.bytes // before))
        if number is not None:
            edits.append(("resize", number, -(-gathered.bytes // after)))
    for gradient in _of_kind(job, Kind.SHARDED_GRAD):
        number = _made_before(made, gradient, -(-gradient.bytes // 2))
        if number is None:
            continue
        following = bisect.bisect_right(steps, gradient.add)
        last = bisect.bisect_left(ends, steps[following]) - 1 if following < len(steps) else len(ends) - 1
        until = ends[last] if in_copies and last >= 0 and ends[last] > gradient.add else gradient.add + 1
        edits += [("resize", number, -(-gradient.bytes * before // (2 * after))), ("end", number, until)]
    return edits


def _made_before(made: dict[int | None, tuple[int, int]], block: StreamBlock, bytes: int) -> int | None:
    """The number of a block of so many bytes that was allocated right before another one; in between the allocator may reserve memory, which is an
    event too. ``made``: the number and the bytes of blocks by the event that allocated them."""
    for add in range(block.add - 1, block.add - 4, -1):
        number, of_number = made.get(add, (0, 0))
        if of_number and abs(of_number - bytes) <= ROUNDED:
            return number
    return None


# ---- resharding ----


class _Use(NamedTuple):
    """A forward of a module of FSDP2, and the parameters that it gathered."""

    parameters: list[StreamBlock]
    call: Call

    @property
    def backward(self) -> int:
        return self.call.backward or 0


def reshard(job: Job) -> list[Edit]:
    """FSDP2's own choice: parameters are freed after the forward of every module but the outermost one, and gathered again in backward, those of
    the next module while one runs."""
    gathers = _of_kind(job, Kind.ALL_GATHER)
    names = {job.modules[block.path] for block in gathers}
    inner = {name for name in names if any(name.startswith(other + ".") for other in names)}
    stream = job.stream.stream_of(gathers[0].number) if gathers else 0
    edits: list[Edit] = []
    before: _Use | None = None
    for use in sorted(_uses(job, inner), key=lambda use: use.backward):
        # The first one of a backward is not gathered in advance.
        since = before.backward if before and before.backward > (use.call.end or 0) else use.backward
        gathered = sum(block.bytes for block in use.parameters)
        edits.append(("insert", since, use.backward + 1, gathered, job.number, stream))
        for block in use.parameters:
            edits.append(("end", block.number, use.call.end))
            edits.append(
                ("insert", use.backward, block.drop, block.bytes, job.number, job.stream.stream_of(block.number))
            )
        before = use
    return edits


def _uses(job: Job, names: set[str]) -> list[_Use]:
    """The calls of the named modules that keep their parameters from forward to backward."""
    uses: dict[str, list[_Use]] = {}
    for call in sorted(job.calls, key=lambda call: call.begin):
        if job.modules[call.path] in names and call.end is not None and call.backward is not None:
            uses.setdefault(job.modules[call.path], []).append(_Use([], call))
    for block in _of_kind(job, Kind.UNSHARDED_PARAM, "forward"):
        of_name = uses.get(_owner(job.modules[block.path], names), [])
        at = bisect.bisect_right(of_name, block.add, key=lambda use: use.call.begin) - 1
        if at < 0:
            continue
        call = of_name[at].call
        if block.add <= (call.end or 0) < (call.backward or 0) and (
            block.drop is None or block.drop > (call.backward or 0)
        ):
            of_name[at].parameters.append(block)
    return [use for of_name in uses.values() for use in of_name if use.parameters]


def _owner(fqn: str, names: set[str]) -> str:
    """The innermost of the modules in which it lies."""
    return max((name for name in names if f"{fqn}.".startswith(name + ".")), key=len, default="")
