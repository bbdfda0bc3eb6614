"""Which results a checkpointed module may keep: sets of operators, from the capture's operators. Needs no torch.

An operator is worth keeping by the time of its recomputation for each byte of its results. The sets of a module grow:
each has the operators of the one before it and the next ones in that order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from modscope._plan.file import KeptOperator

_IN_PLACE, _VIEW, _RANDOM, _CHANGED, _RECOMPUTED = 1, 2, 4, 8, 16
_NOT_OF_PROGRAM = ("aten::index_select", "aten::copy_", "aten::empty", "aten::empty_strided", "aten::empty_like")
"""Kernels that run for other operators (embedding, clone, casts), by which a program does not know them."""
_STEP = 0.02  # of a recomputation: the next set saves that much more
_LEAST = 0.005  # of a recomputation: an operator that takes less is not worth keeping
_MOST_SETS = 6  # of a module
_MOST_KEPT = 0.9  # of what a module keeps without a checkpoint: a set with more saves too little
_LISTED = 4  # operators of one name
_ORDINALS = {1: "st", 2: "nd", 3: "rd"}


class Operator(NamedTuple):
    """As the extension gives it (stream.operators)."""

    number: int
    name: str
    call: int
    of: int
    bytes: int
    """Of its results."""
    saved: int
    """Of those, that autograd keeps for backward."""
    nanoseconds: int
    flags: int

    @property
    def is_random(self) -> bool:
        return bool(self.flags & _RANDOM)

    @property
    def is_recomputed(self) -> bool:
        return bool(self.flags & _RECOMPUTED)

    def can_be_kept(self) -> bool:
        is_new = self.bytes > 0 and not self.flags & (_IN_PLACE | _VIEW | _CHANGED)
        return is_new and self.is_recomputed and self.nanoseconds > 0 and self.name not in _NOT_OF_PROGRAM


class Results(NamedTuple):
    """What one module keeps."""

    places: tuple[KeptOperator, ...]
    label: str
    """ "scaled_dot_product_attention and the 2nd linear"."""
    at: tuple[int, ...]
    """Where these operators are among those of a call."""
    bytes: int


NOTHING = Results((), "", (), 0)


def find_sets(operators: Sequence[Operator], kept: int) -> list[Results]:
    """The sets of a module that keeps so many bytes without a checkpoint, from the fewest results on."""

    def time(item: Sequence[int]) -> int:
        return sum(operators[i].nanoseconds for i in item)

    def size(item: Sequence[int]) -> int:
        return sum(operators[i].bytes for i in item)

    whole = sum(each.nanoseconds for each in operators if each.is_recomputed)
    sets: list[Results] = []
    chosen: list[int] = []
    items = [i for i, each in enumerate(operators) if each.can_be_kept()]
    for i in sorted(items, key=lambda i: (-operators[i].nanoseconds / operators[i].bytes, i)):
        if operators[i].nanoseconds < _LEAST * whole or size(chosen) + operators[i].bytes > _MOST_KEPT * kept:
            continue
        chosen.append(i)
        if time(chosen) - (time(sets[-1].at) if sets else 0) < _STEP * whole:
            continue
        at = tuple(sorted(chosen))
        sets.append(Results(_places(operators, at), describe(operators, at), at, size(at)))
    return _spread(sets)


def _spread(sets: list[Results]) -> list[Results]:
    """The first ones, which save most for their bytes, and the last one."""
    return sets if len(sets) <= _MOST_SETS else [*sets[: _MOST_SETS - 1], sets[-1]]


def _places(operators: Sequence[Operator], at: Sequence[int]) -> tuple[KeptOperator, ...]:
    return tuple(KeptOperator(operators[i].name, operators[i].call, operators[i].of) for i in at)


# ---- as text ----


def plain_name(operator: str) -> str:
    """What a person calls it: "linear" for aten::addmm."""
    name = operator.rpartition("::")[2].partition(".")[0]
    if re.fullmatch(r"_scaled_dot_product_\w*attention\w*", name):
        return "scaled_dot_product_attention"
    name = name.strip("_").removeprefix("native_")
    return {"addmm": "linear", "mm": "linear", "cudnn_convolution": "convolution"}.get(name, name)


def _ordinal(number: int) -> str:
    return f"{number}{'th' if 10 <= number % 100 <= 20 else _ORDINALS.get(number % 10, 'th')}"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def describe(operators: Sequence[Operator], at: Sequence[int]) -> str:
    """ "scaled_dot_product_attention and the 2nd linear": in the order of the forward. Of many operators of a name only
    how many: the plan file has their places."""
    by_name: dict[str, list[int]] = {}
    for i, each in enumerate(operators):
        by_name.setdefault(plain_name(each.name), []).append(i)
    parts = []
    for name in dict.fromkeys(plain_name(operators[i].name) for i in at):
        of_name = by_name[name]
        kept = [number for number, i in enumerate(of_name, 1) if i in at]
        if len(of_name) == 1:
            parts.append(name)
        elif len(kept) == len(of_name):
            parts.append(f"every {name}")
        elif len(kept) > _LISTED:
            parts.append(f"{len(kept)} of {len(of_name)} {name} operators")
        else:
            parts.append(f"the {_joined([_ordinal(number) for number in kept])} {name}")
    return _joined(parts)
