"""Rules of softmax and losses: contiguous copies, products, and the losses of elements before they are reduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from modscope import _native
from modscope._virtual.operators import geometry, operators
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules.reductions import Accumulator, reduction
from modscope._virtual.rules.rules import GpuAndTorch, argument, contiguous_copy, rule

# ---- softmax ----


@rule(
    "aten._softmax.default",
    "aten._log_softmax.default",
    "aten._softmax.out",
    "aten._log_softmax.out",
    source="ATen/native/cuda/SoftMax.cu: host_softmax",
)
def _softmax_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    copies = contiguous_copy(args[0])
    return [("result", 0), *copies] if copies else None


@rule(
    "aten._softmax_backward_data.default",
    "aten._softmax_backward_data.out",
    source="SoftMax.cu: softmax_backward_cuda_out",
)
def _softmax_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The gradient times the output is computed first."""
    grad, output = args[0], args[1]
    product = max(grad.dtype.itemsize, output.dtype.itemsize) * grad.numel()
    return [("result", 0), ("temporary", product), *contiguous_copy(output)]


@rule(
    "aten._log_softmax_backward_data.default",
    "aten._log_softmax_backward_data.out",
    source="ATen/native/cuda/SoftMax.cu: host_softmax_backward",
)
def _log_softmax_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    copies = contiguous_copy(args[0]) + contiguous_copy(args[1])
    return [("result", 0), *copies] if copies else None


@rule(
    "aten.nll_loss_forward.default",
    "aten.nll_loss_forward.output",
    "aten.nll_loss2d_forward.default",
    source="ATen/native/cuda/Loss.cu: nll_loss_forward_out_cuda_template",
)
def _nll_loss_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    copies = contiguous_copy(args[0]) + contiguous_copy(args[1])
    return [("result", 0), ("result", 0), *copies] if copies else None


# ---- losses of elements ----

_NO_REDUCTION = 0


def _element_losses(
    gpu: GpuAndTorch, self: torch.Tensor, target: torch.Tensor
) -> tuple[list[WorkspaceEvent], list[WorkspaceEvent]]:
    """The losses of all elements, and what reducing them takes."""
    shape = torch.broadcast_shapes(self.shape, target.shape)
    dtype = torch.promote_types(self.dtype, target.dtype)
    iteration = geometry.reduce_iteration(shape, geometry.contiguous_strides(shape), None)
    accumulator = Accumulator(max(4, dtype.itemsize), 8 if dtype.itemsize == 2 else 4)
    losses: list[WorkspaceEvent] = [("temporary", geometry.numel(shape) * dtype.itemsize)]
    return losses, reduction(gpu, iteration, dtype, accumulator, dtype)


@rule(
    "aten.mse_loss.default",
    "aten.smooth_l1_loss.default",
    source="ATen/native/Loss.cpp: mse_loss_out, smooth_l1_loss_out",
)
def _mse_loss_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    if argument(args, kwargs, 2, "reduction", 1) == _NO_REDUCTION:
        return None
    losses, reducing = _element_losses(gpu, args[0], args[1])
    return [("result", 0), *losses, *reducing]


@rule("aten.huber_loss.default", source="ATen/native/Loss.cpp: huber_loss")
def _huber_loss_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    if argument(args, kwargs, 2, "reduction", 1) == _NO_REDUCTION:
        return None
    losses, reducing = _element_losses(gpu, args[0], args[1])
    return [*losses, ("result", 0), *reducing]


# ---- results that the meta device does not tell as a GPU makes them ----


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return operators.make(tensor.shape, geometry.contiguous_strides(tensor.shape), tensor.dtype)


def log_sigmoid_forward(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The CUDA kernel returns an empty buffer: it needs none."""
    return _like(self), operators.make((0,), (1,), self.dtype)


def binary_cross_entropy(
    self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """The reduced loss is written into the storage of the losses of the elements, which keeps its size."""
    losses = _like(self)
    if reduction == _NO_REDUCTION:
        return losses
    torch.ops.aten.sum.dim_IntList(losses, [])
    return _native.virtual_alias(losses, (), (), 0)


def use_cudnn_ctc_loss(*args: Any, **kwargs: Any) -> bool:
    """cuDNN's loss is used only for targets of 32 bits on the CPU, and MIOpen's not on these GPUs."""
    return False


def _longest_target(log_probs: torch.Tensor, targets: torch.Tensor, lengths: Any) -> int:
    """The length of the longest target. Lengths that are on the virtual device cannot be read: targets are then as long
    as their tensor has room for, or of equal lengths where they are concatenated."""
    longest = max((int(length) for length in lengths), default=0) if isinstance(lengths, (list, tuple)) else 0
    if longest:
        return longest
    return targets.size(1) if targets.dim() == 2 else -(-targets.numel() // max(log_probs.size(1), 1))


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """LossCTC.cu: ctc_loss_gpu_template. A state for each input and each label with the blanks between them."""
    time, batch = log_probs.size(0), log_probs.size(1)
    states = 2 * _longest_target(log_probs, targets, target_lengths) + 1
    with operators.taken([("temporary", batch * 8)] * 3):
        alpha = operators.make((batch, time, states), (time * states, states, 1), log_probs.dtype)
        return operators.make((batch,), (1,), log_probs.dtype), alpha


def ctc_loss_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """LossCTC.cu: ctc_loss_backward_gpu_template."""
    beta = log_alpha.nbytes
    with operators.taken([("temporary", log_probs.size(1) * 8)] * 3 + [("temporary", beta)]):
        return _like(log_probs)


KERNELS: dict[str, Callable[..., Any]] = {
    "log_sigmoid_forward": log_sigmoid_forward,
    "binary_cross_entropy": binary_cross_entropy,
    "_use_cudnn_ctc_loss": use_cudnn_ctc_loss,
    "_use_cudnn_ctc_loss.Tensor": use_cudnn_ctc_loss,
    "_ctc_loss": ctc_loss,
    "_ctc_loss.Tensor": ctc_loss,
    "_ctc_loss_backward": ctc_loss_backward,
    "_ctc_loss_backward.Tensor": ctc_loss_backward,
}
if hasattr(torch.ops.aten, "_use_miopen_ctc_loss"):
    KERNELS |= {"_use_miopen_ctc_loss": use_cudnn_ctc_loss, "_use_miopen_ctc_loss.Tensor": use_cudnn_ctc_loss}
