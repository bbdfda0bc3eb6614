"""Groups of sibling modules that can be checkpointed: GPT2.h.0 to GPT2.h.11 are GPT2.h.*. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple

from modscope._fit_job import Call, Edit, Job
from modscope._groups import describe_numbers, group_modules, is_number

_LEAST_KEPT = 0.02  # of what is reserved: groups that keep less for backward are not tried
_MOST_GROUPS = 4


class Siblings(NamedTuple):
    """Modules of one group, in the order of their first calls, each with its calls."""

    name: str
    members: list[tuple[str, list[Call]]]

    def first(self, count: int) -> list[Call]:
        return [call for _, calls in self.members[:count] for call in calls]

    @property
    def calls(self) -> list[Call]:
        return self.first(len(self.members))

    def describe(self, count: int) -> str:
        """ "GPT2.h.*", "GPT2.h.{0-5} (6 of 12)", or "GPT2.h.0" """
        if count == len(self.members):
            return self.name
        around, _, last = self.name.rpartition(".")
        if last != "*" or "*" in around:
            return f"{self.name} (the first {count} of {len(self.members)})"
        numbers = describe_numbers(int(name.rpartition(".")[2]) for name, _ in self.members[:count]).replace(" ", "")
        return f"{around}.{{{numbers}}} ({count} of {len(self.members)})" if count > 1 else f"{around}.{numbers}"


def checkpoint(calls: list[Call]) -> list[Edit]:
    return [("checkpoint", call.number) for call in calls]


def find_siblings(job: Job, reserved: int) -> list[Siblings]:
    """The groups whose members keep most for backward, outermost first."""
    by_path: dict[int, list[Call]] = {}
    parents = {call.parent for call in job.calls}
    last = job.steps[job.whole_steps][0] if len(job.steps) > job.whole_steps else job.stream.events
    for call in job.calls:
        inside = call.number in parents and call.begin < last
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
    for call in siblings.calls:
        kept[call.step] = kept.get(call.step, 0) + call.kept
    return max(kept.values(), default=0)


def outermost(groups: list[Siblings]) -> list[Siblings]:
    """Those that lie in no other group: the layers of an encoder and of a decoder, but not the parts of a layer."""
    return [each for each in groups if not any(_lies_in(each.name, other.name) for other in groups)]


def _lies_in(name: str, other: str) -> bool:
    return name.startswith(other + ".")
