"""Rules of matrix products: workspaces of cuBLAS and cuBLASLt, and copies of operands whose strides they cannot
read."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any

import torch
from modscope import _native
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent, WorkspaceEvents
from modscope._virtual.rules.rules import GpuAndTorch, argument, at_start, rule

__all__ = ["forget_workspaces", "workspace_bytes", "workspace_lt_bytes"]

_SOURCE = "ATen/cuda/CublasHandlePool.cpp; ATen/native/cuda/Blas.cpp"
_KIB = 1024
_DEFAULT = 4096 * 2 + 16 * 8  # :4096:2:16:8
_HOPPER = 4096 * 8  # :4096:8

_taken: set[tuple[str, int, int]] = set()
"""The workspaces that were taken and are kept: of which library, and for which thread and stream."""


@at_start
def forget_workspaces() -> None:
    _taken.clear()


def workspace_bytes(gpu: GpuAndTorch) -> int:
    """The size of cuBLAS's workspace. CUBLAS_WORKSPACE_CONFIG holds pairs of a size in KiB and a count."""
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) * _KIB
    if gpu.torch < (2, 12):
        is_large = gpu.capability == (9, 0)
    else:
        is_large = gpu.capability[0] in ((9, 10, 12) if gpu.torch < (2, 15) else (9, 10, 11, 12))
    return (_HOPPER if is_large else _DEFAULT) * _KIB


def _is_unified(gpu: GpuAndTorch) -> bool:
    """Whether cuBLASLt uses cuBLAS's workspace."""
    setting = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    if setting is not None and gpu.torch >= (2, 8):
        return setting == "1"
    return (2, 12) <= gpu.torch < (2, 15)


def workspace_lt_bytes(gpu: GpuAndTorch) -> int:
    """The size of cuBLASLt's own workspace."""
    setting = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return (int(setting) if setting.isdigit() else 1024) * _KIB


def _kept(library: str, bytes: int) -> list[WorkspaceEvent]:
    """A workspace that the thread's first product on a stream takes."""
    key = (library, threading.get_ident(), _native.virtual_stream())
    if bytes == 0 or key in _taken:
        return []
    _taken.add(key)
    return [("kept", bytes)]


def _workspaces(gpu: GpuAndTorch, lt: bool) -> Callable[[], list[WorkspaceEvent]]:
    """What a product takes at each call, beside copies of its operands."""
    blas, own = workspace_bytes(gpu), 0 if _is_unified(gpu) else workspace_lt_bytes(gpu)
    if gpu.torch >= (2, 15):
        temporary: list[WorkspaceEvent] = [("temporary", (own or blas) if lt else blas)]
        return lambda: temporary
    if not lt or own == 0:
        return lambda: _kept("cublas", blas)
    if gpu.torch < (2, 9):
        return lambda: [*_kept("cublas", blas), ("temporary", own)]
    return lambda: _kept("cublas", blas) + _kept("cublaslt", own)


def product(gpu: GpuAndTorch, lt: bool = False, copies: WorkspaceEvents = ()) -> Callable[[], WorkspaceEvents]:
    """The events of a product: its result, copies of its operands, its workspaces."""
    workspaces = _workspaces(gpu, lt)
    start: list[WorkspaceEvent] = [("result", 0), *copies]
    return lambda: start + workspaces() if copies else _after_result(workspaces())


def _after_result(events: list[WorkspaceEvent]) -> WorkspaceEvents:
    return [("result", 0), *events] if events else ()


# ---- operands ----


def _is_readable(rows: int, columns: int, row_stride: int, column_stride: int) -> bool:
    """Whether cuBLAS can read a matrix, as it is or transposed."""
    return (row_stride == 1 and column_stride >= max(1, rows)) or (column_stride == 1 and row_stride >= max(1, columns))


def _copies(*operands: torch.Tensor) -> list[WorkspaceEvent]:
    """Copies of operands, matrices or batches of them, that cuBLAS cannot read."""
    events: list[WorkspaceEvent] = []
    for operand in operands:
        (rows, columns), (row_stride, column_stride) = operand.shape[-2:], operand.stride()[-2:]
        if operand.numel() and not _is_readable(rows, columns, row_stride, column_stride):
            events.append(("temporary", operand.nbytes))
    return events


def _is_empty(*operands: torch.Tensor) -> bool:
    return any(operand.numel() == 0 for operand in operands)


# ---- the operators ----


@rule(
    "aten.mm.default",
    "aten.mm.out",
    "aten.mm.dtype",
    "aten.bmm.default",
    "aten.bmm.out",
    "aten.bmm.dtype",
    source=_SOURCE,
)
def _mm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    left, right = args[0], args[1]
    if not _is_float(left) or _is_empty(left, right):
        return None
    return product(gpu, copies=_copies(left, right))


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _uses_lt(bias: torch.Tensor, right: torch.Tensor, beta: Any) -> bool:
    """Whether a product with a bias is one call of cuBLASLt."""
    return (
        beta == 1
        and bias.dim() == 1
        and bias.size(0) == right.size(1)
        and bias.is_contiguous()
        and not bias.dtype.is_complex
        and right.size(0) > 1
        and right.size(1) > 1
        and os.environ.get("DISABLE_ADDMM_CUDA_LT") != "1"
    )


@rule(
    "aten.addmm.default",
    "aten.addmm.out",
    "aten.addmm_.default",
    "aten._addmm_activation.default",
    "aten._addmm_activation.out",
    source=_SOURCE + ": addmm_out_cuda_impl, isInputCompliesAddmmCudaLt",
)
def _addmm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    bias, left, right = args[:3]
    if not _is_float(left) or _is_empty(left, right):
        return None
    lt = _uses_lt(bias, right, argument(args, kwargs, 3, "beta", 1))
    return product(gpu, lt, _copies(left, right))


@rule("aten.baddbmm.default", "aten.baddbmm.out", "aten.baddbmm_.default", source=_SOURCE)
def _baddbmm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    left, right = args[1], args[2]
    return None if _is_empty(left, right) else product(gpu, copies=_copies(left, right))


@rule("aten.addmv.default", "aten.addmv.out", "aten.addmv_.default", source=_SOURCE + ": addmv_out_cuda")
def _addmv_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    matrix = args[1]
    return None if _is_empty(matrix) else _vector_product(gpu, _copies(matrix))


@rule("aten.dot.default", "aten.vdot.default", source=_SOURCE + ": dot_cuda")
def _dot_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return None if args[0].numel() <= 1 else _vector_product(gpu, [])


def _vector_product(gpu: GpuAndTorch, copies: WorkspaceEvents) -> Workspace:
    """From torch 2.15 on only products of matrices take a workspace, not those of vectors."""
    return [("result", 0), *copies] if gpu.torch >= (2, 15) else product(gpu, copies=copies)


@rule(
    "aten._scaled_mm.default",
    "aten._scaled_mm.out",
    "aten._scaled_mm_v2.default",
    source=_SOURCE + ": _scaled_mm_out_cuda",
)
def _scaled_mm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return product(gpu, lt=True)


@rule("aten._int_mm.default", "aten._int_mm.out", source=_SOURCE + ": _int_mm_out_cuda")
def _int_mm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return product(gpu, lt=True)


@rule("aten._grouped_mm.default", source="ATen/native/cuda/GroupMM.cu: bf16bf16_grouped_gemm_impl_sm90_sm100")
def _grouped_mm_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """A CUTLASS kernel gets a buffer of pointers, strides and shapes of the groups, and descriptors for each processor.
    Other GPUs and types compute the groups one after the other."""
    left, offsets = args[0], argument(args, kwargs, 2, "offs")
    if gpu.capability[0] not in (9, 10) or left.dtype != torch.bfloat16:
        return product(gpu)
    groups = offsets.size(0) if offsets is not None else left.size(0)
    buffer = -(-groups // 2) * 2 * 3 * 8 + groups * (12 + 3 * 8)
    return [("result", 0), ("temporary", buffer), ("temporary", 512 * gpu.processors)]
