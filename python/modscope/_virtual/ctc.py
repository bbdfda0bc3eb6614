"""The CTC loss on the virtual device: lengths have no values there, so that sequences are taken to be equally long."""

from __future__ import annotations

from typing import Any

import torch

from modscope._virtual import operators
from modscope._virtual.rule_stand_in import Answer, Card, rule

__all__ = ["INFERENCES", "KERNELS"]


def _results(args: Any, kwargs: Any) -> Any:
    log_probs, targets = args[:2]
    steps, batch = log_probs.shape[:2]
    longest = targets.size(1) if targets.dim() == 2 else -(-targets.size(0) // batch)
    alphas = (batch, steps, 2 * longest + 1)
    return [((batch,), (1,), log_probs.dtype), (alphas, tuple(operators.contiguous_strides(alphas)), log_probs.dtype)]


def _backward_result(args: Any, kwargs: Any) -> Any:
    shape = tuple(args[1].shape)
    return (shape, tuple(operators.contiguous_strides(shape)), args[1].dtype)


@rule("aten._ctc_loss_backward.default", "aten._ctc_loss_backward.Tensor")
def _backward(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """Sums from the other end, as many as the forward kept (aten/src/ATen/native/cuda/LossCTC.cu)."""
    alphas = args[6]
    return [("temporary", alphas.numel() * alphas.dtype.itemsize), ("result", 0)]


INFERENCES = {
    torch.ops.aten._ctc_loss.default: _results,
    torch.ops.aten._ctc_loss.Tensor: _results,
    torch.ops.aten._ctc_loss_backward.default: _backward_result,
    torch.ops.aten._ctc_loss_backward.Tensor: _backward_result,
}
KERNELS = {
    # cuDNN's kernel wants targets on the CPU in 32 bits, which hardly any program gives it.
    f"_use_{library}_ctc_loss{overload}": lambda *_, **__: False
    for library in ("cudnn", "miopen")
    for overload in ("", ".Tensor")
}
