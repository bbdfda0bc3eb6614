"""Levers that checkpoint modules: groups of siblings, the fewest of them that make the job fit. Needs no torch."""

from __future__ import annotations

import bisect
import functools

from modscope._fit.levers.registry import CHECKPOINT, Case, Lever, Tried, combine, lever, longer_step
from modscope._fit.siblings import Siblings, outermost
from modscope._plan.keeping import NOTHING, Operator, Results, find_sets
from modscope._read.groups import lies_in
from modscope._read.types import Call

_LESS = 0.9  # of the time with whole modules: a lever that keeps results takes less than that
_DEAR = 0.3  # of a recomputation: results that save less are not kept


def checkpoint(case: Case, siblings: Siblings, count: int, results: Results = NOTHING) -> Lever:
    """The first ``count`` members of the group are checkpointed, and keep these results."""
    calls = siblings.first(count)
    operators = {call.number: operators_of(case, call) if results.at else [] for call in calls}
    kept = {number: sum(of_call[at].nanoseconds for at in results.at) / 1e9 for number, of_call in operators.items()}
    modules = tuple(name for name, _ in siblings.members[:count])
    return Lever(
        (CHECKPOINT,),
        f"checkpoint {siblings.describe(count)}" + (f", keep {results.label}" if results.at else ""),
        [
            ("checkpoint", number, *([tuple(of_call[at].number for at in results.at)] if results.at else []))
            for number, of_call in operators.items()
        ],
        (longer_step(case.job.share_of_step(calls, kept), case.job.has_gpu_times),),
        modules=modules,
        can_be_verified=True,
        keep=dict.fromkeys(modules, results.places) if results.at else {},
    )


def operators_of(case: Case, call: Call) -> list[Operator]:
    return [Operator(*each) for each in case.job.stream.operators(call.number, case.job.number)]


def dear_results(case: Case, siblings: Siblings) -> Results | None:
    """The results that save most of a recomputation for their bytes, if all members of the group can keep them. None:
    the capture does not have operators, or these save too little."""
    if not case.job.stream.has_operators:
        return None
    calls = siblings.first(len(siblings.members))
    of_calls = [operators_of(case, call) for call in calls]
    sets = find_sets(of_calls[-1], calls[-1].kept)
    if not sets or any([each.name for each in other] != [each.name for each in of_calls[-1]] for other in of_calls):
        return None
    time = sum(each.nanoseconds for each in of_calls[-1] if each.is_recomputed)
    saved = sum(of_calls[-1][at].nanoseconds for at in sets[0].at)
    return sets[0] if saved >= _DEAR * time else None


def checkpoint_all(case: Case) -> list[Lever]:
    """For each group that lies in no other one, a lever that checkpoints all its members."""
    return [checkpoint(case, each, len(each.members)) for each in outermost(case.groups)]


def fewest(
    case: Case, siblings: Siblings, *others: Lever, capacity: int | None = None, results: Results = NOTHING
) -> Tried | None:
    """The fewest first members of the group whose checkpoints make it fit, with other levers; None: no count of them
    does. More checkpoints allocate less, but may reserve more: bisection skips counts that allocate too much, and each
    count after them is tried. ``capacity``: to search for another one than the GPU's."""
    room = case.capacity if capacity is None else capacity

    @functools.cache
    def attempt(count: int) -> Tried:
        made = combine(*others, checkpoint(case, siblings, count, results))
        outcome = case.job.replay(made.edits, made.conf, room)
        return Tried(made, outcome, lambda lower: fewest(case, siblings, *others, capacity=lower, results=results))

    counts = range(1, len(siblings.members) + 1)
    first = bisect.bisect_left(counts, True, key=lambda count: attempt(count).outcome.allocated <= room)
    return next((tried for tried in map(attempt, counts[first:]) if tried.outcome.fits_at_once), None)


@lever(CHECKPOINT)
def checkpoints(case: Case) -> list[Tried]:
    """For each group, checkpoint the fewest modules that make it fit, and all, and the fewest that keep what takes most
    of the time of their recomputation. A group in another one is listed if it needs less. All groups together are
    listed where several do not lie in each other."""
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
        if (results := dear_results(case, siblings)) is not None:
            few = fewest(case, siblings, results=results)
            kept = few or case.attempt(checkpoint(case, siblings, len(siblings.members), results))
            whole = checkpoint(case, siblings, len(kept.lever.modules))
            rows += [kept] if kept.lever.time < _LESS * whole.time else []  # not where the program is as slow
    every = checkpoint_all(case)
    return [*rows, case.attempt(combine(*every))] if len(every) > 1 else rows
