"""Operators of the virtual device that are not computed from the meta device alone."""

from __future__ import annotations

from typing import Any

import torch

from modscope._virtual import sparse, values, views

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


KERNELS = {**views.KERNELS, **values.KERNELS, **sparse.FROM_DENSE}

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


def _overload(name: str) -> Any:
    """The operator ``aten::name.overload``."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def from_meta() -> dict[str, Any]:
    """Operators that a CUDA build has a kernel for, although they can also be composed of others.

    torch composes them where that kernel is missing, with other memory. A kernel for the CPU tells that there is one for
    CUDA. Convolutions ask for libraries that are not there.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = ["aten::convolution", "aten::convolution_backward"]
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and has(name, "CPU") and not has(name, "CUDA"):
            if any(has(name, key) for key in _COMPOSITE):
                names.append(name)
    return {name.removeprefix("aten::"): _overload(name) for name in names}


COMPOSED = {"scaled_dot_product_attention": scaled_dot_product_attention}
"""Operators made of differentiable ones."""
