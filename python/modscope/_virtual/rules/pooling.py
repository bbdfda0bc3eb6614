"""Rules of pooling. Sources: torch's aten/src/ATen/native/cuda (DilatedMaxPool2d.cu, DilatedMaxPool3d.cu,
AveragePool2d.cu, AveragePool3d.cu, AdaptiveMaxPooling2d.cu, AdaptiveAveragePooling.cu), and measurements on an H200
(torch 2.11)."""

from __future__ import annotations

from typing import Any

import torch
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules.rules import GpuAndTorch, result_bytes, rule

__all__: list[str] = []

_SOURCE = "ATen/native/cuda: DilatedMaxPool2d.cu, AveragePool2d.cu, AdaptiveMaxPooling2d.cu; measured"

_RESULT: WorkspaceEvent = ("result", 0)


def _copies(*tensors: torch.Tensor) -> list[WorkspaceEvent]:
    """Copies of tensors that are not dense in the layout of the last one, which is the operator's input."""
    from torch._prims_common import suggest_memory_format

    format = suggest_memory_format(tensors[-1])
    return [("temporary", tensor.nbytes) for tensor in tensors if not tensor.is_contiguous(memory_format=format)]


@rule(
    *(
        f"aten.{name}.default"
        for name in ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d")
    ),
    *(f"aten._adaptive_avg_pool{dimensions}d.default" for dimensions in (2, 3)),
    source=_SOURCE,
)
def _pool(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The kernels read an input that is dense in its layout."""
    copies = _copies(args[0])
    return [*([_RESULT] * (2 if isinstance(specs, list) else 1)), *copies] if copies else None


@rule(
    *(
        f"aten.{name}_backward.default"
        for name in ("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
    ),
    source=_SOURCE,
)
def _average_backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The kernels read a gradient that is dense in the input's layout."""
    copies = _copies(args[0], args[1])
    return [_RESULT, *copies] if copies else None


@rule("aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default", source=_SOURCE)
def _max_backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The kernels read a gradient and indices that are dense in the input's layout."""
    grad, input, indices = args[0], args[1], args[-1]
    copies = _copies(grad, indices, input)
    return [_RESULT, *copies] if copies else None


@rule("aten.adaptive_max_pool2d.default", source=_SOURCE)
def _adaptive_max_pool(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The kernel works on contiguous tensors."""
    input = args[0]
    if input.is_contiguous():
        return None
    copies = [result_bytes(spec) for spec in specs]
    return [_RESULT, _RESULT, *[("temporary", bytes) for bytes in (*copies, input.nbytes)]]


@rule("aten.adaptive_max_pool2d_backward.default", source=_SOURCE)
def _adaptive_max_pool_backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, input, indices = args[:3]
    if input.is_contiguous():
        return None
    bytes = [tensor.nbytes for tensor in (grad, indices, input)]
    return [_RESULT, *[("temporary", count) for count in bytes]]
