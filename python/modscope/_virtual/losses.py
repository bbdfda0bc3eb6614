"""Rules of softmax and losses: contiguous copies, products, and the losses of elements before they are reduced."""

from __future__ import annotations

from typing import Any

import torch

from modscope._virtual import geometry
from modscope._virtual.operators import Event
from modscope._virtual.reductions import Accumulator, reduction
from modscope._virtual.rules import Answer, Card, argument, contiguous_copy, rule


# ---- softmax ----


@rule("aten._softmax.default", "aten._log_softmax.default", "aten._softmax.out", "aten._log_softmax.out", source="SoftMax.cu: host_softmax")
def _softmax_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    copies = contiguous_copy(args[0])
    return [("result", 0), *copies] if copies else None


@rule("aten._softmax_backward_data.default", "aten._softmax_backward_data.out", source="SoftMax.cu: softmax_backward_cuda_out")
def _softmax_backward_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """The gradient times the output is computed first."""
    grad, output = args[0], args[1]
    product = max(grad.dtype.itemsize, output.dtype.itemsize) * grad.numel()
    return [("result", 0), ("temporary", product), *contiguous_copy(output)]


@rule("aten._log_softmax_backward_data.default", "aten._log_softmax_backward_data.out", source="SoftMax.cu: host_softmax_backward")
def _log_softmax_backward_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    copies = contiguous_copy(args[0]) + contiguous_copy(args[1])
    return [("result", 0), *copies] if copies else None


@rule(
    "aten.nll_loss_forward.default",
    "aten.nll_loss_forward.output",
    "aten.nll_loss2d_forward.default",
    source="ATen/native/cuda/Loss.cu: nll_loss_forward_out_cuda_template",
)
def _nll_loss_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    copies = contiguous_copy(args[0]) + contiguous_copy(args[1])
    return [("result", 0), ("result", 0), *copies] if copies else None


# ---- losses of elements ----

_NO_REDUCTION = 0


def _element_losses(card: Card, self: torch.Tensor, target: torch.Tensor) -> tuple[list[Event], list[Event]]:
    """The losses of all elements, and what reducing them takes."""
    shape = torch.broadcast_shapes(self.shape, target.shape)
    dtype = torch.promote_types(self.dtype, target.dtype)
    iteration = geometry.reduce_iteration(shape, geometry.contiguous(shape), None)
    accumulator = Accumulator(max(4, dtype.itemsize), 8 if dtype.itemsize == 2 else 4)
    losses: list[Event] = [("temporary", geometry.numel(shape) * dtype.itemsize)]
    return losses, reduction(card, iteration, dtype, accumulator, dtype)


@rule("aten.mse_loss.default", "aten.smooth_l1_loss.default", source="ATen/native/Loss.cpp: mse_loss_out, smooth_l1_loss_out")
def _mse_loss_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    if argument(args, kwargs, 2, "reduction", 1) == _NO_REDUCTION:
        return None
    losses, reducing = _element_losses(card, args[0], args[1])
    return [("result", 0), *losses, *reducing]


@rule("aten.huber_loss.default", source="ATen/native/Loss.cpp: huber_loss")
def _huber_loss_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    if argument(args, kwargs, 2, "reduction", 1) == _NO_REDUCTION:
        return None
    losses, reducing = _element_losses(card, args[0], args[1])
    return [*losses, ("result", 0), *reducing]
