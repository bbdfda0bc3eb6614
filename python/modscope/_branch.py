"""The tree of modules, by dotted names, with what each holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from modscope._display import natural
from modscope._categories import CATEGORIES, TOTAL, Raw, Sums, sums_of

# A name of more parts is not taken apart further: no real one has, and a forged one could have millions.
_DEEPEST = 64


class Branch(NamedTuple):
    """A module in the tree of dotted names, with what it holds itself and with all below it."""

    name: str
    fqn: str
    own: Sums
    subtree: Sums
    children: tuple[Branch, ...]
    """Largest first."""


class _Twig:
    def __init__(self) -> None:
        self.own = [0] * len(CATEGORIES)
        self.children: dict[str, _Twig] = {}


def _branch(name: str, fqn: str, twig: _Twig) -> Branch:
    children = _branches(twig, fqn + ".")
    whole = twig.own.copy()
    for child in children:
        for i, category in enumerate(CATEGORIES):
            whole[i] += child.subtree[category]
    return Branch(name, fqn, sums_of(tuple(twig.own)), sums_of(tuple(whole)), children)


def _branches(twig: _Twig, prefix: str) -> tuple[Branch, ...]:
    found = [_branch(name, prefix + name, child) for name, child in twig.children.items()]
    return tuple(sorted(found, key=lambda branch: (-branch.subtree[TOTAL], natural(branch.name))))


def grow(held: Iterable[tuple[str, Raw]]) -> tuple[Branch, ...]:
    """The roots, largest first, of modules that hold so much."""
    root = _Twig()
    for fqn, raw in held:
        twig = root
        for part in fqn.split(".", _DEEPEST - 1):
            twig = twig.children.setdefault(part, _Twig())
        for i, value in enumerate(raw):
            twig.own[i] += value
    return _branches(root, "")
