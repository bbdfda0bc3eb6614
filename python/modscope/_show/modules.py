"""Modules as the commands select and show them: those that ``--module`` names, and trees in which numbered siblings
with equal subtrees, the layers of a model, are one node."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from modscope._read.categories import TOTAL, Sums
from modscope._read.groups import Group, describe_numbers, group_modules, is_number, merge_numbers
from modscope._read.load import CaptureError
from modscope._read.summary import Report
from modscope._read.text import label, natural_key

# ---- modules that --module names ----

_MOST_PARTS = 64  # Modules whose names have more parts are not suggested.


Matches = Callable[[str], bool]


def every_module(fqn: str) -> bool:
    """What matches if nothing was asked for."""
    return True


def matcher(pattern: str) -> Matches:
    """Whether a module is one of those that the pattern names, or is inside one: ``GPT.blocks.*.mlp``,
    ``GPT.blocks.0-3, 7.mlp``."""
    if pattern.partition(" (")[0] == "Global":
        pattern = "Global"
    parts = list(map(_matcher_of_part, pattern.split(".")))

    def matches(fqn: str) -> bool:
        names = fqn.split(".")
        return len(names) >= len(parts) and all(matches(name) for matches, name in zip(parts, names))

    return matches


def _matcher_of_part(part: str) -> Matches:
    if re.fullmatch(r"[0-9]+(-[0-9]+)?(, ?[0-9]+(-[0-9]+)?)*", part) and not part.isdecimal():
        runs = [run.strip().partition("-") for run in part.split(",")]
        bounds = [(int(low), int(high or low)) for low, _, high in runs]
        return lambda name: (
            name.isdecimal()
            and name.isascii()
            and len(name) < 10
            and any(low <= int(name) <= high for low, high in bounds)
        )
    if "*" in part:
        expression = re.compile(".*".join(map(re.escape, part.split("*"))))
        return lambda name: expression.fullmatch(name) is not None
    return lambda name: name == part


def check(pattern: str, names: Iterable[str], device: str) -> Matches:
    """The matcher of a pattern. CaptureError, with names that are similar, if no module matches."""
    matches, names = matcher(pattern), set(names)
    if any(map(matches, names)):
        return matches
    known = {
        ".".join(parts[:count])
        for name in names
        for parts in [name.split(".")[:_MOST_PARTS]]
        for count in range(1, len(parts) + 1)
    }
    if "*" in pattern:
        known = set(map(merge_numbers, known))
    similar = difflib.get_close_matches(pattern, sorted(known), 3, 0.5)
    hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
    raise CaptureError(f"No module {pattern!r} holds anything on {device} at this moment.{hint}")


# ---- trees in which equal siblings are one node ----


class TreeNode(NamedTuple):
    """A module, or several whose subtrees are equal and whose names are numbers. Figures are of all of them."""

    name: str
    is_module: bool
    own: Sums
    subtree: Sums
    children: list[TreeNode]
    modules: int
    """How many modules this is: the equal ones, times those of the groups above."""
    is_group: bool
    report: Report
    """The report on the first of the equal modules."""


def _multiplied(sums: Sums, count: int) -> Sums:
    return {category: count * value for category, value in sums.items()}


class Contents:
    """A number for the content of each subtree: equal for subtrees that hold the same bytes under the same names."""

    def __init__(self, reports: list[Report]) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._of: dict[int, int] = {}  # by the id of the subtree's report
        for report in reports:
            self._number(report)

    def _number(self, report: Report) -> int:
        children = frozenset((child["name"], self._number(child)) for child in report["children"])
        content = tuple(report["own"].values()), children, report.get("matches")
        number = self._of[id(report)] = self._numbers.setdefault(content, len(self._numbers))
        return number

    def group_key(self, report: Report) -> Hashable:
        """Equal for those that become one node. A leaf of ``flame`` may be a module with its whole name."""
        is_numbered = is_number(report["name"]) or report.get("what") == "module"
        return ("content", self._of[id(report)]) if is_numbered else ("report", id(report))


def make_nodes(reports: list[Report], count: int, contents: Contents | None) -> list[TreeNode]:
    """The nodes of siblings, each ``count`` times, largest first. With ``contents``, siblings whose names are numbers
    and whose subtrees are equal become one node."""
    if contents:
        groups = group_modules(reports, lambda report: str(report["name"]), contents.group_key)
    else:
        groups = [Group(str(report["name"]), [report]) for report in reports]
    nodes = [_node_of(group, count * len(group.members), contents) for group in groups]
    return sorted(nodes, key=lambda node: (-node.subtree[TOTAL], natural_key(node.name)))


def _node_of(group: Group[Report], count: int, contents: Contents | None) -> TreeNode:
    one, is_group = group.members[0], len(group.members) > 1
    are_numbers = is_group and is_number(one["name"])
    name = describe_numbers(int(member["name"]) for member in group.members) if are_numbers else label(group.name)
    own, subtree = _multiplied(one["own"], count), _multiplied(one["subtree"], count)
    children = make_nodes(one["children"], count, contents)
    return TreeNode(name, one["fqn"] is not None, own, subtree, children, count, is_group, one)
