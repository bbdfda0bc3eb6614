"""The workspace of the kernels of attention.

Sources: torch's aten/src/ATen/native/transformers/cuda (attention.cu, attention_backward.cu, flash_attn/flash_api.cpp,
mem_eff_attention/kernel_backward.h); cuDNN's workspaces were measured on an H200 (torch 2.11, cuDNN 9.19).
"""

from __future__ import annotations

from typing import Any

import torch
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules.rules import GpuAndTorch, argument, rule

__all__: list[str] = []

_FLOAT = 4
"""Bytes of an element that is accumulated."""
_RESULT: WorkspaceEvent = ("result", 0)


def _round_up(count: int, to: int) -> int:
    return -(-count // to) * to


def _copy_in_rows(tensor: torch.Tensor) -> list[WorkspaceEvent]:
    """A copy of a tensor [batch, head, row, element] whose rows do not lie in the order [batch, row, head, element]."""
    return [] if tensor.transpose(1, 2).is_contiguous() else [("temporary", tensor.nbytes)]


# ---- cuDNN ----


@rule("aten._scaled_dot_product_cudnn_attention.default", source="measured: cuDNN's workspace")
def _cudnn(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return [_RESULT, _RESULT, ("temporary", 256)]


@rule("aten._scaled_dot_product_cudnn_attention_backward.default", source="measured: cuDNN's workspace")
def _cudnn_backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, query, key, value, out = args[:5]
    rows = query.numel() // query.size(-1)
    workspace = 256 + rows * _FLOAT + query.numel() * _FLOAT
    if key.size(1) != query.size(1):
        heads = query.size(1) // key.size(1)
        workspace += heads * (key.nbytes + value.nbytes)
    same = grad.stride() == out.stride()
    return [_RESULT] * 3 + ([] if same else [("temporary", grad.nbytes)]) + [("temporary", workspace)]


# ---- flash ----


def _flash_splits(gpu: GpuAndTorch, query: torch.Tensor, keys: int) -> int:
    """Into how many parts the keys are split, so that few queries occupy the whole GPU."""
    batch, heads, rows, size = query.shape
    per_block = 256 if size <= 64 else 128 if size <= 128 else 64
    blocks, available = -(-keys // per_block), 2 * gpu.processors
    units = batch * heads * -(-rows // 64)
    if units >= 0.8 * available:
        return 1

    def efficiency(splits: int) -> float:
        waves = units * splits / available
        return waves / -(-units * splits // available)

    different = [
        n for n in range(1, min(128, available, blocks) + 1) if n == 1 or -(-blocks // n) != -(-blocks // (n - 1))
    ]
    best = max(efficiency(n) for n in different)
    return next(n for n in different if efficiency(n) >= 0.85 * best)


def _flash_head(size: int) -> int:
    return _round_up(size, 32) if size <= 192 else 256


@rule(
    "aten._scaled_dot_product_flash_attention.default",
    source="ATen/native/transformers/cuda/flash_attn/flash_api.cpp: set_params_splitkv",
)
def _flash(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    query, key = args[0], args[1]
    if argument(args, kwargs, 3, "dropout_p", 0.0):
        return [_RESULT, _RESULT, _RESULT, _RESULT, ("temporary", 16)]
    splits = _flash_splits(gpu, query, key.size(2))
    if splits == 1:
        return None
    rows = splits * query.numel() // query.size(-1) * _FLOAT
    return [_RESULT, _RESULT, ("temporary", rows), ("temporary", rows * _flash_head(query.size(-1)))]


@rule(
    "aten._scaled_dot_product_flash_attention_backward.default",
    source="ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_bwd",
)
def _flash_backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, query, key, value, out = args[:5]
    batch, heads, rows, size = query.shape
    padded_rows = batch * heads * _round_up(rows, 128) * _FLOAT
    events = [*_copy_in_rows(grad), *_copy_in_rows(out), _RESULT, _RESULT, _RESULT]
    events += [("temporary", padded_rows), ("temporary", padded_rows * _flash_head(size))]
    if key.size(1) != heads:
        times = heads // key.size(1)
        events += [("temporary", times * key.nbytes), ("temporary", times * value.nbytes)]
    return events


# ---- memory-efficient ----


@rule(
    "aten._scaled_dot_product_efficient_attention.default",
    source="ATen/native/transformers/cuda/attention.cu: _efficient_attention_forward",
)
def _efficient(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    query, value = args[0], args[2]
    if query.dtype == torch.float32 or max(query.size(-1), value.size(-1)) <= 128:
        return None
    accumulated = query.numel() // query.size(-1) * value.size(-1) * _FLOAT
    return [_RESULT, _RESULT, ("temporary", accumulated)]


def _efficient_workspace(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """The gradient of the queries is accumulated in tiles, each with a lock of 16 bytes."""
    half = query.dtype != torch.float32
    size = max(query.size(-1), value.size(-1))
    height = 64 if size <= 64 else 128
    in_registers = half and size <= 128
    width = height if in_registers or size <= 64 else 64
    tiles = -(-query.size(2) // height) * -(-query.size(-1) // width)
    bytes = tiles * (height * width * _FLOAT + 16)
    if half and not in_registers:
        keys = _round_up(key.size(2), 64)
        bytes += keys * (_round_up(query.size(-1), height) + _round_up(value.size(-1), height)) * _FLOAT
    return query.size(0) * query.size(1) * bytes


@rule(
    "aten._scaled_dot_product_efficient_attention_backward.default",
    source="ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h: workspace_size",
)
def _efficient_backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, query, key, value, bias = args[:5]
    with_bias = bias is not None and argument(args, kwargs, 10, "grad_input_mask", [False] * 4)[3]
    events = [*_copy_in_rows(grad), *[_RESULT] * (4 if with_bias else 3)]
    delta = query.numel() // query.size(-1) * _FLOAT
    if query.dtype == torch.float32:
        product = query.numel() // query.size(-1) * value.size(-1) * _FLOAT
        events += [("temporary", product), ("temporary", delta)]
        if query.size(1) > 1 and query.size(2) > 1:
            events += [("temporary", delta), ("temporary", -delta)]
        events += [("temporary", -product)]
    else:
        events += [("temporary", delta)]
    return [*events, ("temporary", _efficient_workspace(query, key, value)), ("temporary", -delta)]
