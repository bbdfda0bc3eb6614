"""What autocast copies in half precision, found in the events of a job by sizes, owners and order: the weights in forward, and their
gradients in backward, which are copied back at once. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from modscope._categories import Category
from modscope._fit_job import Job

_LEAST = 4096  # bytes of a parameter: smaller ones have the size of too many other blocks
ROUNDED = 1024  # how much the sizes of blocks may differ where only those were noted, and not what was requested
_LEAST_FOUND = 0.5  # of the bytes of gradients: less than that is taken for chance


class StreamBlock(NamedTuple):
    """A block of a stream, and the events that add and drop it."""

    number: int
    bytes: int
    add: int
    drop: int | None
    path: int


def _blocks(job: Job, category: Category, phase: str) -> list[StreamBlock]:
    rows = job.stream.select(job.select(category, phases=[phase]))
    return sorted(
        (StreamBlock(number, bytes, add or 0, drop, path) for number, bytes, add, drop, path in rows),
        key=lambda block: block.add,
    )


def _by_path(blocks: Iterable[StreamBlock]) -> dict[int, list[StreamBlock]]:
    found: dict[int, list[StreamBlock]] = {}
    for block in blocks:
        found.setdefault(block.path, []).append(block)
    return found


def _is_half(part: int, whole: int) -> bool:
    return abs(2 * part - whole) <= ROUNDED


def find_casts(job: Job) -> list[int]:
    """The numbers of the blocks; empty if the job does not use autocast."""
    gradients = [block for block in _blocks(job, Category.GRAD, "backward") if block.bytes >= _LEAST]
    temporaries = _by_path(_blocks(job, Category.TEMP, "backward"))
    copied = [
        (gradient, cast) for gradient in gradients if (cast := _cast_of(gradient, temporaries.get(gradient.path, [])))
    ]
    if sum(gradient.bytes for gradient, _ in copied) < max(
        _LEAST_FOUND * sum(gradient.bytes for gradient in gradients), 1
    ):
        return []
    return [cast.number for _, cast in copied] + _weights(job, [gradient for gradient, _ in copied])


def _cast_of(gradient: StreamBlock, temporaries: list[StreamBlock]) -> StreamBlock | None:
    """The gradient in half precision: it is there when the other one is made, and freed at once."""
    for cast in temporaries:
        if (
            _is_half(cast.bytes, gradient.bytes)
            and cast.drop is not None
            and cast.add < gradient.add < cast.drop <= gradient.add + 2
        ):
            return cast
    return None


def _weights(job: Job, gradients: list[StreamBlock]) -> list[int]:
    """Of each gradient's weight the first copy in the last forward before it."""
    kept, found = _by_path(_blocks(job, Category.ACT, "forward")), set()
    begins: dict[int, list[int]] = {}
    for call in job.calls:
        begins.setdefault(call.path, []).append(call.begin)
    for gradient in gradients:
        before = [
            block
            for block in kept.get(gradient.path, [])
            if block.add < gradient.add and _is_half(block.bytes, gradient.bytes)
        ]
        if before:
            begin = max((begin for begin in begins.get(gradient.path, []) if begin < gradient.add), default=0)
            found.add(next((block.number for block in before if block.add >= begin), before[-1].number))
    return sorted(found)
