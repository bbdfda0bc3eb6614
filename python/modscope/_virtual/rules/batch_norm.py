"""Batch norm on the virtual device: cuDNN's or torch's own kernels, and the memory that they take.

Sources: torch's aten/src/ATen/native/Normalization.cpp (the choice), native/cuda/Normalization.cuh (the stages of a sum
over rows). cuDNN's workspaces were measured on an H200 (torch 2.11, cuDNN 9.19)."""

from __future__ import annotations

from typing import Any

import torch
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules.rules import GpuAndTorch, doubt, last_power, rule

__all__ = ["COMPOSED", "takes_cudnn"]

_RESULT: WorkspaceEvent = ("result", 0)
_FLOAT = 4
_INDEX = 4
"""Bytes of an accumulated element, and of a semaphore."""

# ---- the choice ----


def takes_cudnn(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    cudnn_enabled: bool,
) -> bool:
    """Whether a GPU would use cuDNN for this batch norm."""
    if not cudnn_enabled or weight is None or bias is None or input.dim() < 3:
        return False
    if input.dtype == torch.bfloat16 or weight.dtype == torch.bfloat16:
        return False
    if input.dtype == torch.float16 and weight.dtype != torch.float32:
        return False
    has_statistics = running_mean is not None and running_var is not None
    if not has_statistics and not (running_mean is None and running_var is None and training):
        return False
    return input.size(0) <= (880801 if training else 65535) and input.numel() < (1 << 31) - 1


def _in_layout(input: torch.Tensor) -> torch.Tensor:
    from torch._prims_common import suggest_memory_format

    return input.contiguous(memory_format=suggest_memory_format(input))


def _of_nothing(input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> Any:
    """An input without elements: the result is made by operators whose gradients reach weight and bias."""
    out = input.clone()
    out = out if weight is None else out * weight[0]
    out = out if bias is None else out + bias[0]
    dtype = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    statistics = [input.new_empty(input.shape[1:2], dtype=dtype) for _ in range(2)]
    return out, *statistics, input.new_empty(0, dtype=torch.uint8), 0


def _batch_norm_impl_index(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    aten = torch.ops.aten
    if input.numel() == 0:
        return _of_nothing(input, weight, bias)
    if takes_cudnn(input, weight, bias, running_mean, running_var, training, cudnn_enabled):
        out = aten.cudnn_batch_norm(_in_layout(input), weight, bias, running_mean, running_var, training, momentum, eps)
        return (*out, 1)
    out = aten.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return (*out, input.new_empty(0, dtype=torch.uint8), 0)


COMPOSED = {"_batch_norm_impl_index": _batch_norm_impl_index}
"""Operators made of differentiable ones."""

# ---- cuDNN ----


def _cudnn_workspace(input: torch.Tensor, share: float, per_channel: float = 0.0) -> int:
    """Only the kernels for channels last have one: it grows with the input, whose channels are padded to 64."""
    if input.dim() < 4 or input.is_contiguous():
        return 0
    channels = input.size(1)
    padded = -(-channels // 64) * 64
    return int(input.numel() // channels * padded / 8 * share + per_channel * padded) + 1076


def _with(workspace: int) -> Workspace:
    if workspace:
        doubt("batch_norm", workspace)
    return [_RESULT, _RESULT, _RESULT, ("temporary", workspace)] if workspace else None


@rule("aten.cudnn_batch_norm.default", source="ATen/native/cudnn/BatchNorm.cpp; the workspace: measured")
def _cudnn(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    input, training = args[0], args[5]
    workspace = _cudnn_workspace(input, 1 + 1 / 128 if input.dtype.itemsize == 4 else 0.4034) if training else 0
    return _with(workspace)


@rule("aten.cudnn_batch_norm_backward.default", source="ATen/native/cudnn/BatchNorm.cpp; the workspace: measured")
def _cudnn_backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    workspace = _cudnn_workspace(args[0], 2 / 3, 5.4)
    return _with(workspace)


# ---- torch's own kernels ----


def _rows_of_channels(input: torch.Tensor) -> bool:
    """Whether the channels of a pixel lie next to each other in memory."""
    if input.is_contiguous():
        return input.stride(1) == 1
    return input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last) or _is_last_of_three(input)


def _is_last_of_three(input: torch.Tensor) -> bool:
    return input.dim() == 5 and not input.is_contiguous() and input.is_contiguous(memory_format=torch.channels_last_3d)


def _stages(input: torch.Tensor, values: int) -> list[WorkspaceEvent]:
    """Partial sums of thread blocks that share a channel, and their semaphores; ``values`` are kept of each channel."""
    channels = input.size(1)
    rows = input.numel() // channels
    width = min(last_power(channels), 32)
    height = min(last_power(-(-rows // 16)), 512 // width)
    if width * height != 512:
        width = min(last_power(channels), 512 // height)
    blocks = min(-(-rows // (height * 16)), 128)
    if blocks < 8:
        return []
    staging, semaphores = values * channels * blocks * _FLOAT, -(-channels // width) * _INDEX
    return [("temporary", staging), ("temporary", semaphores), ("temporary", -semaphores), ("temporary", -staging)]


@rule(
    "aten.native_batch_norm.default",
    "aten._native_batch_norm_legit.default",
    "aten._batch_norm_with_update.default",
    source="ATen/native/cuda/Normalization.cuh: batch_norm_stats_channels_last_cuda_template",
)
def _native(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    input = args[0]
    training = args[5] if len(args) > 7 else True
    if not training or not _rows_of_channels(input) or input.numel() == 0:
        return None
    if _is_last_of_three(input):
        return [_RESULT, _RESULT, _RESULT, ("temporary", input.numel() * _FLOAT)] if input.dtype.itemsize == 2 else None
    stages = _stages(input, 4)
    return [_RESULT, _RESULT, _RESULT, *stages] if stages else None


@rule(
    "aten.native_batch_norm_backward.default",
    source="ATen/native/cuda/Normalization.cuh: batch_norm_backward_reduce_cuda_channels_last_template",
)
def _native_backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, input = args[0], args[1]
    if not _rows_of_channels(input) or input.numel() == 0:
        return None
    sums: WorkspaceEvent = ("temporary", input.size(1) * _FLOAT)
    copy: list[WorkspaceEvent] = [] if grad.stride() == input.stride() else [("temporary", grad.nbytes)]
    return [*copy, sums, sums, *_stages(input, 2), _RESULT]
