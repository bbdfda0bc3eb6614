"""Which modules of a job on one GPU FSDP2 would shard each on its own: the layers, by their names and parameters. Needs no torch."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from modscope._categories import Category
from modscope._fit_job import Call, Job
from modscope._groups import group_modules, is_number

_MOST_OF_GROUP = 0.5
"""Of the parameters of a group: if one member has more, the layers are not these modules but those in them, as where a model is one of two parts of
an nn.Sequential."""

Unit = tuple[str, list[Call]]
"""The name of a module, and its calls."""


class _Layers(NamedTuple):
    """Modules whose names differ only in numbers."""

    units: list[Unit]

    def lie_in(self, other: _Layers) -> bool:
        return any(self.units[0][0].startswith(name + ".") for name, _ in other.units)


def find_units(job: Job) -> list[Unit]:
    """Numbered modules that have parameters and lie in no others, such as GPT.h.0 to GPT.h.11; empty: FSDP2 would shard the model as a whole."""
    bytes_of = _bytes_by_module(job)
    groups = _numbered(job, bytes_of)
    chosen = _outermost(groups)
    while (
        large := next((each for each in chosen if _is_uneven(each, bytes_of) and _inside(each, groups)), None)
    ) is not None:
        chosen.remove(large)
        chosen += _outermost(_inside(large, groups))
    return _with_backwards(job, [unit for each in chosen for unit in each.units])


def _bytes_by_module(job: Job) -> dict[str, int]:
    """The parameters of each module and those in it."""
    found: dict[str, int] = {}
    for _, bytes, _, _, path in job.stream.select(job.select(Category.PARAM)):
        name = job.modules[path]
        while name:
            found[name] = found.get(name, 0) + bytes
            name = name.rpartition(".")[0]
    return found


def _numbered(job: Job, bytes_of: dict[str, int]) -> list[_Layers]:
    by_name: dict[str, list[Call]] = {}
    for call in job.calls:
        name = job.modules[call.path]
        if bytes_of.get(name) and is_number(name.rpartition(".")[2]):
            by_name.setdefault(name, []).append(call)
    groups = group_modules(by_name.items(), lambda item: item[0])
    return [_Layers(group.members) for group in groups if len(group.members) > 1]


def _outermost(groups: list[_Layers]) -> list[_Layers]:
    return [each for each in groups if not any(each.lie_in(other) for other in groups)]


def _inside(outer: _Layers, groups: list[_Layers]) -> list[_Layers]:
    return [each for each in groups if each.lie_in(outer)]


def _is_uneven(layers: _Layers, bytes_of: dict[str, int]) -> bool:
    sizes = [bytes_of[name] for name, _ in layers.units]
    return max(sizes) > _MOST_OF_GROUP * sum(sizes)


# ---- when backward begins ----


def _with_backwards(job: Job, units: list[Unit]) -> list[Unit]:
    """Of a call that keeps nothing itself, such as that of nn.Linear, whose input is another call's, nothing was freed in backward that would tell when
    that begins: it begins with the first block that the module allocates there."""
    if all(call.backward is not None for _, calls in units for call in calls):
        return units
    added = _added_in_backward(job, {name for name, _ in units})
    steps = [event for event, _, _ in job.steps]

    def complete(name: str, call: Call) -> Call:
        if call.backward is not None or call.end is None:
            return call
        of_name, following = added.get(name, []), bisect.bisect_right(steps, call.begin)
        at = bisect.bisect_right(of_name, call.end)
        end = steps[following] if following < len(steps) else job.stream.events
        return call._replace(backward=of_name[at]) if at < len(of_name) and of_name[at] < end else call

    return [(name, [complete(name, call) for call in calls]) for name, calls in units]


def _added_in_backward(job: Job, names: set[str]) -> dict[str, list[int]]:
    """The events, in order, that allocate a block in the backward of each of these modules, or of one in it."""
    found: dict[str, list[int]] = {}
    units = [_unit_of(module, names) for module in job.modules]
    for _, _, add, _, path in job.stream.select(job.select(phases=["backward"])):
        if add is not None and units[path]:
            found.setdefault(units[path], []).append(add)
    return {name: sorted(events) for name, events in found.items()}


def _unit_of(module: str, names: set[str]) -> str:
    while module and module not in names:
        module = module.rpartition(".")[0]
    return module
