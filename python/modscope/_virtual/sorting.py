"""Rules of operators that sort, scan or gather by index: the temporary storage of CUB, and the lists that kernels make."""

from __future__ import annotations

import math
from typing import Any

import torch

from modscope._virtual.geometry import numel, round_up
from modscope._virtual.operators import Event, Events
from modscope._virtual.rules import Answer, Card, argument, contiguous_copy, rule

__all__ = ["scan_bytes", "sort_bytes"]

_LONG = 8
_SMALL_SORT = 4096


# ---- CUB ----


def _storage(*parts: int) -> int:
    """The bytes of a storage that holds several arrays: each begins at a multiple of 256."""
    return sum(round_up(part, 256) for part in parts) + 255


def _tile(key: int, value: int) -> int:
    """How many items a thread block sorts at once (tuning_radix_sort.cuh)."""
    if key < 4:
        threads, nominal = (384, 18) if key == 1 and value == 8 else (512, 23 if value == 8 else 19)
    elif key == 8:
        threads, nominal = 384, 30 if value < 8 else 24
    else:
        threads, nominal = 384, 29 if value == 8 else 19 if value == 0 else 17
    return threads * max(1, nominal * 4 // max(key, value, 4))


def sort_bytes(items: int, key: int, value: int = 0, bits: int | None = None) -> int:
    """What cub::DeviceRadixSort takes for ``items`` keys and values of so many bytes, when it may not overwrite its input.
    A block of threads alone sorts a few items; more are sorted in passes of 8 bits (dispatch_radix_sort.cuh)."""
    widest = max(key, value, 4)
    if items <= 256 * max(1, 19 * 4 // widest):
        return 1
    passes = -(-(key * 8 if bits is None else bits) // 8)
    blocks = -(-items // _tile(key, value))
    again = 0 if passes <= 1 else items
    return _storage(passes * 256 * 8, blocks * 256 * 4, again * key, again * value, passes * 4)


def scan_bytes(items: int, item: int, tile: int | None = None) -> int:
    """What cub::DeviceScan takes: a state for each tile, with 32 more (single_pass_scan_operators.cuh)."""
    if tile is None:
        tile = 3744 if item < 4 else 128 * max(1, 60 // item)
    states = (-(-items // tile) + 32) * (8 if item <= 4 else 16)
    return _storage(_storage(states))


def _bits(largest: int) -> int:
    return max(1, largest.bit_length())


def _for_a_while(*sizes: int) -> list[Event]:
    """Blocks that are freed before the operator goes on, the last one first."""
    taken: list[Event] = [("temporary", size) for size in sizes]
    return taken + [("temporary", -size) for size in reversed(sizes)]


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
    events += [longs, longs, *_for_a_while(count * _LONG, sort)]
    if by_frequency:
        events += [longs, *_for_a_while(scan_bytes(count, _LONG))]
    segments = min(count, rows)
    partial = count // _ROWS_PER_THREAD + segments
    return [
        *events,
        ("result", 0),
        longs,
        ("temporary", _LONG),
        *_for_a_while(count * _LONG, scan_bytes(count, _LONG, tile=2048)),
        ("temporary", segments * _LONG),
        ("temporary", segments * _LONG),
        *_for_a_while(scan_bytes(segments, _LONG)),
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
    return [("temporary", elements * _LONG) for index in indices if index.numel() != elements or not index.is_contiguous()]


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
        events += _for_a_while(_LONG, _LONG) + _for_a_while(_LONG, _LONG)
    for _ in indices:
        events += [("temporary", longs), ("temporary", longs), ("temporary", -longs)]
    events += [("temporary", -longs)] * (len(indices) - 1)
    slice_size = _slice_size(self, args[1])
    if value.numel() < count * slice_size or not value.is_contiguous():
        events.append(("temporary", max(value.numel(), count * slice_size) * value.dtype.itemsize))
    sort = sort_bytes(count, _LONG, _LONG, _bits(self.numel() // max(slice_size, 1)))
    return [*events, ("temporary", longs), ("temporary", longs), *_for_a_while(longs, sort)]


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


# ---- sorting ----


@rule("aten.sort.default", "aten.sort.stable", "aten.sort.values_stable", source="ATen/native/cuda/Sort.cpp, Sort.cu, SortStable.cu")
def _sort_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    self = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 and type(args[1]) is int else -1)
    return [("result", 0), ("result", 0), *sort_events(self, dim)]


def sort_events(self: torch.Tensor, dim: int) -> Events:
    """What sorting along a dimension takes beside the values and the indices."""
    if self.dim() == 0 or self.numel() <= 1:
        return []
    length, item = self.size(dim), self.dtype.itemsize
    if length <= _SMALL_SORT:
        return _for_a_while(length * _LONG)
    events: list[Event] = []
    if self.stride(dim) != 1 or not self.is_contiguous():
        events.append(("temporary", self.numel() * item))
        if dim % self.dim() != self.dim() - 1:
            events += [("temporary", self.numel() * item), ("temporary", self.numel() * _LONG)]
    return events + _long_sort(self.numel(), length, item)


def _long_sort(elements: int, length: int, item: int) -> list[Event]:
    segments = elements // length
    if segments == 1 or length >= 1_000_000:
        return _for_a_while(length * _LONG, sort_bytes(length, item, _LONG))
    pairs: Event = ("temporary", elements * _LONG)
    if segments < 128:
        first = _for_a_while(elements * item, sort_bytes(elements, item, _LONG))
        bits = max(1, math.ceil(math.log2(segments)))
        return [pairs, pairs, *first, *_for_a_while(sort_bytes(elements, _LONG, 0, bits))]
    return _for_a_while(elements * _LONG, _storage(elements * item, elements * _LONG))


_MANY_BLOCKS = ((20, 20_000), (40, 10_000), (79, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))


def _top_of_blocks(card: Card, slices: int, length: int, item: int) -> list[Event]:
    """Long slices are divided among several thread blocks, which count digits."""
    least = next((least for most, least in _MANY_BLOCKS if slices <= most), 400)
    if length < least:
        return []
    per_thread = min(64, max(4, -(-slices * length // (card.processors * 6 * 256))))
    blocks = slices * -(-length // (per_thread * 256))
    sizes = (slices * item, slices * 8, slices * (16 if item == 8 else 8), blocks * 512, slices * 1024, blocks * 4, blocks * 4)
    scan = _for_a_while(scan_bytes(slices, 4))
    return [*(("temporary", size) for size in sizes), *scan, *scan, *(("temporary", -size) for size in reversed(sizes))]


@rule("aten.topk.default", "aten.topk.values", source="ATen/native/cuda/TensorTopK.cpp: topk_out_cuda; TensorTopK.cu: mbtopk")
def _topk_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    self, k, dim = args[0], args[1], argument(args, kwargs, 2, "dim", -1)
    if self.dim() == 0 or self.numel() == 0:
        return None
    length, item = self.size(dim), self.dtype.itemsize
    events = [("result", 0), ("result", 0), *contiguous_copy(self), *_top_of_blocks(card, self.numel() // length, length, item)]
    if k > _SMALL_SORT and argument(args, kwargs, 4, "sorted", True):
        found = list(self.shape)
        found[dim] = k
        elements = numel(found)
        events += [("temporary", elements * _LONG), ("temporary", elements * item)]
        events += sort_events(torch.empty(found, dtype=self.dtype, device="meta"), dim)
    return events


@rule("aten.kthvalue.default", "aten.kthvalue.values", source="ATen/native/cuda/Sorting.cpp: kthvalue_out_impl_cuda")
def _kthvalue_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    return None


@rule("aten.median.default", "aten.nanmedian.default", source="ATen/native/cuda/Sorting.cpp: median_impl sorts everything")
def _median_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    self = args[0]
    elements, item = self.numel(), self.dtype.itemsize
    sort = sort_events(torch.empty(elements, dtype=self.dtype, device="meta"), 0)
    return [("result", 0), *contiguous_copy(self), ("temporary", elements * item), ("temporary", elements * _LONG), *sort]


@rule("aten.randperm.default", "aten.randperm.generator", "aten.randperm.generator_out", source="ATen/native/cuda/Randperm.cu")
def _randperm_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """Random keys are sorted with the numbers; enough bits that equal keys are rare."""
    count = args[0]
    if count <= 1:
        return None
    bits = min(64, math.ceil(math.log2(count - (6 * count * count + 1) / (12 * math.log(0.9)))))
    key = 4 if bits <= 32 else 8
    keys = count * key
    return [
        ("result", 0),
        ("temporary", count * _LONG),
        ("temporary", keys),
        ("temporary", keys),
        *_for_a_while(sort_bytes(count, key, _LONG, bits)),
    ]


@rule("aten._unique2.default", "aten.unique_dim.default", "aten.unique_consecutive.default", source="ATen/native/cuda/Unique.cu")
def _unique_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    self = args[0]
    count, item = self.numel(), self.dtype.itemsize
    keys = count * item
    return [*contiguous_copy(self), ("temporary", keys), *_for_a_while(count * _LONG, count * _LONG, sort_bytes(count, item, _LONG))]


# ---- scans ----


@rule(
    *(f"aten.{name}.{overload}" for name in ("cumsum", "cumprod") for overload in ("default", "out")),
    source="ATen/native/cuda/ScanKernels.cpp; ScanUtils.cuh",
)
def _cumsum_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """The input is converted to the result's type; a vector is scanned by CUB."""
    self, dim = args[0], args[1]
    dtype = argument(args, kwargs, 2, "dtype")
    if dtype is None:
        dtype = self.dtype if self.dtype.is_floating_point or self.dtype.is_complex else torch.int64
    events: list[Event] = [("result", 0)]
    if dtype != self.dtype or not self.is_contiguous():
        events.append(("temporary", self.numel() * dtype.itemsize))
    if self.dim() and self.numel() == self.size(dim) and self.numel() > 0:
        events += _for_a_while(scan_bytes(self.numel(), dtype.itemsize))
    return events


@rule("aten.cummax.default", "aten.cummin.default", "aten._logcumsumexp.default", source="ATen/native/cuda/ScanKernels.cpp")
def _contiguous_scan_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    return [("result", 0), *contiguous_copy(args[0])]


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


@rule("aten.roll.default", source="ATen/native/TensorTransformations.h: roll_common; cuda/TensorTransformations.cu: roll_cuda")
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


@rule("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Tensor_out", source="ATen/native/TensorCompare.cpp: isin_Tensor_Tensor_out")
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
