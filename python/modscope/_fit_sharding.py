"""FSDP2 as edits of the events of one process: sharded parameters, gradients and state, and the buffers of its gathers and
reductions. Each module of the first group of siblings is sharded, and the rest with the outermost module. Needs no torch.

Of a group with N bytes of parameters over W ranks:
    forward    the gathered bytes, N, from its own gather to the next group's; its parameters, N, while it runs
    backward   the same, its gradients, N, and while the next group runs its reduction's input, N
The gathered bytes are on a stream of their own, which shares no memory with others.
"""

from __future__ import annotations

from typing import NamedTuple

from modscope._categories import Category
from modscope._fit_job import Call, Edit, Job
from modscope._fit_modules import Siblings

_GATHER = 1 << 40  # the number of a stream that no program has


class _Run(NamedTuple):
    """One forward of a module that is sharded as a group."""

    bytes: int
    call: Call


def edits(job: Job, groups: list[Siblings], ranks: int) -> list[Edit]:
    """Empty: it has no parameters, or no steps that show when they are used."""
    parameters = job.stream.sum(job.select(Category.PARAM))[0]
    if not parameters or not job.whole_steps:
        return []
    found: list[Edit] = [("scale", job.select(kind), 1, ranks) for kind in (Category.PARAM, Category.GRAD, Category.OPT)]
    found.append(("scale", job.select(Category.TEMP, phases=["optimizer"]), 1, ranks))
    members = groups[0].members if groups else []
    own = {name: job.stream.sum(job.select(Category.PARAM, root=calls[0].path))[0] for name, calls in members}
    runs = sorted((_Run(own[name], call) for name, calls in members for call in calls), key=lambda run: run.call.begin)
    for event, number, _ in job.steps[: job.whole_steps]:
        found += _in_step(job, [run for run in runs if run.call.step == number], _end_of(job, event))
        rest = parameters - sum(own.values())
        if rest:
            found += _of_root(job, number, rest, _end_of(job, event))
    return found


def _end_of(job: Job, event: int) -> int:
    """The event that begins the next step."""
    return next((begin for begin, _, _ in job.steps if begin > event), job.stream.events)


def _of_root(job: Job, step: int, rest: int, end: int) -> list[Edit]:
    """The outermost module's parameters stay gathered until the end of backward, and so do their gradients: at most. Of two
    models in turn, such as a GAN's, the backward of one may run in the other's next step: then until the end of that one."""
    root = next((call for call in job.calls if call.parent is None and call.step == step and call.backward is not None), None)
    if root is None or root.backward is None:
        return []
    end = max(end, _end_of(job, root.backward))
    return [("insert", root.begin, end, rest, job.number), ("insert", root.backward, end, rest, job.number)]


def _in_step(job: Job, runs: list[_Run], end: int) -> list[Edit]:
    found: list[Edit] = []

    def insert(begin: int, until: int, bytes: int, stream: int = 0) -> None:
        if begin < until and bytes:
            found.append(("insert", begin, until, bytes, job.number, stream))

    for at, (bytes, call) in enumerate(runs):
        ends = call.end if call.end is not None else end
        following = runs[at + 1].call.begin if at + 1 < len(runs) else ends
        insert(call.begin, following, bytes, _GATHER)
        insert(call.begin, ends, bytes)
    nodes = sorted((run for run in runs if run.call.backward is not None), key=lambda run: run.call.backward or 0)
    begins = [run.call.backward or 0 for run in nodes] + [end]
    for at, (bytes, _) in enumerate(nodes):
        insert(begins[at], begins[at + 1], bytes)  # its parameters
        insert(begins[at], begins[at + 1], bytes)  # its gradients
        if at + 1 < len(nodes):
            insert(begins[at], begins[at + 1], nodes[at + 1].bytes, _GATHER)
            insert(begins[at + 1], begins[at + 2], bytes)  # its reduction's input
    return found
