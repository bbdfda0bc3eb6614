"""Rules of operators that gather, scatter and select by index, and of a few others that make lists or copies."""

from __future__ import annotations

from typing import Any

import torch

from modscope._virtual.geometry import numel, round_up
from modscope._virtual.operators import Event
from modscope._virtual.rules import Answer, Card, argument, contiguous_copy, rule
from modscope._virtual.sorting import for_a_while, index_bits, scan_bytes, sort_bytes, sort_events

_LONG = 8


# ---- embedding ----

_ROWS_PER_THREAD = 10
_FEW_INDICES = 3072


@rule(
    "aten.embedding_dense_backward.default",
    source="ATen/native/cuda/Embedding.cu: embedding_dense_backward_cuda; EmbeddingBackwardKernel.cu",
)
def _embedding_backward_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """More than a few indices are sorted, and the rows of equal indices are summed in segments."""
    grad, indices, rows, _, by_frequency = args[:5]
    count = indices.numel()
    events = contiguous_copy(grad) + contiguous_copy(indices)
    if count == 0 or (count <= _FEW_INDICES and not by_frequency):
        return [*events, ("result", 0)] if events else None
    longs: Event = ("temporary", count * _LONG)
    sort = sort_bytes(count, _LONG, _LONG)
    events += [longs, longs, *for_a_while(count * _LONG, sort)]
    if by_frequency:
        events += [longs, *for_a_while(scan_bytes(count, _LONG))]
    segments = min(count, rows)
    partial = count // _ROWS_PER_THREAD + segments
    return [
        *events,
        ("result", 0),
        longs,
        ("temporary", _LONG),
        *for_a_while(count * _LONG, scan_bytes(count, _LONG, tile=2048)),
        ("temporary", segments * _LONG),
        ("temporary", segments * _LONG),
        *for_a_while(scan_bytes(segments, _LONG)),
        ("temporary", _LONG),
        ("temporary", partial * _LONG),
        *_segment_sums(card, segments, partial, grad, rows),
    ]


def _segment_sums(card: Card, segments: int, partial: int, grad: torch.Tensor, rows: int) -> list[Event]:
    """The sums of the parts of segments; for few segments they are added to the result at once."""
    width = grad.size(-1)
    accumulator = max(4, grad.dtype.itemsize)
    warped = round_up(width, 32)
    grid = -(-segments * warped // min(warped, 1024))
    few = grid < card.processors * 4 and partial > grid * 4 and card.torch >= (2, 11)
    if not few or torch.are_deterministic_algorithms_enabled():
        return [("temporary", partial * width * accumulator)]
    converted: list[Event] = [("temporary", rows * width * 4)] if grad.dtype.itemsize == 2 else []
    return [("temporary", partial * _LONG), *converted]


# ---- indexing ----


def _expanded(indices: list[torch.Tensor]) -> list[tuple[int, ...]]:
    """The strides of index tensors when they have been broadcast together."""
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    return [index.to(device="meta").expand(shape).stride() for index in indices]


@rule("aten.index.Tensor", "aten.index.Tensor_out", source="ATen/native/TensorAdvancedIndexing.cpp: AdvancedIndex")
def _index_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """Several index tensors are copied if their strides differ."""
    indices = [index for index in args[1] if index is not None]
    if len(indices) < 2 or any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return None
    strides = _expanded(indices)
    if all(stride == strides[0] for stride in strides):
        return None
    elements = torch.broadcast_shapes(*(index.shape for index in indices)).numel()
    return [
        ("temporary", elements * _LONG) for index in indices if index.numel() != elements or not index.is_contiguous()
    ]


def _index_put(args: Any, kwargs: Any) -> list[Event]:
    """Adding at indices sorts them, to add equal ones in one thread."""
    self, value, unsafe = args[0], args[2], argument(args, kwargs, 4, "unsafe", False)
    indices = [index for index in args[1] if index is not None]
    if not indices or any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return []
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    count, longs = shape.numel(), shape.numel() * _LONG
    events: list[Event] = contiguous_copy(self)
    for _ in () if unsafe else indices:
        events += for_a_while(_LONG, _LONG) + for_a_while(_LONG, _LONG)
    for _ in indices:
        events += [("temporary", longs), ("temporary", longs), ("temporary", -longs)]
    events += [("temporary", -longs)] * (len(indices) - 1)
    slice_size = _slice_size(self, args[1])
    if value.numel() < count * slice_size or not value.is_contiguous():
        events.append(("temporary", max(value.numel(), count * slice_size) * value.dtype.itemsize))
    sort = sort_bytes(count, _LONG, _LONG, index_bits(self.numel() // max(slice_size, 1)))
    return [*events, ("temporary", longs), ("temporary", longs), *for_a_while(longs, sort)]


def _slice_size(self: torch.Tensor, indices: Any) -> int:
    """How many elements follow the last dimension that is indexed."""
    last = max(i for i, index in enumerate(indices) if index is not None)
    return numel(self.shape[last + 1 :])


@rule("aten._index_put_impl_.default", source="ATen/native/cuda/Indexing.cu: index_put_with_sort_kernel")
def _index_put_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    accumulate = argument(args, kwargs, 3, "accumulate", False)
    if not accumulate and not torch.are_deterministic_algorithms_enabled():
        return _index_rule(card, args, kwargs, specs)
    return _index_put(args, kwargs)


# ---- random choice ----


@rule("aten.multinomial.default", "aten.multinomial.out", source="ATen/native/Distributions.cpp: multinomial_out")
def _multinomial_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """Without replacement, and for one sample, the largest of weights divided by random numbers are taken."""
    self, samples, replacement = args[0], args[1], argument(args, kwargs, 2, "replacement", False)
    bytes = self.numel() * self.dtype.itemsize
    if not replacement or samples == 1:
        return [("result", 0), ("temporary", bytes)]
    return [("result", 0), ("temporary", bytes), ("temporary", bytes)]


# ---- rearrangement ----


@rule(
    "aten.roll.default",
    source="ATen/native/TensorTransformations.h: roll_common; cuda/TensorTransformations.cu: roll_cuda",
)
def _roll_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """One dimension after the other is rolled, each into a tensor of its own."""
    self, shifts = args[0], args[1]
    bytes = self.numel() * self.dtype.itemsize
    return [*contiguous_copy(self), *[("temporary", bytes)] * (len(shifts) - 1), ("result", 0)]


@rule("aten.masked_scatter_.default", source="ATen/native/cuda/IndexKernel.cpp: masked_scatter__cuda; IndexKernel.cu")
def _masked_scatter_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """The number of true elements before each one is computed."""
    self, mask, source = args[:3]
    elements = self.numel()
    copies: list[Event] = contiguous_copy(self) + contiguous_copy(source)
    if mask.numel() != elements or not mask.is_contiguous():
        copies.append(("temporary", elements))
    return [*copies, ("temporary", elements * _LONG), ("temporary", scan_bytes(elements, _LONG))]


@rule(
    "aten.isin.Tensor_Tensor",
    "aten.isin.Tensor_Tensor_out",
    source="ATen/native/TensorCompare.cpp: isin_Tensor_Tensor_out",
)
def _isin_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """Each element is compared with each of a few others; many are sorted together."""
    elements, others = args[0].numel(), args[1].numel()
    if others < 10 * elements**0.145:
        return [("result", 0), ("temporary", elements * others), ("temporary", elements)]
    both, item = elements + others, args[0].dtype.itemsize
    found = torch.empty(both, dtype=args[0].dtype, device="meta")
    lists: list[Event] = [("temporary", both * item), ("temporary", both * item), ("temporary", both * _LONG)]
    return [("result", 0), *lists, *sort_events(found, 0), ("temporary", both), ("temporary", elements)]


@rule("aten.im2col.default", "aten.im2col.out", source="measured: a copy of the input beside the result")
def _im2col_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    return [("temporary", args[0].numel() * args[0].dtype.itemsize), ("result", 0)]


@rule("aten._cdist_forward.default", source="ATen/native/Distance.cpp: cdist_impl, _euclidean_dist")
def _cdist_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """Euclidean distances of many rows are computed by a product of matrices with two more columns."""
    left, right, power, mode = args[:4]
    many = left.size(-2) > 25 or right.size(-2) > 25
    if power != 2 or mode == 2 or not (mode == 1 or many):
        return None
    item = left.dtype.itemsize
    events: list[Event] = []
    for rows in (left, right):
        lengths = rows.numel() // max(rows.size(-1), 1) * item
        squares = rows.numel() * item
        events += [("temporary", squares), ("temporary", lengths), ("temporary", -squares), ("temporary", lengths)]
    negated = left.numel() * item
    padded = [rows.numel() // max(rows.size(-1), 1) * (rows.size(-1) + 2) * item for rows in (left, right)]
    events += [("temporary", negated), ("temporary", padded[0]), ("temporary", -negated), ("temporary", padded[1])]
    return [*events, ("result", 0)]
