"""The tree of modules: against sums that are computed name by name, and in proportion to the names however many parts
they have; and groups of modules whose names differ only in numbers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from costly_captures import deep_names
from modscope._read import module_tree
from modscope._read.categories import CATEGORIES
from modscope._read.groups import describe_numbers, group_modules
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


# ---- groups of modules whose names differ only in numbers ----


def names(*fqns, **options):
    return [(group.name, group.members) for group in group_modules(fqns, lambda fqn: fqn, **options)]


def test_names_that_differ_in_a_number_are_one_group():
    fqns = ["GPT.h.0.mlp", "GPT.h.1.mlp", "GPT.h.10.mlp"]
    assert names(*fqns) == [("GPT.h.*.mlp", fqns)]


def test_a_number_that_all_share_stays():
    assert names("A.0.h.1.x", "A.0.h.2.x")[0][0] == "A.0.h.*.x"
    assert names("A.0.h.1.x", "A.1.h.2.x")[0][0] == "A.*.h.*.x"


def test_a_module_alone_keeps_its_name():
    assert names("GPT.h.3.mlp", "GPT.wte", "Global") == [
        ("GPT.h.3.mlp", ["GPT.h.3.mlp"]),
        ("GPT.wte", ["GPT.wte"]),
        ("Global", ["Global"]),
    ]


def test_names_that_differ_in_more_than_numbers_are_apart():
    assert len(names("A.h.0.mlp", "A.h.0.attn", "B.h.0.mlp", "A.h.mlp", "A.h.x0.mlp", "A.h.x1.mlp")) == 6


def test_the_last_part_may_be_a_number():
    assert names("Net.0", "Net.2") == [("Net.*", ["Net.0", "Net.2"])]


def test_only_items_of_equal_keys_are_one_group():
    items = [("h.0", 5), ("h.1", 7), ("h.2", 5)]
    groups = group_modules(items, lambda item: item[0], lambda item: item[1])
    assert [(group.name, group.members) for group in groups] == [("h.*", [items[0], items[2]]), ("h.1", [items[1]])]


def test_groups_come_in_the_order_of_their_first_members():
    assert [name for name, _ in names("b.1", "a", "b.0", "c")] == ["b.*", "a", "c"]


@pytest.mark.parametrize("name", ["", ".", "..", "9" * 10_000, "\u0663", "\u00b2", "h.\u0663", "-1"])
def test_odd_names_stay_what_they_are(name):
    assert names(name) == [(name, [name])]


@pytest.mark.parametrize(
    "numbers, text", [([0, 1, 2, 3], "0-3"), ([7], "7"), ([4, 0, 1], "0-1, 4"), ([1, 3, 5], "1, 3, 5")]
)
def test_numbers_in_words(numbers, text):
    assert describe_numbers(numbers) == text
