"""The fast path of torch.nn.MultiheadAttention and torch.nn.TransformerEncoderLayer without gradients on the virtual
device.

torch has one operator for a layer; it is made here of the operators that its CUDA kernel calls
(aten/src/ATen/native/transformers: transformer.cpp, cuda/attention.cu)."""

from __future__ import annotations

from typing import Any

import torch
from modscope._virtual.rules import attention

__all__ = ["KERNELS"]


def _heads(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return tensor.view(tensor.size(0), -1, count, tensor.size(-1) // count).transpose(1, 2)


def _fused(query: torch.Tensor, num_head: int, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    chunks = torch.nn.functional.linear(query, weight, bias).chunk(3, -1)
    query_heads, key_heads, value_heads = (_heads(chunk, num_head) for chunk in chunks)
    out = attention.scaled_dot_product_attention(query_heads, key_heads, value_heads)
    joined: torch.Tensor = out.transpose(1, 2).reshape(query.size(0), -1, query.size(-1))
    return joined


def _scores(inputs: Any, num_head: int, weight: torch.Tensor, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by products of matrices: the joined heads, and the weights of attention."""
    query = inputs[0]
    batch, length, size = query.shape
    parts = weight.chunk(3)
    if all(tensor is query for tensor in inputs):
        projected = [torch.nn.functional.linear(query, weight)]
    else:
        projected = [torch.nn.functional.linear(tensor, part) for tensor, part in zip(inputs, parts, strict=True)]
    q, k, v = torch.empty(3, batch, num_head, length, size // num_head, dtype=query.dtype, device=query.device).unbind(
        0
    )
    del projected
    scores = torch.matmul(q, k.transpose(-2, -1))
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights.masked_fill_(torch.zeros((), dtype=torch.bool, device=mask.device), 0.0)
    del scores
    return torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, size), weights


def _native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    linear = torch.nn.functional.linear
    if query is key and key is value and mask is None and not need_weights and embed_dim % num_head == 0:
        like = _heads(query, num_head)
        if attention.choose(attention.gpu, like, like, like) != "math":
            return linear(_fused(query, num_head, qkv_weight, qkv_bias), proj_weight, proj_bias), None
    joined, weights = _scores((query, key, value), num_head, qkv_weight, mask)
    out = linear(joined, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    linear = torch.nn.functional.linear

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.native_layer_norm(x, [embed_dim], weight, bias, eps)[0]

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    x = _native_multi_head_attention(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
    )[0]
    x.add_(src)
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    before = x
    x = norm(x, norm_weight_2, norm_bias_2) if norm_first else x
    x = linear(linear(x, ffn_weight_1, ffn_bias_1).relu_(), ffn_weight_2, ffn_bias_2)
    x.add_(before)
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)


KERNELS = {
    "_native_multi_head_attention": _native_multi_head_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    # Whether a mask hides only the ends of sequences depends on its values, which are not known: the answer is no.
    "_nested_tensor_from_mask_left_aligned": lambda t, mask: False,
}
