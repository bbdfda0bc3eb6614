"""The nodes of a tree of reports, in which siblings with equal subtrees whose names are numbers are one node: the layers
of a model. ``tree`` and ``flame`` draw them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from modscope._categories import TOTAL, Sums
from modscope._groups import Group, describe_numbers, group_modules, is_number
from modscope._summary import Report
from modscope._text import label, natural_key


class Node(NamedTuple):
    """A module, or several whose subtrees are equal and whose names are numbers. Figures are of all of them."""

    name: str
    is_module: bool
    own: Sums
    subtree: Sums
    children: list[Node]
    modules: int
    """How many modules this is: the equal ones, times those of the groups above."""
    is_group: bool
    report: Report
    """Of the first of them."""


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


def make_nodes(reports: list[Report], count: int, contents: Contents | None) -> list[Node]:
    """The nodes of siblings, each ``count`` times, largest first. With ``contents``, siblings whose names are numbers
    and whose subtrees are equal become one node."""
    if contents:
        groups = group_modules(reports, lambda report: str(report["name"]), contents.group_key)
    else:
        groups = [Group(str(report["name"]), [report]) for report in reports]
    nodes = [_node_of(group, count * len(group.members), contents) for group in groups]
    return sorted(nodes, key=lambda node: (-node.subtree[TOTAL], natural_key(node.name)))


def _node_of(group: Group[Report], count: int, contents: Contents | None) -> Node:
    one, is_group = group.members[0], len(group.members) > 1
    are_numbers = is_group and is_number(one["name"])
    name = describe_numbers(int(member["name"]) for member in group.members) if are_numbers else label(group.name)
    own, subtree = _multiplied(one["own"], count), _multiplied(one["subtree"], count)
    children = make_nodes(one["children"], count, contents)
    return Node(name, one["fqn"] is not None, own, subtree, children, count, is_group, one)
