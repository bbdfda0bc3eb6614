"""Rules of operators that gather, scatter and select by index, and of a few others that make lists or copies."""

from __future__ import annotations

import math
from typing import Any

import torch
from modscope._virtual.operators.geometry import numel, round_up
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules.rules import GpuAndTorch, argument, contiguous_copy, rule
from modscope._virtual.rules.sorting import for_a_while, index_bits, scan_bytes, sort_bytes, sort_events

_LONG = 8


# ---- embedding ----

_ROWS_PER_THREAD = 10
_FEW_INDICES = 3072


@rule(
    "aten.embedding_dense_backward.default",
    source="ATen/native/cuda/Embedding.cu: embedding_dense_backward_cuda; EmbeddingBackwardKernel.cu",
)
def _embedding_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """More than a few indices are sorted, and the rows of equal indices are summed in segments."""
    grad, indices, rows, _, by_frequency = args[:5]
    count = indices.numel()
    events = contiguous_copy(grad) + contiguous_copy(indices)
    if count == 0 or (count <= _FEW_INDICES and not by_frequency):
        return [*events, ("result", 0)] if events else None
    longs: WorkspaceEvent = ("temporary", count * _LONG)
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
        *_segment_sums(gpu, segments, partial, grad, rows),
    ]


def _segment_sums(gpu: GpuAndTorch, segments: int, partial: int, grad: torch.Tensor, rows: int) -> list[WorkspaceEvent]:
    """The sums of the parts of segments; for few segments they are added to the result at once."""
    width = grad.size(-1)
    accumulator = max(4, grad.dtype.itemsize)
    warped = round_up(width, 32)
    grid = -(-segments * warped // min(warped, 1024))
    few = grid < gpu.processors * 4 and partial > grid * 4 and gpu.torch >= (2, 11)
    if not few or torch.are_deterministic_algorithms_enabled():
        return [("temporary", partial * width * accumulator)]
    converted: list[WorkspaceEvent] = [("temporary", rows * width * 4)] if grad.dtype.itemsize == 2 else []
    return [("temporary", partial * _LONG), *converted]


# ---- indexing ----


def _expanded(indices: list[torch.Tensor]) -> list[tuple[int, ...]]:
    """The strides of index tensors when they have been broadcast together."""
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    return [index.to(device="meta").expand(shape).stride() for index in indices]


@rule("aten.index.Tensor", "aten.index.Tensor_out", source="ATen/native/TensorAdvancedIndexing.cpp: AdvancedIndex")
def _index_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
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


def _index_put(args: Any, kwargs: Any) -> list[WorkspaceEvent]:
    """Adding at indices sorts them, to add equal ones in one thread."""
    self, value, unsafe = args[0], args[2], argument(args, kwargs, 4, "unsafe", False)
    indices = [index for index in args[1] if index is not None]
    if not indices or any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return []
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    count, longs = shape.numel(), shape.numel() * _LONG
    events: list[WorkspaceEvent] = contiguous_copy(self)
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
def _index_put_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    accumulate = argument(args, kwargs, 3, "accumulate", False)
    if not accumulate and not torch.are_deterministic_algorithms_enabled():
        return _index_rule(gpu, args, kwargs, specs)
    return _index_put(args, kwargs)


# ---- random choice ----


@rule("aten.multinomial.default", "aten.multinomial.out", source="ATen/native/Distributions.cpp: multinomial_out")
def _multinomial_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """Without replacement, and for one sample, the largest of weights divided by random numbers are taken."""
    self, samples, replacement = args[0], args[1], argument(args, kwargs, 2, "replacement", False)
    bytes = self.nbytes
    if not replacement or samples == 1:
        return [("result", 0), ("temporary", bytes)]
    return [("result", 0), ("temporary", bytes), ("temporary", bytes)]


# ---- rearrangement ----


@rule(
    "aten.roll.default",
    source="ATen/native/TensorTransformations.h: roll_common; cuda/TensorTransformations.cu: roll_cuda",
)
def _roll_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """One dimension after the other is rolled, each into a tensor of its own."""
    self, shifts = args[0], args[1]
    bytes = self.nbytes
    return [*contiguous_copy(self), *[("temporary", bytes)] * (len(shifts) - 1), ("result", 0)]


@rule("aten.masked_scatter_.default", source="ATen/native/cuda/IndexKernel.cpp: masked_scatter__cuda; IndexKernel.cu")
def _masked_scatter_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The number of true elements before each one is computed."""
    self, mask, source = args[:3]
    elements = self.numel()
    copies: list[WorkspaceEvent] = contiguous_copy(self) + contiguous_copy(source)
    if mask.numel() != elements or not mask.is_contiguous():
        copies.append(("temporary", elements))
    return [*copies, ("temporary", elements * _LONG), ("temporary", scan_bytes(elements, _LONG))]


@rule(
    "aten.isin.Tensor_Tensor",
    "aten.isin.Tensor_Tensor_out",
    source="ATen/native/TensorCompare.cpp: isin_Tensor_Tensor_out",
)
def _isin_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """Each element is compared with each of a few others; many are sorted together."""
    elements, others = args[0].numel(), args[1].numel()
    if others < 10 * elements**0.145:
        return [("result", 0), ("temporary", elements * others), ("temporary", elements)]
    both, item = elements + others, args[0].dtype.itemsize
    found = torch.empty(both, dtype=args[0].dtype, device="meta")
    lists: list[WorkspaceEvent] = [("temporary", both * item), ("temporary", both * item), ("temporary", both * _LONG)]
    return [("result", 0), *lists, *sort_events(found, 0), ("temporary", both), ("temporary", elements)]


@rule("aten.im2col.default", "aten.im2col.out", source="measured: a copy of the input")
def _im2col_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return [("temporary", args[0].numel() * args[0].dtype.itemsize), ("result", 0)]


@rule("aten._cdist_forward.default", source="ATen/native/Distance.cpp: cdist_impl, _euclidean_dist")
def _cdist_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """Euclidean distances of many rows are computed by a product of matrices with two more columns."""
    left, right, power, mode = args[:4]
    many = left.size(-2) > 25 or right.size(-2) > 25
    if power != 2 or mode == 2 or not (mode == 1 or many):
        return None
    item = left.dtype.itemsize
    events: list[WorkspaceEvent] = []
    for rows in (left, right):
        lengths = rows.numel() // max(rows.size(-1), 1) * item
        squares = rows.numel() * item
        events += [("temporary", squares), ("temporary", lengths), ("temporary", -squares), ("temporary", lengths)]
    negated = left.numel() * item
    padded = [rows.numel() // max(rows.size(-1), 1) * (rows.size(-1) + 2) * item for rows in (left, right)]
    events += [("temporary", negated), ("temporary", padded[0]), ("temporary", -negated), ("temporary", padded[1])]
    return [*events, ("result", 0)]


# ---- FSDP2: copies out of an all-gather and into a reduce-scatter ----

_BLOCK_THREADS = 128
_BLOCK_BYTES = 16 * _BLOCK_THREADS


def _address_table(entries: int) -> Workspace:
    return [("temporary", entries * _LONG)]


@rule(
    "aten.split_with_sizes_copy.out",
    source="ATen/native/cuda/TensorShape.cu: split_with_sizes_copy_out_cuda_contiguous_no_cast",
)
def _split_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """Three entries for each part, one more where its blocks begin, and one for each block of threads."""
    source, sizes = args[0], args[1]
    dim, outputs = argument(args, kwargs, 2, "dim", 0), kwargs["out"]
    if not source.is_contiguous() or any(not out.is_contiguous() or out.dtype != source.dtype for out in outputs):
        return None
    dim %= source.dim()
    chunks = math.prod(source.shape[:dim])
    parts = [size * math.prod(source.shape[dim + 1 :]) * source.itemsize for size in sizes]
    most_blocks = gpu.processors * gpu.threads_per_processor // _BLOCK_THREADS * 2
    rounds = -(-sum(-(-part // _BLOCK_BYTES) for part in parts) * chunks // most_blocks)
    by_block = min(math.ceil(math.sqrt(rounds)), chunks)
    by_chunk = -(-rounds // max(by_block, 1))
    blocks = sum(-(-part // (_BLOCK_BYTES * max(by_chunk, 1))) for part in parts)
    return _address_table(4 * len(parts) + 1 + blocks)


@rule(
    "aten._chunk_cat.out",
    "aten._chunk_cat.default",
    source="ATen/native/cuda/TensorShape.cu: _chunk_cat_out_cuda_contiguous",
)
def _chunk_cat_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """Six entries for each tensor and two more, and one for each block of threads."""
    tensors, dim, chunks = args[0], args[1], args[2]
    out = kwargs.get("out")
    if any(not tensor.is_contiguous() for tensor in tensors):
        return None
    itemsize = tensors[0].itemsize if out is None else out.itemsize
    parts = [-(-tensor.shape[dim] // chunks) * math.prod(tensor.shape[dim + 1 :]) * itemsize for tensor in tensors]
    return _address_table(6 * len(parts) + 2 + sum(-(-part // _BLOCK_BYTES) for part in parts))
