"""torchvision's operators. Its fake kernels tell their results; here is what else their CUDA kernels take, as in
torchvision/csrc/ops/cuda of torchvision 0.29. nms and deform_conv2d call torch's operators, so they are composed of
these; what their own kernels compute takes no time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from modscope._virtual.operators.operators import Workspace
from modscope._virtual.rules.rules import GpuAndTorch, contiguous_copy, rule

__all__ = ["KERNELS"]


# ---- regions: copies of what is not contiguous ----


def _copies(results: int, *tensors: torch.Tensor) -> Workspace:
    copies = [event for tensor in tensors for event in contiguous_copy(tensor)]
    return [("result", 0)] * results + copies if copies else ()


@rule("torchvision.roi_align.default", source="roi_align_kernel.cu: roi_align_forward_kernel")
def _roi_align_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _copies(1, args[0], args[1])


@rule("torchvision._roi_align_backward.default", source="roi_align_kernel.cu: roi_align_backward_kernel")
def _roi_align_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _copies(1, args[1])


@rule(
    "torchvision.roi_pool.default",
    "torchvision.ps_roi_align.default",
    "torchvision.ps_roi_pool.default",
    source="roi_pool_kernel.cu, ps_roi_align_kernel.cu, ps_roi_pool_kernel.cu: *_forward_kernel",
)
def _roi_pool_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _copies(2, args[0], args[1])


@rule("torchvision._roi_pool_backward.default", source="roi_pool_kernel.cu: roi_pool_backward_kernel")
def _roi_pool_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _copies(1, args[2], args[1])


@rule(
    "torchvision._ps_roi_align_backward.default",
    "torchvision._ps_roi_pool_backward.default",
    source="ps_roi_align_kernel.cu, ps_roi_pool_kernel.cu: *_backward_kernel",
)
def _ps_roi_backward_rule(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    return _copies(1, args[0], args[1])


# ---- nms_kernel.cu ----

_THREADS = 64  # threadsPerBlock, the bits of a word of the mask


def nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The mask has a bit for each pair of boxes. Which boxes are kept is not known: a fraction of them."""
    if dets.numel() == 0:
        return dets.new_empty(0, dtype=torch.int64)
    count = dets.size(0)
    order = scores.sort(stable=True, dim=0, descending=True)[1]
    boxes = dets.index_select(0, order).contiguous()
    mask = dets.new_empty(count * math.ceil(count / _THREADS), dtype=torch.int64)
    keep = torch.empty_like(order, dtype=torch.bool)
    kept = order.masked_select(keep)
    del keep, mask, boxes
    return kept


# ---- deform_conv2d_kernel.cu ----

_MOST_IMAGES = 32  # kMaxParallelImgs


def _images_at_once(batch: int) -> int:
    """As get_greatest_divisor_below_bound in torchvision's sources."""
    return next((count for count in range(min(batch, _MOST_IMAGES), 0, -1) if batch % count == 0), 1)


def _output_size(input: torch.Tensor, weight: torch.Tensor, strides: Any, pads: Any, dilations: Any) -> list[int]:
    return [
        (input.size(i + 2) + 2 * pads[i] - (dilations[i] * (weight.size(i + 2) - 1) + 1)) // strides[i] + 1
        for i in range(2)
    ]


def _columns(input: torch.Tensor, weight: torch.Tensor, images: int, out: list[int], groups: int) -> torch.Tensor:
    rows = input.size(1) * weight.size(2) * weight.size(3)
    return input.new_empty(groups, rows // groups, images * out[0] * out[1])


def deform_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor,
    bias: torch.Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> torch.Tensor:
    """For as many images at once as divide the batch: columns of their samples, and products of these."""
    input, offset, weight, mask, bias = (one.contiguous() for one in (input, offset, weight, mask, bias))
    batch, channels, images = input.size(0), weight.size(0), _images_at_once(input.size(0))
    size = _output_size(input, weight, (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w))
    out = input.new_zeros(batch, channels, *size)
    if batch == 0:
        return out
    buffer = torch.zeros_like(out).view(batch // images, groups, channels // groups, -1)
    columns = _columns(input, weight, images, size, groups).zero_()
    for part in buffer:
        for group, products in enumerate(part):
            products.addmm_(weight.view(groups, channels // groups, -1)[group], columns[group])
    out.copy_(buffer.view(batch // images, channels, images, *size).transpose(1, 2).reshape(out.shape))
    return out + bias.view(1, channels, 1, 1)


def _grad_of_inputs(
    input: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor, grad: torch.Tensor, groups: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As backward_gradient_inputs in torchvision's sources."""
    batch, images = input.size(0), _images_at_once(input.size(0))
    grads = torch.zeros_like(input), torch.zeros_like(offset), torch.zeros_like(mask)
    columns = _columns(input, weight, images, list(grad.shape[2:]), groups)
    channels = weight.size(0)
    by_image = grad.view(batch // images, images, groups, channels // groups, -1).permute(0, 2, 3, 1, 4)
    for part in by_image:
        columns.zero_()
        for group, of_group in enumerate(part):
            products = weight.view(groups, channels // groups, -1)[group].transpose(0, 1)
            columns[group].addmm_(products, of_group.flatten(1))
    return grads


def _grad_of_weight(input: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, groups: int) -> torch.Tensor:
    """As backward_gradient_parameters in torchvision's sources."""
    batch, images, channels = input.size(0), _images_at_once(input.size(0)), weight.size(0)
    grad_weight = torch.zeros_like(weight)
    by_image = grad.view(batch // images, images, groups, channels // groups, -1).permute(0, 2, 3, 1, 4).contiguous()
    columns = _columns(input, weight, images, list(grad.shape[2:]), groups)
    for part in by_image:
        for group, of_group in enumerate(part):
            of_weight = grad_weight.view(groups, channels // groups, -1)[group]
            of_weight.addmm_(of_group.flatten(1), columns[group].transpose(1, 0))
    return grad_weight


def deform_conv2d_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor,
    bias: torch.Tensor,
    *numbers: Any,
) -> tuple[torch.Tensor, ...]:
    grad, input, weight, offset, mask, bias = (one.contiguous() for one in (grad, input, weight, offset, mask, bias))
    groups = numbers[6]
    of_input, of_offset, of_mask = _grad_of_inputs(input, weight, offset, mask, grad, groups)
    of_weight = _grad_of_weight(input, weight, grad, groups) if input.size(0) else torch.zeros_like(weight)
    value = grad.sum((0, 2, 3))
    return of_input, of_weight, of_offset, of_mask, torch.ones_like(bias) * value


KERNELS: dict[str, Callable[..., Any]] = {
    "torchvision::nms": nms,
    "torchvision::deform_conv2d": deform_conv2d,
    "torchvision::_deform_conv2d_backward": deform_conv2d_backward,
}
