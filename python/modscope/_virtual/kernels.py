"""Operators of the virtual device that are not computed from the meta device alone."""

from __future__ import annotations

from typing import Any

import torch

from modscope import _native
from modscope._virtual import operators

# ---- new tensors ----


def empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    if memory_format in (None, torch.contiguous_format):
        return operators.make(size, operators.contiguous_strides(size), dtype)
    return operators.empty_like_meta(torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format))


def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    return operators.make(size, stride, dtype or torch.get_default_dtype())


def resize_(self: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    if tuple(self.shape) != tuple(size):
        self.data = empty(size, dtype=self.dtype, memory_format=memory_format)
    return self


# ---- views: another tensor in the same storage ----


def as_strided(self: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    offset = self.storage_offset() if storage_offset is None else storage_offset
    return _native.virtual_alias(self, size, stride, offset)


def _view_like(self: torch.Tensor, meta: torch.Tensor) -> torch.Tensor:
    return _native.virtual_alias(self, meta.shape, meta.stride(), self.storage_offset() + meta.storage_offset())


def view(self: torch.Tensor, size: Any) -> torch.Tensor:
    return _view_like(self, operators.to_meta(self).view(size))


def reshape_alias(self: torch.Tensor, size: Any, stride: Any) -> torch.Tensor:
    return _native.virtual_alias(self, size, stride, self.storage_offset())


def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    return _view_like(self, operators.to_meta(self).unfold(dimension, size, step))


# ---- values: a tensor of the virtual device has none, and is read as zeros ----


def local_scalar_dense(self: torch.Tensor) -> bool | float | int | complex:
    if self.dtype == torch.bool:
        return False
    if self.dtype.is_complex:
        return 0j
    return 0.0 if self.dtype.is_floating_point else 0


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if self.device.type == "cpu":
        self.zero_()
    return self


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return copy_(dst, self, non_blocking)


# ---- sizes that depend on values: half of the elements are taken to be selected ----


def nonzero(self: torch.Tensor) -> torch.Tensor:
    count = self.numel() // 2
    return operators.make((count, self.dim()), (1, max(count, 1)), torch.int64)


def masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    elements = torch.broadcast_shapes(self.shape, mask.shape).numel()
    return operators.make((elements // 2,), (1,), self.dtype)


# ---- attention ----


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The kernel that a card would choose: flash, memory-efficient or math."""
    if attn_mask is not None and attn_mask.requires_grad and query.dtype == torch.float32:
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is None and query.dtype != torch.float32 and query.size(-1) <= 256:
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    needs_backward = any(tensor.requires_grad for tensor in (query, key, value))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            bias = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = bias.masked_fill_(attn_mask.logical_not(), float("-inf"))
        attn_mask = attn_mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs_backward, dropout_p, is_causal, scale=scale
    )[0]


KERNELS = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "resize_": resize_,
    "as_strided": as_strided,
    "view": view,
    "_reshape_alias": reshape_alias,
    "unfold": unfold,
    "_local_scalar_dense": local_scalar_dense,
    "copy_": copy_,
    "_copy_from": copy_from,
    "nonzero": nonzero,
    "masked_select": masked_select,
}

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


def _overload(name: str) -> Any:
    """The operator ``aten::name.overload``."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def from_meta() -> dict[str, Any]:
    """Operators that a CUDA build has a kernel for, although they can also be composed of others.

    torch composes them where that kernel is missing, with other memory and more launches. A kernel for the CPU tells that
    there is one for CUDA. So does the name of an operator on lists of tensors. Convolutions ask for libraries that are not
    there.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = ["aten::convolution", "aten::convolution_backward"]
    for name in torch._C._dispatch_get_all_op_names():
        for_lists = name.startswith("aten::_foreach_") and not name.endswith("out")
        if name.startswith("aten::") and (for_lists or has(name, "CPU")) and not has(name, "CUDA"):
            if any(has(name, key) for key in _COMPOSITE):
                names.append(name)
    return {name.removeprefix("aten::"): _overload(name) for name in names}


COMPOSED = {"scaled_dot_product_attention": scaled_dot_product_attention}
"""Operators made of differentiable ones."""
