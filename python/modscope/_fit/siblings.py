"""Groups of sibling modules that can be checkpointed: GPT2.h.0 to GPT2.h.11 are GPT2.h.*. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple

from modscope._fit.job import Job
from modscope._read.groups import describe_some, group_modules, is_number, lies_in
from modscope._read.types import Call

_LEAST_KEPT = 0.02  # of what is reserved: groups that keep less for backward are not tried
_MOST_GROUPS = 4


class Siblings(NamedTuple):
    """Modules whose names differ only in numbers, in the order of their first calls, each with its calls."""

    name: str
    members: list[tuple[str, list[Call]]]

    def first(self, count: int) -> list[Call]:
        return [call for _, calls in self.members[:count] for call in calls]

    def describe(self, count: int) -> str:
        """ "GPT2.h.*", "GPT2.h.{0-5} (6 of 12)", or "GPT2.h.0" """
        most = len(self.members)
        if count == most:
            return self.name
        if not self.name.endswith(".*") or self.name.count("*") > 1:
            return f"{self.name} (the first {count} of {most})"
        text = describe_some(self.name, [int(name.rpartition(".")[2]) for name, _ in self.members[:count]])
        return f"{text} ({count} of {most})" if count > 1 else text


def find_siblings(job: Job, reserved: int) -> list[Siblings]:
    """The groups whose members keep most for backward, outermost first."""
    if not job.whole_steps:
        return []
    by_path: dict[int, list[Call]] = {}
    parents = {call.parent for call in job.calls}
    for call in job.calls:
        inside = call.number in parents and call.begin < job.end_of_whole_steps
        if inside and call.backward is not None and call.kept and is_number(job.modules[call.path].rpartition(".")[2]):
            by_path.setdefault(call.path, []).append(call)
    named = [(job.modules[path], calls) for path, calls in by_path.items()]
    found = []
    for group in group_modules(named, lambda item: item[0]):
        siblings = Siblings(group.name, group.members)
        if len(group.members) > 1 and _kept_in_a_step(siblings) >= _LEAST_KEPT * reserved:
            found.append(siblings)
    found.sort(key=lambda each: each.name.count("."))
    return found[:_MOST_GROUPS]


def _kept_in_a_step(siblings: Siblings) -> int:
    kept: dict[int, int] = {}
    for call in siblings.first(len(siblings.members)):
        kept[call.step] = kept.get(call.step, 0) + call.kept
    return max(kept.values(), default=0)


def outermost(groups: list[Siblings]) -> list[Siblings]:
    """The groups that lie in no other one: the layers of an encoder and of a decoder, but not the parts of a layer."""
    return [each for each in groups if not any(lies_in(each.name, other.name) for other in groups)]
