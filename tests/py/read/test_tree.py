"""The tree of modules: against sums that are computed name by name, and in proportion to the names however many parts
they have."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from costly_captures import deep_names
from modscope._read import module_tree
from modscope._read.categories import CATEGORIES
from modscope._read.load import load
from modscope._read.module_tree import Branch, grow

NAMES = [f"Net.{layer}.{part}" for layer in range(12) for part in ("a", "b.c.d", "b.c", "a-b", "a\0b")]
NAMES += ["Net", "", ".", "..", "Net.", "Global", "Other.only.child", "x." * 70 + "end"]


def all_of(branches: tuple[Branch, ...]) -> list[Branch]:
    return [each for branch in branches for each in (branch, *all_of(branch.children))]


def held(seed: int) -> list[tuple[str, tuple[int, ...]]]:
    chance = random.Random(seed)
    return [(chance.choice(NAMES), tuple(chance.choice((0, 1, 5)) for _ in CATEGORIES)) for _ in range(80)]


def sums_by_prefix(modules: list[tuple[str, tuple[int, ...]]]) -> tuple[Counter[str], Counter[str]]:
    own, subtree = Counter[str](), Counter[str]()
    for fqn, raw in modules:
        own[fqn] += sum(raw)
        parts = fqn.split(".", 63)
        for depth in range(1, len(parts) + 1):
            subtree[".".join(parts[:depth])] += sum(raw)
    return own, subtree


@pytest.mark.parametrize("seed", range(5))
def test_every_beginning_of_a_name_is_a_branch(seed):
    own, subtree = sums_by_prefix(held(seed))
    branches = all_of(grow(held(seed)))
    assert {branch.fqn: branch.subtree["Total"] for branch in branches} == dict(subtree)
    assert all(branch.own["Total"] == own[branch.fqn] for branch in branches)
    assert len(branches) == len(subtree)


@pytest.mark.parametrize("seed", range(5))
def test_a_huge_tree_leaves_out_only_children_that_hold_nothing(monkeypatch, seed):
    modules = held(seed)[::4]
    named = {fqn for fqn, _ in modules}
    monkeypatch.setattr(module_tree, "_MOST_BRANCHES", -10 * len(modules))
    own, subtree = sums_by_prefix(modules)
    roots = grow(modules)
    branches = all_of(roots)
    assert {branch.fqn for branch in branches} >= named
    for branch in branches:
        assert (branch.own["Total"], branch.subtree["Total"]) == (own[branch.fqn], subtree[branch.fqn])
        assert branch.fqn in named or len(branch.children) > 1
        assert all(child.fqn == f"{branch.fqn}.{child.name}" for child in branch.children)
    assert sum(root.subtree["Total"] for root in roots) == sum(own.values())


def test_a_tree_has_at_most_two_branches_for_each_name_beyond_a_limit(tmp_path):
    file = tmp_path / "deep.msc"
    file.write_bytes(deep_names(2_000, 64))
    snapshot = load(file).snapshot()
    assert len(all_of(snapshot.tree())) == 2_000
    assert len(snapshot.by_module(children=True)["cpu"]) == len(snapshot.by_module()["cpu"]) == 2_000
    file.write_bytes(deep_names(500, 64))
    assert len(all_of(load(file).snapshot().tree())) == 500 * 64
