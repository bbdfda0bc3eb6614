"""A run in one sentence: what the peak is and which modules own it, or which allocation failed and what was allocated
then. The page and the notebook begin with it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from modscope._read.categories import TOTAL, Sums, parts_of
from modscope._read.groups import group_modules, is_number
from modscope._read.load import Capture
from modscope._read.summary import CaptureReport, MomentReport, OutOfMemory
from modscope._read.text import at_least, clean, describe_moment, label, percent, shorten_middle, size

Sentence = list[tuple[str, bool]]
"""Parts of a text, and whether each is emphasized."""

_MODULES = 3
_NAME_COLUMNS = 80
_MOST_PARTS = 64  # No more parts of a module's name are looked at.
_MOMENT_COLUMNS = 160


class _OwnerGroup:
    """A module, or several whose names differ only in numbers, with the bytes that they hold themselves."""

    def __init__(self, name: str, members: list[tuple[str, Sums]]) -> None:
        self.name = name
        self.count = len(members)
        self.bytes = sum(sums[TOTAL] for _, sums in members)


class _Alike:
    """Which modules whose own names are numbers are alike. The layers of an ``nn.ModuleList`` have modules of the same
    names in them; those of an ``nn.Sequential`` need not be alike, so without modules in them they must hold equal
    bytes."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._children: dict[str, set[str]] = {}
        for fqn in modules:
            parts = fqn.split(".")[:_MOST_PARTS]
            for i in range(1, len(parts)):
                self._children.setdefault(".".join(parts[:i]), set()).add(parts[i])

    def key(self, item: tuple[str, Sums]) -> Hashable:
        fqn, sums = item
        if not is_number(fqn.rpartition(".")[2]):
            return None
        children = self._children.get(fqn)
        return frozenset(children) if children else tuple(sums.values())


def _largest_owners(modules: Mapping[str, Sums]) -> list[_OwnerGroup]:
    groups = group_modules(modules.items(), lambda item: item[0], _Alike(modules).key)
    owners = [_OwnerGroup(group.name, group.members) for group in groups]
    return sorted(owners, key=lambda owner: -owner.bytes)[:_MODULES]


def describe_held(categories: Sums, modules: Mapping[str, Sums]) -> Sentence:
    """Say what is held, and by which modules: "58% Activation, 24% Optstate. Most of it is in ..."."""
    total = categories[TOTAL]
    parts = sorted(parts_of(categories).items(), key=lambda part: -part[1])
    shares = [f"{percent(value, total)} {word}" for word, value in parts if 200 * value >= total]
    text: Sentence = [(", ".join(shares) + ". ", False)]
    largest = _largest_owners(modules)
    owners = [owner for owner in largest if 100 * owner.bytes >= total] or largest[:1]
    if not owners:
        return text
    is_most = 2 * sum(owner.bytes for owner in owners) > total
    text.append(("Most of it is in " if is_most else "The largest owners are ", False))
    for i, owner in enumerate(owners):
        text.append((" and " if i and i == len(owners) - 1 else ", " if i else "", False))
        text.append((shorten_middle(label(owner.name), _NAME_COLUMNS), True))
        several = f" in {owner.count} modules" if owner.count > 1 else ""
        text.append((f" ({size(owner.bytes)}{several})", False))
    return [*text, (". ", False)]


def _moment_words(moment: MomentReport) -> str:
    return describe_moment(moment["step"], moment["phase"], moment["module"], moment["time"], _MOMENT_COLUMNS)


def _describe_peak(summary: CaptureReport, modules: Mapping[str, Sums]) -> Sentence:
    main = summary["devices"][0]
    peak = main["peak"]
    text: Sentence = [
        ("The peak is ", False),
        (at_least(summary["is_lower_bound"], size(peak["bytes"])), True),
        (f" on {clean(main['device'])}, ", False),
        (_moment_words(peak), False),
        (": ", False),
        *describe_held(main["categories"], modules),
    ]
    if peak["reserved"] > peak["bytes"]:
        more = size(peak["reserved"] - peak["bytes"])
        text.append((f"The allocator had reserved {size(peak['reserved'])}, {more} more.", False))
    return text


def _describe_oom(summary: CaptureReport, oom: OutOfMemory, categories: Sums, modules: Mapping[str, Sums]) -> Sentence:
    times = "" if summary["oom_count"] == 1 else f" {summary['oom_count']} times, the last time"
    text: Sentence = [
        (f"Out of memory{times}: ", True),
        ("an allocation of ", False),
        (size(oom["requested"]), True),
        (f" failed on {clean(str(oom['device']))}, ", False),
        (_moment_words(oom), False),
        (", when ", False),
        (at_least(summary["is_lower_bound"], size(oom["held"])), True),
        (" was allocated", False),
    ]
    if oom["reserved"]:
        text.append((f" and {size(oom['reserved'])} reserved", False))
    text.append((": " if categories[TOTAL] else ". ", False))
    if categories[TOTAL]:
        text += describe_held(categories, modules)
    if summary["devices"]:
        peak = summary["devices"][0]
        text.append((f"The peak was {size(peak['peak']['bytes'])} on {clean(peak['device'])}.", False))
    return text


def describe_run(summary: CaptureReport, capture: Capture) -> Sentence:
    """The sentence of a run that held some memory; ``summary`` is ``summarize``'s."""
    oom = summary["last_oom"]
    snapshot = capture.snapshot("oom" if oom else "peak")
    device = str(oom["device"]) if oom else summary["devices"][0]["device"]
    modules = snapshot.by_module().get(device, {})
    return _describe_oom(summary, oom, snapshot.totals[device], modules) if oom else _describe_peak(summary, modules)
