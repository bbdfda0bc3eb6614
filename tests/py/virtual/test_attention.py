"""Attention on the virtual device: the kernel that is chosen, what it returns, and what it takes."""

from __future__ import annotations

from typing import Any

import pytest
from modscope._virtual.rules import attention
from modscope._virtual.rules.rules import GpuAndTorch, all_rules
from truth_entries import entries, fits, measured_temporaries, needs_truth, temporaries
from virtual_helpers import needs_interception, run_on_h200

import torch

H200, A100, RTX4090, T4 = (
    GpuAndTorch((9, 0), 132),
    GpuAndTorch((8, 0), 108),
    GpuAndTorch((8, 9), 128),
    GpuAndTorch((7, 5), 40),
)


def qkv(dtype: torch.dtype = torch.bfloat16, heads: int = 64, keys: int = 128, grouped: int = 8) -> list[torch.Tensor]:
    def tensor(count: int, rows: int) -> torch.Tensor:
        return torch.empty(2, count, rows, heads, dtype=dtype, device="meta", requires_grad=True)

    return [tensor(8, 128), tensor(grouped, keys), tensor(grouped, keys)]


def mask(last: int = 128, requires_grad: bool = False, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(2, 1, 128, last, dtype=dtype, device="meta", requires_grad=requires_grad)


@pytest.mark.parametrize(
    ("gpu", "tensors", "options", "kernel"),
    [
        (H200, qkv(), {}, "cudnn"),
        (H200._replace(torch=(2, 8)), qkv(), {}, "flash"),
        (A100, qkv(), {}, "flash"),
        (A100, qkv(), {"attn_mask": mask()}, "efficient"),
        (H200, qkv(), {"attn_mask": mask()}, "cudnn"),
        (H200, qkv(), {"attn_mask": mask(requires_grad=True)}, "efficient"),
        (H200, qkv(torch.float32), {}, "efficient"),
        (H200, qkv(torch.float32, heads=63), {}, "math"),
        (H200, qkv(torch.float64), {}, "math"),
        (H200, qkv(heads=36), {}, "flash"),
        (H200, qkv(keys=1), {}, "flash"),
        (A100, qkv(keys=64), {"is_causal": True}, "efficient"),
        (A100, qkv(heads=320), {}, "efficient"),
        (A100, qkv(grouped=2), {"enable_gqa": True}, "flash"),
        (A100, qkv(grouped=2), {"enable_gqa": True, "attn_mask": mask()}, "math"),
        (A100, qkv(grouped=2), {}, "math"),
        (RTX4090, qkv(heads=200), {}, "efficient"),
        (RTX4090, qkv(heads=256), {}, "flash"),
        (T4, qkv(torch.float16), {}, "efficient"),
        (T4, qkv(torch.bfloat16), {}, "math"),
    ],
)
def test_kernel_is_the_one_that_torch_s_conditions_choose(
    gpu: GpuAndTorch, tensors: Any, options: Any, kernel: str
) -> None:
    assert attention.choose(gpu, *tensors, **options) == kernel


def test_mask_whose_last_dimension_is_not_dense_takes_the_math_kernel() -> None:
    transposed = torch.empty(1, 128, 128, 8, device="meta").permute(0, 3, 1, 2)
    assert attention.choose(H200, *qkv(torch.float32), attn_mask=transposed) == "math"
    assert attention.choose(H200, *qkv(torch.float32), attn_mask=transposed.contiguous()) == "efficient"


def test_kernels_that_the_program_disables_are_not_chosen() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        assert attention.choose(H200, *qkv()) == "math"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert attention.choose(H200, *qkv()) == "efficient"
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        attention.choose(H200, *qkv(torch.float32))


@needs_truth
@pytest.mark.parametrize(
    "name",
    [
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
    ],
)
def test_memory_is_what_jobs_on_an_h200_took(name: str) -> None:
    rule, seen = all_rules()[f"aten.{name}.default"].function, 0
    for args, kwargs, events in entries(f"aten.{name}.default"):
        took, measured = temporaries(rule(H200, args, kwargs, None)), measured_temporaries(events)
        assert fits(took, measured), (args, took, measured)
        seen += 1
    assert seen >= 5


def test_few_queries_of_flash_attention_are_split_over_the_gpu() -> None:
    """Measured: 4 parts for 8 heads of 512 rows and 96 elements, none for 96 heads."""
    rule = all_rules()["aten._scaled_dot_product_flash_attention.default"].function
    few = torch.empty(2, 4, 512, 96, dtype=torch.bfloat16, device="meta")
    assert temporaries(rule(H200, (few, few, few), {}, None)) == [65536, 6291456]
    many = torch.empty(8, 12, 512, 64, dtype=torch.bfloat16, device="meta")
    assert temporaries(rule(H200, (many, many, many), {}, None)) == []


@needs_interception
def test_results_lie_in_memory_as_on_a_gpu() -> None:
    out = run_on_h200(
        """
        from torch.nn.functional import scaled_dot_product_attention as attention
        packed = torch.empty(2, 100, 3 * 8 * 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        q, k, v = packed.view(2, 100, 3, 8, 64).permute(2, 0, 3, 1, 4)
        out = attention(q, k, v)
        print(out.grad_fn.name(), out.stride())
        out.float().sum().backward()
        q = torch.empty(2, 8, 100, 64, device="cuda", requires_grad=True)
        mask = torch.ones(100, 100, dtype=torch.bool, device="cuda")
        out = attention(q, q, q, mask)
        print(out.grad_fn.name(), out.stride())
        out.sum().backward()
        print(q.grad.shape)
        """
    )
    assert out == [
        "ScaledDotProductCudnnAttentionBackward0 (51200, 64, 512, 1)",
        "ScaledDotProductEfficientAttentionBackward0 (51200, 64, 512, 1)",
        "torch.Size([2, 8, 100, 64])",
    ]


@needs_interception
def test_encoder_without_gradients_takes_the_fast_path() -> None:
    """Its layers keep nothing: the peak is that of one layer, with the projections of all heads."""
    out = run_on_h200(
        """
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda", dtype=torch.bfloat16)
        model = nn.TransformerEncoder(layer, 2).eval()
        x = torch.empty(16, 128, 512, device="cuda", dtype=torch.bfloat16)
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            out = model(x)
        print(tuple(out.shape), torch.cuda.max_memory_allocated() - before >= 5 * x.numel() * 2)
        with torch.no_grad():
            print(tuple(model(x, src_key_padding_mask=torch.zeros(16, 128, dtype=torch.bool, device="cuda")).shape))
        """
    )
    assert out == ["(16, 128, 512) True", "(16, 128, 512)"]
