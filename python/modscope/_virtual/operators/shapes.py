"""The shapes of results of operators that torch has no meta kernel for, or another one than CUDA's: functions of
tensors on the device "meta"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SHAPES"]

_empty_like = torch.empty_like


def _mutates(*_: Any, **__: Any) -> None:
    """The operator only writes to its arguments."""


def _answers_no(*_: Any, **__: Any) -> bool:
    return False


def _like(position: int) -> Callable[..., torch.Tensor]:
    """The result is like an argument, and contiguous."""
    return lambda *args, **_: _empty_like(args[position], memory_format=torch.contiguous_format)


def _like_with_mask(self: torch.Tensor, *_: Any, **__: Any) -> Any:
    return _empty_like(self), _empty_like(self, dtype=torch.bool)


# ---- recurrent cells: aten/src/ATen/native/cuda/RNN.cu ----


def _gru_cell(input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *_: Any, **__: Any) -> Any:
    return _empty_like(hx), hx.new_empty((hx.size(0), hx.size(1) * 5))


def _gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Any:
    batch, hidden = workspace.size(0), workspace.size(1) // 5
    gates = [workspace.new_empty((batch, hidden * 3)) for _ in range(2)]
    biases = [workspace.new_empty(hidden * 3) if has_bias else None for _ in range(2)]
    return gates[0], gates[1], _empty_like(grad_hy), biases[0], biases[1]


# ---- linear algebra ----


def _grouped_mm(
    left: torch.Tensor, right: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> torch.Tensor:
    """aten/src/ATen/native/GroupedMMUtils.h: create_grouped_gemm_output_tensor. The meta kernel refuses all types but
    bfloat16, whose groups CUDA multiplies in one kernel; those of other types it multiplies one after the other. Rows
    begin at multiples of 16 bytes."""
    dtype = out_dtype or left.dtype
    row = -(-right.size(-1) * dtype.itemsize // 16) * 16 // dtype.itemsize
    if left.dim() != right.dim():
        return left.new_empty_strided((left.size(-2), right.size(-1)), (row, 1), dtype=dtype)
    groups = offs.size(0) if left.dim() == 2 else left.size(0)
    shape = (groups, left.size(-2), right.size(-1))
    return left.new_empty_strided(shape, (shape[1] * row, row, 1), dtype=dtype)


def _geqrf(self: torch.Tensor) -> Any:
    return _empty_like(self), self.new_empty((*self.shape[:-2], min(self.shape[-2:])))


def _lstsq(self: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> Any:
    """CUDA has one driver only (gels), without singular values and ranks."""
    batch = torch.broadcast_shapes(self.shape[:-2], b.shape[:-2])
    solution = self.new_empty((*batch, self.size(-1), b.size(-1)))
    nothing = self.new_empty(0)
    residuals = self.new_empty((*batch, b.size(-1))) if self.size(-2) > self.size(-1) else nothing
    return solution, residuals, self.new_empty(0, dtype=torch.int64), self.new_empty(0)


def _aminmax(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return torch.aminmax(self, dim=dim, keepdim=keepdim)


# ---- batch normalization over processes: aten/src/ATen/native/cuda/Normalization.cu ----


def _statistics_type(self: torch.Tensor) -> torch.dtype:
    return torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype


def _batch_norm_stats(input: torch.Tensor, eps: float) -> Any:
    dtype = _statistics_type(input)
    return input.new_empty(input.size(1), dtype=dtype), input.new_empty(input.size(1), dtype=dtype)


def _batch_norm_update_stats(input: torch.Tensor, *_: Any, **__: Any) -> Any:
    return _batch_norm_stats(input, 0.0)


def _batch_norm_gather_stats(input: torch.Tensor, mean: torch.Tensor, *_: Any, **__: Any) -> Any:
    return mean.new_empty(mean.size(-1)), mean.new_empty(mean.size(-1))


def _batch_norm_backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: Any,
    invstd: Any,
    weight: Any,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> Any:
    channels = input.size(1)
    sums = [mean.new_empty(channels) if input_g else mean.new_empty(0) for _ in range(2)]
    grads = [
        weight.new_empty(channels) if asked and weight is not None else mean.new_empty(0)
        for asked in (weight_g, bias_g)
    ]
    return sums[0], sums[1], grads[0], grads[1]


# ---- quantization-aware training ----


def _learnable_per_tensor_backward(
    grad: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, *_: Any
) -> Any:
    return _empty_like(x), _empty_like(scale), _empty_like(zero_point, dtype=scale.dtype)


# ---- attention ----


def _rescale_qkv(qkv: torch.Tensor, bias: torch.Tensor, heads: int) -> Any:
    batch, steps, width = qkv.shape
    shape = (3, batch, heads, steps, width // 3 // heads)
    return qkv.new_empty(shape).unbind(0)


SHAPES: dict[str, Callable[..., Any]] = {
    "aten._thnn_fused_gru_cell.default": _gru_cell,
    "aten._thnn_fused_gru_cell_backward.default": _gru_cell_backward,
    "aten.multi_margin_loss_backward.default": _like(1),
    "aten.multilabel_margin_loss_backward.default": _like(1),
    "aten.fractional_max_pool3d_backward.default": _like(1),
    "aten._cummax_helper.default": _mutates,
    "aten._cummin_helper.default": _mutates,
    "aten._aminmax.default": _aminmax,
    "aten._aminmax.dim": _aminmax,
    "aten._grouped_mm.default": _grouped_mm,
    "aten.geqrf.default": _geqrf,
    "aten.linalg_lstsq.out": _lstsq,
    "aten.linalg_lstsq.default": _lstsq,
    "aten._compute_linear_combination.default": lambda input, coefficients: input.new_empty(
        (coefficients.size(0), *input.shape[1:])
    ),
    "aten._standard_gamma.default": _like(0),
    "aten._standard_gamma_grad.default": _like(0),
    "aten._weight_norm_interface_backward.default": lambda grad, v, g, *_: (_empty_like(v), _empty_like(g)),
    "aten._dirichlet_grad.default": _like(0),
    "aten._sample_dirichlet.default": _like(0),
    "aten.binomial.default": _like(0),
    "aten.batch_norm_stats.default": _batch_norm_stats,
    "aten.batch_norm_elemt.default": lambda input, *_: _empty_like(input),
    "aten.batch_norm_gather_stats.default": _batch_norm_gather_stats,
    "aten.batch_norm_gather_stats_with_counts.default": _batch_norm_gather_stats,
    "aten.batch_norm_backward_reduce.default": _batch_norm_backward_reduce,
    "aten.batch_norm_backward_elemt.default": lambda grad, input, *_: _empty_like(input),
    "aten.batch_norm_update_stats.default": _batch_norm_update_stats,
    "aten._masked_softmax.default": _like(0),
    "aten._masked_softmax_backward.default": _like(0),
    "aten._transform_bias_rescale_qkv.default": _rescale_qkv,
    "aten._nested_tensor_from_mask_left_aligned.default": _answers_no,
    "aten.glu_jvp.default": _like(0),
    "aten.glu_backward_jvp.default": _like(0),
    "aten.fake_quantize_per_tensor_affine_cachemask.default": _like_with_mask,
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _like_with_mask,
    "aten.fake_quantize_per_channel_affine_cachemask.default": _like_with_mask,
    "aten._fake_quantize_learnable_per_tensor_affine.default": _like(0),
    "aten._fake_quantize_learnable_per_channel_affine.default": _like(0),
    "aten._fake_quantize_learnable_per_tensor_affine_backward.default": _learnable_per_tensor_backward,
    "aten._fake_quantize_learnable_per_channel_affine_backward.default": _learnable_per_tensor_backward,
    "aten._fused_adam_.tensor_lr": _mutates,
    "aten._fused_adamw_.tensor_lr": _mutates,
    "aten._fused_sgd_.default": _mutates,
    "aten._fused_sgd_.tensor_lr": _mutates,
    "aten._fused_adagrad_.default": _mutates,
    "aten._fused_adagrad_.tensor_lr": _mutates,
    "aten.record_stream.default": _mutates,
    "aten._validate_compressed_sparse_indices.default": _mutates,
}
"""By the name of the operator, as some of them are not in every version of torch."""
