"""The shapes of inputs in words: "2 x 4,096 tokens". The out-of-memory report, in C, says the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Tensor = TypeVar("_Tensor")


def shape_text(dims: Sequence[int], unit: str = "") -> str:
    """The lengths of the dimensions, and what the elements are."""
    text = " x ".join(f"{dim:,}" for dim in dims) or "?"
    return f"{text} {unit}" if unit else text


def unit_of(dims: Sequence[int], elements: str) -> str:
    """What a tensor of "integer", "float" or other ("") elements has: "tokens", "images", or "" if it is not known."""
    if elements == "integer" and 1 <= len(dims) <= 2:
        return "tokens"
    return "images" if elements == "float" and len(dims) == 4 else ""


def main_input(
    tensors: Sequence[_Tensor], dims_and_elements: Callable[[_Tensor], tuple[Sequence[int], str]]
) -> _Tensor:
    """The tensor that stands for all inputs: the first integers of two dimensions, else the first with most."""

    def rank(tensor: _Tensor) -> tuple[bool, int]:
        dims, elements = dims_and_elements(tensor)
        return elements == "integer" and len(dims) == 2, len(dims)

    return max(tensors, key=rank)
