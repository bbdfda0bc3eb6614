"""Attention on the virtual device: the kernel that a GPU would choose, and the memory that it takes.

The choice follows torch's aten/src/ATen/native/transformers: attention.cpp, sdp_utils_cpp.h and cuda/sdp_utils.cpp.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from modscope._virtual.operators import operators, same_device
from modscope._virtual.rules.rules import GpuAndTorch

__all__ = ["COMPOSED", "INFERENCES", "KERNELS", "choose", "scaled_dot_product_attention"]

gpu = GpuAndTorch((9, 0), 132)
"""The GPU that is installed."""

_MATH, _FLASH, _EFFICIENT, _CUDNN = 0, 1, 2, 3
_NAMES = {_MATH: "math", _FLASH: "flash", _EFFICIENT: "efficient", _CUDNN: "cudnn"}
_TORCH_ORDER = [_FLASH, _EFFICIENT, _MATH, _CUDNN]
_CUDNN_ORDER = [_CUDNN, _FLASH, _EFFICIENT, _MATH]
_HALVES = (torch.float16, torch.bfloat16)


class _Inputs(NamedTuple):
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool

    @property
    def requires_grad(self) -> bool:
        """Whether a backward through query, key or value can follow."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))


# ---- conditions of every fused kernel ----


def _shapes_allowed(inputs: _Inputs, gqa_allowed: bool) -> bool:
    query, key, value = inputs.query, inputs.key, inputs.value
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if not query.size(0) == key.size(0) == value.size(0) or query.size(2) == 0 or key.size(2) == 0:
        return False
    if inputs.enable_gqa and gqa_allowed:
        return key.size(1) == value.size(1) and query.size(1) % key.size(1) == 0
    return query.size(1) == key.size(1) == value.size(1)


def _last_strides_are_one(inputs: _Inputs, singleton_allowed: bool) -> bool:
    one = inputs.query.stride(-1) == inputs.key.stride(-1) == inputs.value.stride(-1) == 1
    one = one or (singleton_allowed and inputs.query.size(-1) == 1)
    return one and (inputs.mask is None or inputs.mask.stride(-1) == 1)


def _dtype_is(inputs: _Inputs, dtypes: tuple[torch.dtype, ...]) -> bool:
    return inputs.query.dtype == inputs.key.dtype == inputs.value.dtype and inputs.query.dtype in dtypes


def _half_dtypes(gpu: GpuAndTorch) -> tuple[torch.dtype, ...]:
    return _HALVES if gpu.capability >= (8, 0) else (torch.float16,)


# ---- the kernels ----


def _mask_allowed_by_cudnn(inputs: _Inputs) -> bool:
    mask, query = inputs.mask, inputs.query
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    wanted = (query.size(0), query.size(1), query.size(2), inputs.key.size(2))[-mask.dim() :]
    return all(size in (1, want) for size, want in zip(mask.shape, wanted, strict=True))


def _cudnn_allowed(gpu: GpuAndTorch, inputs: _Inputs) -> bool:
    if not torch._C._get_cudnn_sdp_enabled() or gpu.capability < (8, 0):
        return False
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    if not (_shapes_allowed(inputs, True) and _dtype_is(inputs, _half_dtypes(gpu)) and _mask_allowed_by_cudnn(inputs)):
        return False
    heads, values = inputs.query.size(3), inputs.value.size(3)
    longest = 256 if gpu.capability == (9, 0) else 128
    long_heads = gpu.capability[0] == 10 and (heads, values) == (192, 128)
    if not (_last_strides_are_one(inputs, True) and (max(heads, values) <= longest or long_heads)):
        return False
    if heads % 8 or values % 8 or inputs.key.size(2) == 1:
        return False
    return not (inputs.dropout and inputs.query.size(2) == 1)


def _flash_allowed(gpu: GpuAndTorch, inputs: _Inputs) -> bool:
    if not torch._C._get_flash_sdp_enabled() or gpu.capability < (8, 0) or inputs.mask is not None:
        return False
    if not (_shapes_allowed(inputs, True) and _dtype_is(inputs, _HALVES) and _last_strides_are_one(inputs, True)):
        return False
    heads = inputs.query.size(3)
    if not heads == inputs.key.size(3) == inputs.value.size(3) or heads > 256:
        return False
    little_shared_memory = (8, 6) <= gpu.capability <= (8, 9) or gpu.capability[0] == 12
    if inputs.requires_grad and little_shared_memory and heads > 192 and (heads <= 224 or inputs.dropout > 0):
        return False
    return not (inputs.is_causal and inputs.query.size(2) != inputs.key.size(2))


def _efficient_allowed(gpu: GpuAndTorch, inputs: _Inputs) -> bool:
    if not torch._C._get_mem_efficient_sdp_enabled():
        return False
    dtypes = (torch.float32, *_half_dtypes(gpu))
    if not (_shapes_allowed(inputs, False) and _dtype_is(inputs, dtypes) and _last_strides_are_one(inputs, False)):
        return False
    half = inputs.query.dtype in _HALVES
    alignment = 8 if half else 4 if gpu.capability >= (8, 0) else 1
    heads, values = inputs.query.size(3), inputs.value.size(3)
    return (
        heads == inputs.key.size(3) and heads > 0 and values > 0 and heads % alignment == 0 and values % alignment == 0
    )


def _order(gpu: GpuAndTorch) -> list[int]:
    """The kernels in the order in which they are tried. cuDNN comes first on Hopper and the data-centre Blackwell since
    2.10."""
    kernels = dict.fromkeys(map(int, torch._C._get_sdp_priority_order()))  # torch 2.8 names one twice
    order = [kernel for kernel in kernels if kernel in _NAMES]
    if order == _TORCH_ORDER and gpu.torch >= (2, 10) and gpu.capability[0] in (9, 10):
        return _CUDNN_ORDER
    return order


def choose(
    gpu: GpuAndTorch,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> str:
    """``cudnn``, ``flash``, ``efficient`` or ``math``."""
    inputs = _Inputs(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    allowed = {_CUDNN: _cudnn_allowed, _FLASH: _flash_allowed, _EFFICIENT: _efficient_allowed}
    for kernel in _order(gpu):
        if kernel == _MATH and torch._C._get_math_sdp_enabled():
            return "math"
        if kernel != _MATH and allowed[kernel](gpu, inputs):
            return _NAMES[kernel]
    raise RuntimeError("No available kernel. Aborting execution.")


# ---- what is computed before and after the chosen kernel ----


def _added_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask that is added to the scores, made of one that selects them."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device))


def _aligned_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The memory-efficient kernel reads a mask in parts of 8 elements."""
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        length = mask.size(-1)
        mask = torch.nn.functional.pad(mask, (0, 8 - length % 8))[..., :length]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _padded_heads(tensor: torch.Tensor) -> torch.Tensor:
    """The flash kernel reads heads in parts of 8 elements."""
    rest = tensor.size(-1) % 8
    return torch.nn.functional.pad(tensor, (0, 8 - rest)) if rest else tensor


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
    """Attention by the kernel that the installed GPU would choose."""
    aten = torch.ops.aten
    same_device.check_attention(query, key, value)
    kernel = choose(gpu, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    needs_backward = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if kernel == "flash":
        heads = query.size(-1)
        scale = heads**-0.5 if scale is None else scale
        padded = [_padded_heads(tensor) for tensor in (query, key, value)]
        out = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :heads] if out.size(-1) != heads else out
    mask = _added_mask(attn_mask, query.dtype)
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, needs_backward, dropout_p, is_causal, False, scale=scale
        )[0]
    if kernel == "efficient":
        if mask is not None:
            mask = _aligned_mask(mask, query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, needs_backward, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


# ---- results ----


def _strides_in_order_of(tensor: torch.Tensor, shape: list[int]) -> list[int]:
    """Strides of a dense tensor whose dimensions lie in memory in the same order as those of another tensor."""
    strides, elements = [0] * len(shape), 1
    for dimension in sorted(range(len(shape)), key=lambda i: (tensor.stride(i), -i)):
        strides[dimension] = elements
        elements *= shape[dimension]
    return strides


def _cudnn_attention(*args: Any, **kwargs: Any) -> Any:
    query, key, value = args[:3]
    batch, heads, rows = query.shape[:3]
    beside = operators.start(torch.ops.aten._scaled_dot_product_cudnn_attention.default, args, kwargs)
    seed, offset = (operators.make((), (), torch.int64) for _ in range(2))
    beside.before_result()
    shape = [batch, heads, rows, value.size(3)]
    out = operators.make(shape, _strides_in_order_of(query, shape), query.dtype)
    beside.before_result()
    lse = operators.make((batch, heads, rows, 1), (heads * rows, rows, 1, 1), torch.float32) if args[4] else None
    beside.end()
    return out, lse, None, None, rows, key.size(2), seed, offset, None


def _efficient_results(args: Any, kwargs: Any) -> Any:
    op = torch.ops.aten._scaled_dot_product_efficient_attention.default
    out, lse, *_ = operators.infer_on_meta(op, args, kwargs)
    return [out, lse, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)]


KERNELS = {"_scaled_dot_product_cudnn_attention": _cudnn_attention}
INFERENCES = {torch.ops.aten._scaled_dot_product_efficient_attention.default: _efficient_results}
"""The seeds of the memory-efficient kernel are on the CPU."""
COMPOSED = {"scaled_dot_product_attention": scaled_dot_product_attention}
"""Operators made of differentiable ones."""
