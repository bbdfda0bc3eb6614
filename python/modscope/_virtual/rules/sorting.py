"""Rules of operators that sort and scan: the temporary storage of CUB, and the lists that kernels make."""

from __future__ import annotations

import math
from typing import Any

import torch
from modscope._virtual.operators import operators
from modscope._virtual.operators.geometry import numel, round_up
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent, WorkspaceEvents
from modscope._virtual.rules.rules import GpuAndTorch, argument, contiguous_copy, rule

__all__ = ["KERNELS", "for_a_while", "index_bits", "scan_bytes", "sort_bytes", "sort_events", "unique_events"]

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
    """What cub::DeviceRadixSort takes for ``items`` keys and values of so many bytes, when it may not overwrite its
    input. A block of threads alone sorts a few items; more are sorted in passes of 8 bits (dispatch_radix_sort.cuh)."""
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


def index_bits(largest: int) -> int:
    return max(1, largest.bit_length())


def for_a_while(*sizes: int) -> list[WorkspaceEvent]:
    """Blocks that are freed before the operator goes on, the last one first."""
    taken: list[WorkspaceEvent] = [("temporary", size) for size in sizes]
    return taken + [("temporary", -size) for size in reversed(sizes)]


# ---- sorting ----


@rule(
    "aten.sort.default",
    "aten.sort.stable",
    "aten.sort.values_stable",
    source="ATen/native/cuda/Sort.cpp, Sort.cu, SortStable.cu",
)
def _sort_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    self = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 and type(args[1]) is int else -1)
    return [("result", 0), ("result", 0), *sort_events(self, dim)]


def sort_events(self: torch.Tensor, dim: int) -> WorkspaceEvents:
    """The workspace of sorting along a dimension."""
    if self.dim() == 0 or self.numel() <= 1:
        return []
    length, item = self.size(dim), self.dtype.itemsize
    if length <= _SMALL_SORT:
        return for_a_while(length * _LONG)
    events: list[WorkspaceEvent] = []
    if self.stride(dim) != 1 or not self.is_contiguous():
        events.append(("temporary", self.numel() * item))
        if dim % self.dim() != self.dim() - 1:
            events += [("temporary", self.numel() * item), ("temporary", self.numel() * _LONG)]
    return events + _long_sort(self.numel(), length, item)


def _long_sort(elements: int, length: int, item: int) -> list[WorkspaceEvent]:
    segments = elements // length
    if segments == 1 or length >= 1_000_000:
        return for_a_while(length * _LONG, sort_bytes(length, item, _LONG))
    pairs: WorkspaceEvent = ("temporary", elements * _LONG)
    if segments < 128:
        first = for_a_while(elements * item, sort_bytes(elements, item, _LONG))
        bits = max(1, math.ceil(math.log2(segments)))
        return [pairs, pairs, *first, *for_a_while(sort_bytes(elements, _LONG, 0, bits))]
    return for_a_while(elements * _LONG, _storage(elements * item, elements * _LONG))


_MANY_BLOCKS = ((20, 20_000), (40, 10_000), (79, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))


def _top_of_blocks(gpu: GpuAndTorch, slices: int, length: int, item: int) -> list[WorkspaceEvent]:
    """Long slices are divided among several thread blocks, which count digits."""
    least = next((least for most, least in _MANY_BLOCKS if slices <= most), 400)
    if length < least:
        return []
    per_thread = min(64, max(4, -(-slices * length // (gpu.processors * 6 * 256))))
    blocks = slices * -(-length // (per_thread * 256))
    sizes = (
        slices * item,
        slices * 8,
        slices * (16 if item == 8 else 8),
        blocks * 512,
        slices * 1024,
        blocks * 4,
        blocks * 4,
    )
    scan = for_a_while(scan_bytes(slices, 4))
    return [*(("temporary", size) for size in sizes), *scan, *scan, *(("temporary", -size) for size in reversed(sizes))]


@rule(
    "aten.topk.default",
    "aten.topk.values",
    source="ATen/native/cuda/TensorTopK.cpp: topk_out_cuda; TensorTopK.cu: mbtopk",
)
def _topk_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    self, k, dim = args[0], args[1], argument(args, kwargs, 2, "dim", -1)
    if self.dim() == 0 or self.numel() == 0:
        return None
    length, item = self.size(dim), self.dtype.itemsize
    events = [
        ("result", 0),
        ("result", 0),
        *contiguous_copy(self),
        *_top_of_blocks(gpu, self.numel() // length, length, item),
    ]
    if k > _SMALL_SORT and argument(args, kwargs, 4, "sorted", True):
        found = list(self.shape)
        found[dim] = k
        elements = numel(found)
        events += [("temporary", elements * _LONG), ("temporary", elements * item)]
        events += sort_events(torch.empty(found, dtype=self.dtype, device="meta"), dim)
    return events


@rule("aten.kthvalue.default", "aten.kthvalue.values", source="ATen/native/cuda/Sorting.cpp: kthvalue_out_impl_cuda")
def _kthvalue_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return None


@rule(
    "aten.median.default", "aten.nanmedian.default", source="ATen/native/cuda/Sorting.cpp: median_impl sorts everything"
)
def _median_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    self = args[0]
    elements, item = self.numel(), self.dtype.itemsize
    sort = sort_events(torch.empty(elements, dtype=self.dtype, device="meta"), 0)
    return [
        ("result", 0),
        *contiguous_copy(self),
        ("temporary", elements * item),
        ("temporary", elements * _LONG),
        *sort,
    ]


@rule(
    "aten.randperm.default",
    "aten.randperm.generator",
    "aten.randperm.generator_out",
    source="ATen/native/cuda/Randperm.cu",
)
def _randperm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
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
        *for_a_while(sort_bytes(count, key, _LONG, bits)),
    ]


# ---- scans ----


@rule(
    *(f"aten.{name}" for of in ("cumsum", "cumprod") for name in (f"{of}.default", f"{of}.out", f"{of}_.default")),
    source="ATen/native/cuda/ScanKernels.cpp; ScanUtils.cuh",
)
def _cumsum_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The input is converted to the result's type; a vector is scanned by CUB."""
    self, dim = args[0], args[1]
    dtype = argument(args, kwargs, 2, "dtype")
    if dtype is None:
        dtype = self.dtype if self.dtype.is_floating_point or self.dtype.is_complex else torch.int64
    events: list[WorkspaceEvent] = [("result", 0)]
    if dtype != self.dtype or not self.is_contiguous():
        events.append(("temporary", self.numel() * dtype.itemsize))
    if self.dim() and self.numel() == self.size(dim) and self.numel() > 0:
        events += for_a_while(scan_bytes(self.numel(), dtype.itemsize))
    return events


@rule("aten.cummax.default", "aten.cummin.default", source="ATen/native/cuda/ScanKernels.cpp")
def _contiguous_scan_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return [("result", 0), *contiguous_copy(args[0])]


# ---- operators whose results the meta device does not tell ----


def logcumsumexp(self: torch.Tensor, dim: int) -> torch.Tensor:
    with operators.taken(contiguous_copy(self)):
        return operators.make(self.shape, operators.contiguous_strides(self.shape), self.dtype)


def unique_events(self: torch.Tensor) -> WorkspaceEvents:
    """What finding the distinct elements takes (Unique.cu: unique_cuda_template)."""
    count, item = self.numel(), self.dtype.itemsize
    events = contiguous_copy(self) + [("temporary", count * item), ("temporary", count * _LONG)]
    return events + for_a_while(count * _LONG, sort_bytes(count, item, _LONG))


KERNELS = {"_logcumsumexp": logcumsumexp}
