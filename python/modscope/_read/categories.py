"""The words for memory: categories, phases, the states around a call; and bytes by category."""

from __future__ import annotations

import enum


class Category(enum.StrEnum):
    """What bytes are held for. Members compare and hash like their words."""

    PARAM = "Parameter"
    BUFFER = "Buffer"
    GRAD = "Gradient"
    ACT = "Activation"
    TEMP = "Temp"
    OPT = "Optstate"
    OTH = "Other"


class Kind(enum.StrEnum):
    """What FSDP2, DDP or a pipeline stage holds bytes for, within a category. Most bytes have no kind."""

    SHARDED_PARAM = "Sharded Param"
    UNSHARDED_PARAM = "Unsharded Param"
    SHARDED_GRAD = "Sharded Grad"
    UNSHARDED_GRAD = "Unsharded Grad"
    ALL_GATHER = "All Gather"
    REDUCE_SCATTER = "Reduce Scatter"
    INPUT = "Inputs"
    BUCKET = "Bucket"
    ALL_REDUCE = "All Reduce"
    PIPELINE = "Pipeline Buffer"


class State(enum.StrEnum):
    """A moment around a module's forward or backward. Members compare and hash like their words."""

    PRE_FW = "Pre-Forward"
    POST_FW = "Post-Forward"
    PEAK_FW = "Peak-Forward"
    PRE_BW = "Pre-Backward"
    PEAK_BW = "Peak-Backward"
    POST_BW = "Post-Backward"
    PRE_FW_AC = "Pre-Forward-AC"
    POST_FW_AC = "Post-Forward-AC"


TOTAL = "Total"
CATEGORIES = tuple(Category)
KINDS = tuple(Kind)
PHASES = ("idle", "forward", "recompute", "backward", "optimizer", "evaluation")

Raw = tuple[int, ...]  # bytes by category, in the order of CATEGORIES
Sums = dict[str, int]  # category to bytes, with "Total"


def sums_of(raw: Raw) -> Sums:
    sums: Sums = dict(zip(CATEGORIES, raw))
    sums[TOTAL] = sum(raw)
    return sums


_CATEGORY_OF = {
    Kind.SHARDED_PARAM: Category.PARAM,
    Kind.UNSHARDED_PARAM: Category.PARAM,
    Kind.SHARDED_GRAD: Category.GRAD,
    Kind.UNSHARDED_GRAD: Category.GRAD,
    Kind.ALL_GATHER: Category.TEMP,
    Kind.REDUCE_SCATTER: Category.TEMP,
    Kind.INPUT: Category.OTH,
    Kind.BUCKET: Category.GRAD,
    Kind.ALL_REDUCE: Category.TEMP,
    Kind.PIPELINE: Category.ACT,
}


def category_of(kind: Kind) -> Category:
    """The category that the kind is a part of."""
    return _CATEGORY_OF[kind]


def category_word(word: Category | Kind) -> Category:
    """The category itself, or the one that a kind is a part of."""
    return category_of(word) if isinstance(word, Kind) else word


def kinds_of(raw: Raw) -> Sums:
    """The kinds that hold something, with their bytes. ``raw`` begins with those without a kind, which is 0."""
    return {kind: value for kind, value in zip(KINDS, raw[1:]) if value}


def parts_of(sums: Sums) -> Sums:
    """The categories that hold something, without "Total"."""
    return {word: value for word, value in sums.items() if value and word != TOTAL}
