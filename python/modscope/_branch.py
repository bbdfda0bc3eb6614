"""The tree of modules, by dotted names, with the bytes that each holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from modscope._categories import CATEGORIES, TOTAL, Raw, Sums, sums_of
from modscope._text import natural_key

# A name of more parts is split no further. No real name has so many; a forged one could have millions.
_MOST_PARTS = 64


class Branch(NamedTuple):
    """A module in the tree of dotted names, with the bytes that it holds itself and with all modules below it."""

    name: str
    fqn: str
    own: Sums
    subtree: Sums
    children: tuple[Branch, ...]
    """Largest first."""


class _Node:
    """A branch to which bytes are still added."""

    def __init__(self) -> None:
        self.own = [0] * len(CATEGORIES)
        self.children: dict[str, _Node] = {}


def _branch_of(name: str, fqn: str, node: _Node) -> Branch:
    children = _branches_below(node, fqn + ".")
    subtree = node.own.copy()
    for child in children:
        for i, category in enumerate(CATEGORIES):
            subtree[i] += child.subtree[category]
    return Branch(name, fqn, sums_of(tuple(node.own)), sums_of(tuple(subtree)), children)


def _branches_below(node: _Node, prefix: str) -> tuple[Branch, ...]:
    found = [_branch_of(name, prefix + name, child) for name, child in node.children.items()]
    return tuple(sorted(found, key=lambda branch: (-branch.subtree[TOTAL], natural_key(branch.name))))


def grow(held: Iterable[tuple[str, Raw]]) -> tuple[Branch, ...]:
    """The tree of these modules with their own bytes: the root modules, largest first."""
    root = _Node()
    for fqn, raw in held:
        node = root
        for part in fqn.split(".", _MOST_PARTS - 1):
            node = node.children.setdefault(part, _Node())
        for i, value in enumerate(raw):
            node.own[i] += value
    return _branches_below(root, "")
