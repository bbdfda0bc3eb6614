"""Rules of normalization: contiguous copies, partial sums, coefficients of groups; and of a few other operators."""

from __future__ import annotations

from typing import Any

import torch
from modscope._virtual.operators import geometry
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules.reductions import Accumulator, reduction
from modscope._virtual.rules.rules import GpuAndTorch, argument, contiguous_copy, rule

_WARP = 32
_MANY_ROWS = 64 * 1024
_ROWS_PER_BLOCK = 32


def _result(wanted: bool) -> list[WorkspaceEvent]:
    return [("result", 0)] if wanted else []


# ---- layer norm ----


@rule("aten.native_layer_norm.default", source="ATen/native/cuda/layer_norm_kernel.cu: layer_norm_cuda")
def _layer_norm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    copies = contiguous_copy(args[0])
    return copies or None


@rule("aten._fused_rms_norm.default", source="ATen/native/cuda/layer_norm_kernel.cu: _fused_rms_norm_cuda")
def _rms_norm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    copies = contiguous_copy(args[0])
    return copies or None


def _weight_gradients(gpu: GpuAndTorch, rows: int, width: int, dtype: torch.dtype, count: int) -> list[WorkspaceEvent]:
    """Many rows of few columns are summed for the weights in blocks of 32 rows first, then over the blocks."""
    if rows <= _MANY_ROWS or width // _WARP >= gpu.processors // 2 or count == 0:
        return []
    blocks = -(-rows // _ROWS_PER_BLOCK)
    events: list[WorkspaceEvent] = [("temporary", blocks * width * dtype.itemsize)] * count
    iteration = geometry.reduce_iteration([blocks, width], [width, 1], [0])
    for _ in range(count):
        result = width * dtype.itemsize
        low = dtype in (torch.float16, torch.bfloat16)
        accumulator = Accumulator(4 if low else dtype.itemsize, 8 if low else 4)
        events += [("temporary", result), *reduction(gpu, iteration, dtype, accumulator, dtype), ("temporary", -result)]
    return events


@rule(
    "aten.native_layer_norm_backward.default",
    source="ATen/native/cuda/layer_norm_kernel.cu: LaunchGammaBetaBackwardCUDAKernel",
)
def _layer_norm_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, input, shape, mask = args[0], args[1], args[2], args[7]
    width = geometry.numel(shape)
    rows = input.numel() // width if width else 0
    results = [event for wanted in mask for event in _result(wanted)]
    dtype = args[5].dtype if args[5] is not None else input.dtype
    sums = _weight_gradients(gpu, rows, width, dtype, sum(mask[1:]))
    events = [*contiguous_copy(input), *results, *contiguous_copy(grad), *sums]
    return events if len(events) > len(results) else None


@rule(
    "aten._fused_rms_norm_backward.default",
    source="ATen/native/cuda/layer_norm_kernel.cu: _fused_rms_norm_backward_cuda",
)
def _rms_norm_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, input, shape, _, weight, mask = args[:6]
    width = geometry.numel(shape)
    rows = input.numel() // width if width else 0
    results = [event for wanted in mask for event in _result(wanted)]
    dtype = weight.dtype if weight is not None else input.dtype
    events = [
        *contiguous_copy(input),
        *results,
        *contiguous_copy(grad),
        *_weight_gradients(gpu, rows, width, dtype, int(mask[1])),
    ]
    return events if len(events) > len(results) else None


# ---- group norm ----


def _accumulator(dtype: torch.dtype) -> int:
    return max(4, dtype.itemsize)


@rule("aten.native_group_norm.default", source="ATen/native/cuda/group_norm_kernel.cu: GroupNormKernelImplInternal")
def _group_norm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """A scale and a shift for each sample and channel."""
    input, weight, bias, samples, channels, pixels = args[:6]
    if pixels == 1 or (weight is None and bias is None):
        return None
    bytes = samples * channels * _accumulator(input.dtype)
    return [("result", 0), ("result", 0), ("result", 0), ("temporary", bytes), ("temporary", bytes)]


@rule(
    "aten.native_group_norm_backward.default",
    source="ATen/native/cuda/group_norm_kernel.cu: GroupNormBackwardKernelImplInternal",
)
def _group_norm_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, input, _, _, _, samples, channels, pixels, groups = args[:9]
    mask = argument(args, kwargs, 9, "output_mask", [True, True, True])
    results = [event for wanted in mask for event in _result(wanted)]
    item = _accumulator(input.dtype)
    per_channel: WorkspaceEvent = ("temporary", samples * channels * item)
    per_group: WorkspaceEvent = ("temporary", samples * groups * item)
    events: list[WorkspaceEvent] = [*contiguous_copy(grad), *results]
    if pixels == 1:
        return [*events, per_group, per_group] if mask[0] else events
    events += [per_channel, per_channel]
    if mask[0]:
        events += [per_group, per_group, per_channel]
    return events


# ---- others ----


@rule("aten.pow.Scalar", "aten.pow.Scalar_out", source="ATen/native/Pow.cpp: the base becomes a tensor of one element")
def _power_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return [("result", 0), ("temporary", args[1].dtype.itemsize)]


@rule("aten.native_dropout.default", source="ATen/native/cuda/Dropout.cu: dropout_cuda", order=(1, 0))
def _dropout_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The mask is made before the result."""
    return None
