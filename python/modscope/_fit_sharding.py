"""FSDP2 as edits of the events of one process: sharded parameters, gradients and state, and the buffers of its gathers and
reductions. Each layer is sharded on its own (_fit_units.py), and the rest with the outermost module. Needs no torch.

Of a group over W ranks, with N bytes of parameters, one block each, before and after the edits:
    forward    the gathered bytes, N in one block, until the next group has gathered; its parameters while it runs
    backward   its parameters, the next group's gathered bytes, its gradients where they were; then, until the next group has
               ended, the input of its reduction, N in one block, and until gradients were freed the output, N / W
Gathered bytes and outputs are on streams of their own, which share no memory with others.

With a MixedPrecisionPolicy of half precision, N is half of that, and what autocast copies in half precision is not: the weights in forward,
and their gradients in backward.
"""

from __future__ import annotations

from typing import NamedTuple

from modscope._categories import KINDS, Category, Kind
from modscope._fit_casts import find_casts
from modscope._fit_job import Call, Edit, Job
from modscope._fit_units import find_units

_GATHER, _REDUCE = 1 << 40, 2 << 40  # the numbers of streams that no program has


class _Block(NamedTuple):
    number: int
    bytes: int
    add: int
    drop: int | None


class _Group(NamedTuple):
    """Parameters that are gathered and reduced together."""

    parameters: list[int]
    """The bytes of each."""
    gradients: list[_Block]
    """Of all steps."""

    @property
    def bytes(self) -> int:
        return sum(self.parameters)

    def halved(self) -> _Group:
        """In half precision."""
        gradients = [block._replace(bytes=-(-block.bytes // 2)) for block in self.gradients]
        return _Group([-(-bytes // 2) for bytes in self.parameters], gradients)


class _Run(NamedTuple):
    """One forward of a module that is sharded as a group."""

    group: _Group
    call: Call


def uses_fsdp2(job: Job) -> bool:
    """Whether the parameters are sharded already: the capture then has their kinds."""
    return bool(job.stream.sum(_shards(job))[2])


def _shards(job: Job) -> tuple[int, int, int | None, int, int, int]:
    return (*job.select(), 1 << 1 + KINDS.index(Kind.SHARDED_PARAM))


def held_parameters(job: Job) -> tuple[int, int, int]:
    """The bytes of parameters that are there all the time, those of the largest, and their count: of a rank of FSDP2 its
    shards, without what it gathers."""
    return job.stream.sum(_shards(job) if uses_fsdp2(job) else job.select(Category.PARAM))


def edits(job: Job, ranks: int, mixed: bool = False, keeps: bool = False) -> list[Edit]:
    """``mixed``: with a MixedPrecisionPolicy; ``keeps``: with reshard_after_forward=False. Empty: it has no parameters, or no steps that show when
    they are used; or it is ``mixed``, and the job does not use autocast."""
    units = find_units(job)
    whole = _groups_of(job, [name for name, _ in units])
    casts = find_casts(job) if mixed and job.whole_steps else []
    if not job.whole_steps or not any(group.parameters for group in whole) or mixed and not casts:
        return []
    *parts, rest = [group.halved() for group in whole] if mixed else whole
    found: list[Edit] = [("scale", job.select(category), 1, ranks) for category in (Category.PARAM, Category.OPT)]
    found.append(("scale", job.select(Category.TEMP, phases=["optimizer"]), 1, ranks))
    runs = sorted(
        (_Run(group, call) for group, (_, calls) in zip(parts, units) for call in calls), key=lambda run: run.call.begin
    )
    found += [("resize", number, 0) for number in casts]
    sharding = _Sharding(job, ranks, mixed, keeps, found)
    for event, number, _ in job.steps[: job.whole_steps]:
        end = next((begin for begin, _, _ in job.steps if begin > event), job.stream.events)
        root = next(
            (call for call in job.calls if call.parent is None and call.step == number and call.backward is not None),
            None,
        )
        sharding.step([run for run in runs if run.call.step == number], None if root is None else _Run(rest, root), end)
    sharding.scale_others(whole)
    return found


def _groups_of(job: Job, names: list[str]) -> list[_Group]:
    """That of each name, and that of everything else."""
    found = [_Group([], []) for _ in range(len(names) + 1)]

    def group_of(path: int) -> _Group:
        fqn = job.modules[path] + "."
        return found[next((i for i, name in enumerate(names) if fqn.startswith(name + ".")), len(names))]

    for _, bytes, _, _, path in job.stream.select(job.select(Category.PARAM)):
        group_of(path).parameters.append(bytes)
    for number, bytes, add, drop, path in job.stream.select(job.select(Category.GRAD)):
        group_of(path).gradients.append(_Block(number, bytes, add or 0, drop))
    return found


class _Sharding:
    """Adds the edits of one step after another to ``found``."""

    def __init__(self, job: Job, ranks: int, mixed: bool, keeps: bool, found: list[Edit]) -> None:
        self._job, self._ranks, self._mixed, self._keeps, self._found = job, ranks, mixed, keeps, found
        self._reduced: set[int] = set()
        """Blocks of gradients that were given another end."""

    def _insert(self, begin: int, until: int | None, bytes: int, stream: int = 0) -> None:
        if bytes and (until is None or begin < until):
            self._found.append(("insert", begin, until, bytes, self._job.number, stream))

    def _gather(self, begin: int, until: int, group: _Group) -> None:
        if self._mixed:  # this rank's part is copied in half precision first
            self._insert(begin, begin + 1, -(-group.bytes // self._ranks), _GATHER)
        self._insert(begin, until, group.bytes, _GATHER)

    def _insert_parameters(self, begin: int, until: int, group: _Group) -> None:
        for bytes in group.parameters:
            self._insert(begin, until, bytes)

    def step(self, runs: list[_Run], root: _Run | None, end: int) -> None:
        """``root``: the outermost module with the rest of the parameters; ``end``: the event that begins the next step."""
        nodes = sorted((run for run in runs if run.call.backward is not None), key=lambda run: run.call.backward or 0)
        last = self._last_gradient(
            [run.group for run in (*runs, *([root] if root else []))], runs[0].call.begin if runs else 0, end
        )
        if root is not None:
            first = runs[0].call.begin if runs else root.call.begin
            self._gather(root.call.begin, first + 1, root.group)
            self._insert_parameters(root.call.begin, last, root.group)
        self._forward(runs, end)
        self._backward(nodes, last)
        if root is not None and root.call.backward is not None:
            self._reduce(root.group, root.call.backward, last, last + 1)

    def _last_gradient(self, groups: list[_Group], begin: int, end: int) -> int:
        """The event after which the last gradient of a step was allocated: about the end of backward."""
        return (
            max(
                (block.add for group in groups for block in group.gradients if begin <= block.add < end),
                default=end - 1,
            )
            + 1
        )

    def _forward(self, runs: list[_Run], end: int) -> None:
        for at, (group, call) in enumerate(runs):
            ends = call.end if call.end is not None else end
            following = runs[at + 1].call.begin + 1 if at + 1 < len(runs) else ends
            self._gather(call.begin, following, group)
            if not self._keeps or call.backward is None:
                self._insert_parameters(call.begin, ends, group)

    def _backward(self, nodes: list[_Run], end: int) -> None:
        """A group ends one event before the next one begins: its parameters are freed before its gradients are copied."""
        begins = [run.call.backward or 0 for run in nodes]
        ends = [max(following - 1, begin + 1) for begin, following in zip(begins, [*begins[1:], end])]
        for at, (group, call) in enumerate(nodes):
            if at == 0 and not self._keeps:
                self._gather(begins[0], begins[0] + 1, group)
            if at + 1 < len(nodes) and not self._keeps:
                self._gather(begins[at], begins[at + 1], nodes[at + 1].group)
            self._insert_parameters(call.begin if self._keeps else begins[at], ends[at], group)
            self._reduce(group, begins[at], ends[at], ends[at + 1] if at + 1 < len(nodes) else end)

    def _reduce(self, group: _Group, begin: int, end: int, until: int) -> None:
        """The gradients that were allocated since ``begin`` are copied at ``end``; that copy is freed at ``until``."""
        gradients = [
            block for block in group.gradients if begin <= block.add <= end and (block.drop is None or block.drop > end)
        ]
        if not gradients:
            return
        self._reduced.update(block.number for block in gradients)
        self._found += [("end", block.number, end + 1) for block in gradients]
        bytes = sum(block.bytes for block in gradients)
        drops = [block.drop for block in gradients]
        self._insert(end, until, bytes)
        reduced = -(-bytes // self._ranks)
        if self._mixed:  # the output is copied in the parameters' own precision
            self._found += [("resize", block.number, block.bytes) for block in gradients]
            self._insert(end, end + 1, reduced, _REDUCE)
            reduced *= 2
        self._insert(end, None if None in drops else max(drop or 0 for drop in drops), reduced, _REDUCE)

    def scale_others(self, groups: list[_Group]) -> None:
        """Gradients that were kept from step to step."""
        others = [block for group in groups for block in group.gradients if block.number not in self._reduced]
        self._found += [("resize", block.number, -(-block.bytes // self._ranks)) for block in others]
