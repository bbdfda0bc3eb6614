"""Modules whose names differ only in numbers are found, and become one group."""

import pytest
from modscope._read.groups import describe_numbers, group_modules


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
