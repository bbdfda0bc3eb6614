"""Levers that checkpoint modules: groups of siblings, the fewest of them that make the job fit. Needs no torch."""

from __future__ import annotations

import bisect
import functools

from modscope._fit.levers.registry import CHECKPOINT, Case, Lever, Tried, combine, lever, longer_step
from modscope._fit.siblings import Siblings, outermost
from modscope._read.groups import lies_in


def checkpoint(case: Case, siblings: Siblings, count: int) -> Lever:
    """The first ``count`` members of the group are checkpointed."""
    calls = siblings.first(count)
    return Lever(
        (CHECKPOINT,),
        f"checkpoint {siblings.describe(count)}",
        [("checkpoint", call.number) for call in calls],
        (longer_step(case.job.share_of_step(calls), case.job.has_gpu_times),),
        modules=tuple(name for name, _ in siblings.members[:count]),
        can_be_verified=True,
    )


def checkpoint_all(case: Case) -> list[Lever]:
    """For each group that lies in no other one, a lever that checkpoints all its members."""
    return [checkpoint(case, each, len(each.members)) for each in outermost(case.groups)]


def fewest(case: Case, siblings: Siblings, *others: Lever, capacity: int | None = None) -> Tried | None:
    """The fewest first members of the group whose checkpoints make it fit, with other levers; None: no count of them
    does. More checkpoints allocate less, but may reserve more: bisection skips counts that allocate too much, and each
    count after them is tried. ``capacity``: to search for another one than the GPU's."""
    room = case.capacity if capacity is None else capacity

    @functools.cache
    def attempt(count: int) -> Tried:
        made = combine(*others, checkpoint(case, siblings, count))
        outcome = case.job.replay(made.edits, made.conf, room)
        return Tried(made, outcome, lambda lower: fewest(case, siblings, *others, capacity=lower))

    counts = range(1, len(siblings.members) + 1)
    first = bisect.bisect_left(counts, True, key=lambda count: attempt(count).outcome.allocated <= room)
    return next((tried for tried in map(attempt, counts[first:]) if tried.outcome.fits_at_once), None)


@lever(CHECKPOINT)
def checkpoints(case: Case) -> list[Tried]:
    """For each group, checkpoint the fewest modules that make it fit, and all. A group in another one is listed if it
    needs less. All groups together are listed where several do not lie in each other."""
    rows: list[Tried] = []
    least: dict[str, int] = {}
    for siblings in case.groups:
        all_of = case.attempt(checkpoint(case, siblings, len(siblings.members)))
        around = [least[name] for name in least if lies_in(siblings.name, name)]
        least[siblings.name] = all_of.outcome.reserved
        if not case.helps(all_of) or any(reserved <= all_of.outcome.reserved for reserved in around):
            continue
        few = fewest(case, siblings)
        rows += [few] if few and few.lever.modules != all_of.lever.modules else []
        rows.append(all_of)
    every = checkpoint_all(case)
    return [*rows, case.attempt(combine(*every))] if len(every) > 1 else rows
