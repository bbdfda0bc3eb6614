"""Rules of reductions: a sum of many values for few results is split between thread blocks, which needs memory.

The arithmetic is that of ``setReduceConfig`` in torch's ATen/native/cuda/Reduce.cuh.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from modscope._virtual.operators import geometry
from modscope._virtual.operators.geometry import Iteration
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent, WorkspaceEvents
from modscope._virtual.rules.rules import GpuAndTorch, argument, contiguous_copy, last_power, rule

__all__ = ["Accumulator", "reduction", "split_sizes"]

_SOURCE = "ATen/native/cuda/Reduce.cuh: setReduceConfig, ReduceConfig::global_memory_size, semaphore_size"
_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES, _MAX_VALUES = 16, 256
_LOW_PRECISION = (torch.float16, torch.bfloat16)


class Accumulator(NamedTuple):
    """What a kernel keeps for each result while it reduces."""

    bytes: int
    input_vector: int = 4
    """How many inputs a thread loads at once."""


def _output_vector(iteration: Iteration, offset: int) -> int:
    """How many results a thread makes at once."""
    at = iteration.reduced_dimensions
    multiples = [offset, iteration.shape[at]] + [stride for i, stride in enumerate(iteration.input) if i != at]
    vector = 4
    for value in multiples:
        while value % vector:
            vector //= 2
    return vector


class _ReduceConfig:
    """How a reduction is divided among threads."""

    def __init__(
        self, gpu: GpuAndTorch, iteration: Iteration, accumulator: Accumulator, max_threads: int, offset: int
    ) -> None:
        self._iteration, self._accumulator = iteration, accumulator
        reduced = iteration.reduced_dimensions
        inputs = geometry.numel(iteration.shape[:reduced])
        self.outputs = geometry.numel(iteration.shape[reduced:])
        fast = reduced == len(iteration.shape) or iteration.input[0] < iteration.input[reduced]
        self.reduces_fastest = fast
        self.output_vector = 1
        width, height = (inputs, self.outputs) if fast else (self.outputs, inputs)
        if not iteration.shape:
            width = height = 1
        elif iteration.input[0 if fast else reduced] == 1:
            if fast and width >= 128 and reduced == 1:
                width //= accumulator.input_vector
            elif not fast:
                self.output_vector = _output_vector(iteration, offset)
                width //= self.output_vector
        self._set_block(width, height, max_threads // self.output_vector)
        self.ctas = self._split(gpu, inputs)

    def _set_block(self, width: int, height: int, most: int) -> None:
        widest = last_power(width) if width < most else most
        highest = last_power(height) if height < most else most
        self.width = min(widest, _WARP)
        self.height = min(highest, most // self.width)
        self.width = min(widest, most // self.height)

    def _split(self, gpu: GpuAndTorch, inputs: int) -> int:
        """Among how many thread blocks the inputs of one result are divided."""
        step = self.width if self.reduces_fastest else 1
        values = -(-inputs // step)
        across_warps = values >= min(self.height * 16, _MAX_VALUES)
        output_step = (1 if self.reduces_fastest else self.width) * (1 if across_warps else self.height)
        self.grid = -(-(self.outputs // self.output_vector) // output_step)
        if across_warps:
            values = -(-inputs // (step * self.height))
        target = gpu.processors * (gpu.threads_per_processor // (self.width * self.height))
        if not across_warps or values < _MAX_VALUES or self.grid > target:
            return 1
        return max(min(-(-target // self.grid), -(-values // _MIN_VALUES)), -(-values // _MAX_VALUES))

    def memory(self) -> tuple[int, int] | None:
        """The bytes of the partial results and of the semaphores."""
        if self.ctas <= 1:
            return None
        partial = self._accumulator.bytes * self.outputs * self.ctas
        if not self.reduces_fastest:
            partial *= self.width * self.output_vector
        return partial, 4 * self.grid


def split_sizes(
    gpu: GpuAndTorch,
    iteration: Iteration,
    accumulator: Accumulator,
    dtype: torch.dtype = torch.float32,
    offset: int = 0,
) -> tuple[int, int] | None:
    """The bytes of the partial results and of the semaphores, or None if no result is split."""
    max_threads = 256 if dtype == torch.complex128 else _MAX_THREADS
    return _ReduceConfig(gpu, iteration, accumulator, max_threads, offset).memory()


def reduction(
    gpu: GpuAndTorch,
    iteration: Iteration,
    dtype: torch.dtype,
    accumulator: Accumulator,
    out: torch.dtype,
    offset: int = 0,
) -> list[WorkspaceEvent]:
    """The events of one reduction, its result left out."""
    if 0 in iteration.shape:
        return []
    events = [] if _fits_32_bits(iteration, dtype) else _accumulation_buffer(iteration, dtype, accumulator, out)
    return events + _in_parts(gpu, iteration, dtype, accumulator, offset)


def _extents(iteration: Iteration) -> list[int]:
    return [(size - 1) * stride for size, stride in zip(iteration.shape, iteration.input, strict=True)]


def _fits_32_bits(iteration: Iteration, dtype: torch.dtype) -> bool:
    return max(geometry.numel(iteration.shape), 1 + sum(_extents(iteration)) * dtype.itemsize) < 1 << 31


def _accumulation_buffer(
    iteration: Iteration, dtype: torch.dtype, accumulator: Accumulator, out: torch.dtype
) -> list[WorkspaceEvent]:
    """Parts of a large tensor are accumulated in a buffer where the result is too narrow for it."""
    is_pair = accumulator.bytes > 8
    if accumulator.bytes <= out.itemsize or not (is_pair or (dtype == out and dtype in _LOW_PRECISION)):
        return []
    elements = max(1, *(size * stride for size, stride in zip(iteration.shape, iteration.output, strict=True)))
    return [("temporary", elements * accumulator.bytes)]


def _in_parts(
    gpu: GpuAndTorch, iteration: Iteration, dtype: torch.dtype, accumulator: Accumulator, offset: int
) -> list[WorkspaceEvent]:
    """A tensor whose offsets do not fit into 32 bits is halved along its largest extent until they do."""
    if _fits_32_bits(iteration, dtype):
        sizes = split_sizes(gpu, iteration, accumulator, dtype, offset)
        if sizes is None:
            return []
        partial, semaphores = sizes
        return [("temporary", partial), ("temporary", semaphores), ("temporary", -semaphores), ("temporary", -partial)]
    extents = _extents(iteration)
    at = max(range(len(extents) - 1, -1, -1), key=lambda i: extents[i])
    events: list[WorkspaceEvent] = []
    first = iteration.shape[at] // 2
    for part in (first, iteration.shape[at] - first):
        shape = list(iteration.shape)
        shape[at] = part
        events += _in_parts(gpu, Iteration(shape, iteration.output, iteration.input), dtype, accumulator, offset)
    return events


# ---- the operators ----


def _dimensions(dim: Any) -> Any:
    return [dim] if isinstance(dim, int) else dim


def _converted(self: torch.Tensor, dtype: torch.dtype) -> tuple[list[WorkspaceEvent], list[int]]:
    """A copy of another type that an operator makes of its argument, and its strides."""
    if self.dtype == dtype:
        return [], list(self.stride())
    copy = torch.empty_like(self, dtype=dtype, device="meta")
    return [("temporary", self.numel() * dtype.itemsize)], list(copy.stride())


def _reduce(
    gpu: GpuAndTorch,
    self: torch.Tensor,
    dim: Any,
    keep: bool,
    accumulator: Accumulator,
    out: torch.dtype,
    dtype: torch.dtype,
) -> WorkspaceEvents:
    """The events of an operator that makes its result and then reduces ``self``, converted to ``dtype``, into it."""
    copies, strides = _converted(self, dtype)
    iteration = geometry.reduce_iteration(self.shape, strides, _dimensions(dim), keep)
    offset = 0 if copies else int(self.storage_offset())
    return [("result", 0), *copies, *reduction(gpu, iteration, dtype, accumulator, out, offset)]


def _accumulator_of(dtype: torch.dtype, wide_loads: bool = False) -> Accumulator:
    """An accumulator of a sum: single precision for types of 16 bits."""
    if dtype in _LOW_PRECISION:
        return Accumulator(4, 8 if wide_loads else 4)
    return Accumulator(8 if dtype == torch.complex32 else dtype.itemsize)


def _sum_types(self: torch.Tensor, dtype: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """The type of the result, and the type that the input is converted to."""
    integral = not (self.dtype.is_floating_point or self.dtype.is_complex)
    out = dtype or (torch.int64 if integral else self.dtype)
    low_to_single = self.dtype in _LOW_PRECISION and out == torch.float32
    return out, self.dtype if low_to_single else out


def _sum(
    gpu: GpuAndTorch, self: torch.Tensor, dim: Any, keep: bool, dtype: torch.dtype | None, wide_loads: bool
) -> WorkspaceEvents:
    out, of = _sum_types(self, dtype)
    return _reduce(gpu, self, dim, keep, _accumulator_of(of, wide_loads), out, of)


@rule(
    "aten.sum.dim_IntList",
    "aten.sum.IntList_out",
    "aten.mean.dim",
    "aten.mean.out",
    source=_SOURCE + "; ReduceSumProdKernel.cu",
)
def _sum_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    keep = argument(args, kwargs, 2, "keepdim", False)
    return _sum(gpu, args[0], argument(args, kwargs, 1, "dim"), keep, argument(args, kwargs, 3, "dtype"), True)


@rule("aten.nansum.default", "aten.nansum.out", source=_SOURCE + "; ReduceSumProdKernel.cu")
def _nansum_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    keep = argument(args, kwargs, 2, "keepdim", False)
    return _sum(gpu, args[0], argument(args, kwargs, 1, "dim"), keep, argument(args, kwargs, 3, "dtype"), False)


@rule("aten.prod.default", source=_SOURCE + "; ReduceSumProdKernel.cu")
def _prod_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _sum(gpu, args[0], None, False, argument(args, kwargs, 1, "dtype"), True)


@rule("aten.prod.dim_int", "aten.prod.int_out", source=_SOURCE + "; ReduceSumProdKernel.cu")
def _prod_dimension_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    keep = argument(args, kwargs, 2, "keepdim", False)
    return _sum(gpu, args[0], args[1], keep, argument(args, kwargs, 3, "dtype"), True)


@rule("aten.norm.ScalarOpt_dim", "aten.norm.out", source=_SOURCE + "; ReduceNormKernel.cu")
def _norm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    dim, keep = argument(args, kwargs, 2, "dim"), argument(args, kwargs, 3, "keepdim", False)
    return _sum(gpu, args[0], dim, keep, args[0].dtype, False)


@rule("aten.linalg_vector_norm.default", "aten.linalg_vector_norm.out", source=_SOURCE + "; ReduceNormKernel.cu")
def _vector_norm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    dim, keep = argument(args, kwargs, 2, "dim"), argument(args, kwargs, 3, "keepdim", False)
    return _sum(gpu, args[0], dim, keep, argument(args, kwargs, 4, "dtype") or args[0].dtype, False)


_WELFORD = "ReduceMomentKernel.cu: WelfordData holds mean, sum of squares and two counts"


def _variance(gpu: GpuAndTorch, args: Any, kwargs: Any, results: int) -> WorkspaceEvents:
    self = args[0]
    keep = argument(args, kwargs, 3, "keepdim", False)
    accumulator = Accumulator(32 if self.dtype == torch.float64 else 16, 2)
    events = list(_reduce(gpu, self, argument(args, kwargs, 1, "dim"), keep, accumulator, self.dtype, self.dtype))
    return [("result", 0)] * (results - 1) + events


@rule("aten.var.correction", "aten.std.correction", source=_SOURCE + "; " + _WELFORD)
def _variance_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _variance(gpu, args, kwargs, 1)


@rule("aten.var_mean.correction", "aten.std_mean.correction", source=_SOURCE + "; " + _WELFORD)
def _variance_mean_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _variance(gpu, args, kwargs, 2)


def _extremum(
    gpu: GpuAndTorch, self: torch.Tensor, dim: Any, keep: bool, bytes: int, out: torch.dtype, results: int = 1
) -> WorkspaceEvents:
    events = list(_reduce(gpu, self, dim, keep, Accumulator(bytes), out, self.dtype))
    return [("result", 0)] * (results - 1) + events


@rule(
    "aten.amax.default",
    "aten.amin.default",
    "aten.amax.out",
    "aten.amin.out",
    source=_SOURCE + "; ReduceMinMaxValuesKernel",
)
def _amax_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    self, keep = args[0], argument(args, kwargs, 2, "keepdim", False)
    return _extremum(gpu, self, argument(args, kwargs, 1, "dim"), keep, self.dtype.itemsize, self.dtype)


@rule("aten.max.default", "aten.min.default", source=_SOURCE + "; ReduceMaxValuesKernel.cu, ReduceMinValuesKernel.cu")
def _max_all_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The operator makes a contiguous copy of its argument first."""
    self = args[0]
    copy = contiguous_copy(self)
    iteration = geometry.reduce_iteration(self.shape, geometry.contiguous_strides(self.shape), None)
    return [("result", 0), *copy, *reduction(gpu, iteration, self.dtype, Accumulator(self.dtype.itemsize), self.dtype)]


_PAIR = "a value and its index are reduced together, 16 bytes"


@rule("aten.max.dim", "aten.min.dim", "aten.max.dim_max", "aten.min.dim_min", source=_SOURCE + "; " + _PAIR)
def _max_dimension_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _extremum(gpu, args[0], args[1], argument(args, kwargs, 2, "keepdim", False), 16, args[0].dtype, 2)


@rule("aten.argmax.default", "aten.argmin.default", "aten.argmax.out", "aten.argmin.out", source=_SOURCE + "; " + _PAIR)
def _argmax_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    self, dim = args[0], argument(args, kwargs, 1, "dim")
    if dim is not None:
        return _extremum(gpu, self, dim, argument(args, kwargs, 2, "keepdim", False), 16, torch.int64)
    copy = contiguous_copy(self)
    iteration = geometry.reduce_iteration([self.numel()], [1], None)
    return [("result", 0), *copy, *reduction(gpu, iteration, self.dtype, Accumulator(16), torch.int64)]


@rule("aten.aminmax.default", "aten.aminmax.out", source=_SOURCE + "; a pair of two values is reduced")
def _aminmax_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    self, keep = args[0], argument(args, kwargs, 2, "keepdim", False)
    return _extremum(gpu, self, argument(args, kwargs, 1, "dim"), keep, 2 * self.dtype.itemsize, self.dtype, 2)


_LOGIC = ("default", "dim", "dims", "all_out", "out", "dims_out")


@rule(
    *(f"aten.{name}.{overload}" for name in ("any", "all") for overload in _LOGIC),
    source=_SOURCE + "; ReduceLogicKernel.cu",
)
def _any_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    keep = argument(args, kwargs, 2, "keepdim", False)
    return _extremum(gpu, args[0], argument(args, kwargs, 1, "dim"), keep, 1, torch.bool)


@rule(
    "aten.count_nonzero.dim_IntList", source="ATen/native/TensorAdvancedIndexing.cpp: count_nonzero_cuda sums self != 0"
)
def _count_nonzero_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    self = args[0]
    differs = torch.empty_like(self, dtype=torch.bool, device="meta")
    return [("temporary", self.numel()), *_sum(gpu, differs, argument(args, kwargs, 1, "dim"), False, None, True)]


_CHUNK = 65536


@rule("aten._foreach_norm.Scalar", source="ATen/native/cuda/ForeachReduceOp.cu: foreach_tensor_norm_cuda")
def _foreach_norm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """Each tensor has a place for each of the chunks of the largest one."""
    tensors = args[0]
    if not tensors:
        return None
    chunks = max(-(-tensor.numel() // _CHUNK) for tensor in tensors)
    item = 8 if tensors[0].dtype == torch.float64 else 4
    return [("temporary", max(chunks, 1) * len(tensors) * item)]
