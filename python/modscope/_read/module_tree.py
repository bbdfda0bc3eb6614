"""The tree of modules, by dotted names, with the bytes that each holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import add
from typing import Any, NamedTuple

from modscope._read.categories import CATEGORIES, TOTAL, Raw, Sums, sums_of
from modscope._read.text import natural_key

# A name of more parts is split no further. No real name has so many; a forged one could have millions.
_MOST_PARTS = 64

# With more branches than this and two for each name, chains become one branch. No real model has so many containers
# that hold nothing; forged names could have 64 times as many branches as there are names.
_MOST_BRANCHES = 50_000

_NOTHING: Raw = (0,) * len(CATEGORIES)

_NAMES = (*map(str, CATEGORIES), TOTAL)


class Branch(NamedTuple):
    """A module in the tree of dotted names, with the bytes that it holds itself and with all modules below it."""

    name: str
    fqn: str
    own: Sums
    subtree: Sums
    children: tuple[Branch, ...]
    """The modules directly below it, largest first."""

    def to_dict(self) -> dict[str, Any]:
        """As ``modscope tree --json`` has it."""
        own, subtree = (dict(zip(_NAMES, sums.values())) for sums in (self.own, self.subtree))
        children = [child.to_dict() for child in self.children]
        return {"name": self.name, "fqn": self.fqn, "own": own, "subtree": subtree, "children": children}


def _plus(one: Raw, other: Raw) -> Raw:
    return tuple(map(add, one, other))


class _OpenBranch:
    """A branch to which children are still added: the first ``depth`` of the ``parts`` of a name."""

    __slots__ = ("parts", "depth", "own", "subtree", "children")

    def __init__(self, parts: Sequence[str], depth: int, own: Raw = _NOTHING) -> None:
        self.parts = parts
        self.depth = depth
        self.own = self.subtree = own
        self.children: list[Branch] = []

    def adopt(self, child: _OpenBranch) -> None:
        name, fqn = ".".join(child.parts[self.depth : child.depth]), ".".join(child.parts[: child.depth])
        self.subtree = _plus(self.subtree, child.subtree)
        self.children.append(Branch(name, fqn, sums_of(child.own), sums_of(child.subtree), child.sorted_children()))

    def sorted_children(self) -> tuple[Branch, ...]:
        return tuple(sorted(self.children, key=lambda branch: (-branch.subtree[TOTAL], natural_key(branch.name))))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many parts both names begin with."""
    for i, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return i
    return min(len(one), len(other))


def _close(open_nodes: list[_OpenBranch], depth: int) -> None:
    """End the nodes that are deeper, innermost first. The last of them becomes a child of a node of this depth."""
    while open_nodes[-1].depth > depth:
        node = open_nodes.pop()
        if open_nodes[-1].depth < depth:
            open_nodes.append(_OpenBranch(node.parts, depth))
        open_nodes[-1].adopt(node)


def sum_by_name(held: Iterable[tuple[str, Raw]]) -> dict[str, Raw]:
    """The bytes of each module. A module that was called in several places is in ``held`` several times."""
    sums: dict[str, Raw] = {}
    for fqn, raw in held:
        sums[fqn] = _plus(sums[fqn], raw) if fqn in sums else raw
    return sums


def grow(held: Iterable[tuple[str, Raw]]) -> tuple[Branch, ...]:
    """The tree of these modules with their own bytes: the root modules, largest first.

    In a huge tree, a module that holds nothing itself and has one child is left out: the child's name is then of
    several parts. The branches are then at most twice as many as the modules that hold something.
    """
    # Sorted by parts, names with a common beginning are neighbours: only the nodes of one name are open at a time.
    names = sorted((fqn.split(".", _MOST_PARTS - 1), raw) for fqn, raw in sum_by_name(held).items())
    shared = [_common(one, other) for (one, _), (other, _) in zip([([], _NOTHING), *names], names)]
    branches = sum(len(parts) - common for (parts, _), common in zip(names, shared))
    is_huge = branches > _MOST_BRANCHES + 2 * len(names)
    open_nodes = [_OpenBranch((), 0)]
    for (parts, raw), common in zip(names, shared):
        _close(open_nodes, common)
        if not is_huge:
            open_nodes += [_OpenBranch(parts, depth) for depth in range(common + 1, len(parts))]
        open_nodes.append(_OpenBranch(parts, len(parts), raw))
    _close(open_nodes, 0)
    return open_nodes[0].sorted_children()
