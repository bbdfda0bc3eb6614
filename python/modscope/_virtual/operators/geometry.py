"""The shapes and strides that torch's TensorIterator makes of an operator's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Iteration", "contiguous_strides", "numel", "reduce_iteration", "round_up"]


def numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return strides


class Iteration(NamedTuple):
    """A reduction as the kernel sees it: the dimension that changes fastest comes first."""

    shape: list[int]
    output: list[int]
    """The output's strides, in elements; 0 in dimensions that are reduced."""
    input: list[int]

    @property
    def reduced_dimensions(self) -> int:
        return sum(1 for stride in self.output if stride == 0)


def _should_swap(iteration: Iteration, a: int, b: int) -> int:
    """Whether dimension a, which comes before b, belongs after it: 1 yes, -1 no, 0 unknown."""
    for is_output, strides in ((True, iteration.output), (False, iteration.input)):
        first, second = strides[a], strides[b]
        if is_output and (first == 0) != (second == 0):
            return 1 if second == 0 else -1
        if first == 0 or second == 0:
            continue
        if first != second:
            return -1 if first < second else 1
        if iteration.shape[a] > iteration.shape[b]:
            return 1
    return 0


def _reordered(iteration: Iteration) -> Iteration:
    order = list(range(len(iteration.shape) - 1, -1, -1))
    for i in range(1, len(order)):
        later = i
        for earlier in range(i - 1, -1, -1):
            swap = _should_swap(iteration, order[earlier], order[later])
            if swap > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
            elif swap < 0:
                break
    return Iteration(*([values[i] for i in order] for values in iteration))


def _coalesced(iteration: Iteration) -> Iteration:
    """Merge neighbouring dimensions that can be walked as one."""
    shape, output, input = ([values[0]] for values in iteration)
    for size, out, in_ in zip(iteration.shape[1:], iteration.output[1:], iteration.input[1:], strict=True):
        fits = shape[-1] * output[-1] == out and shape[-1] * input[-1] == in_
        if size == 1 or shape[-1] == 1 or fits:
            if shape[-1] == 1:
                output[-1], input[-1] = out, in_
            shape[-1] *= size
        else:
            shape.append(size)
            output.append(out)
            input.append(in_)
    return Iteration(shape, output, input)


def reduce_iteration(
    shape: Sequence[int], strides: Sequence[int], dimensions: Sequence[int] | None, keep: bool = False
) -> Iteration:
    """How a tensor is reduced over ``dimensions`` (None or none: all of them) into a contiguous result."""
    reduced = {d % len(shape) for d in dimensions} if dimensions and shape else set(range(len(shape)))
    result = [1 if d in reduced else size for d, size in enumerate(shape)]
    output = contiguous_strides(result)
    for d, size in enumerate(shape):
        if d in reduced and (size != 1 or not keep):
            output[d] = 0
    iteration = Iteration(list(shape), output, list(strides))
    return _coalesced(_reordered(iteration)) if len(shape) > 1 else iteration
