"""The words for memory: categories, phases, the states around a call; and bytes by category. Needs no torch."""

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
PHASES = ("idle", "forward", "recompute", "backward", "optimizer", "evaluation")

Raw = tuple[int, ...]  # bytes by category, in the order of CATEGORIES
Sums = dict[str, int]  # category to bytes, with "Total"


def sums_of(raw: Raw) -> Sums:
    sums: Sums = dict(zip(CATEGORIES, raw))
    sums[TOTAL] = sum(raw)
    return sums


def parts_of(sums: Sums) -> Sums:
    """The categories that hold something, without "Total"."""
    return {word: value for word, value in sums.items() if value and word != TOTAL}
