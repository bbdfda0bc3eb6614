"""Batch norm and pooling on the virtual device: cuDNN's kernel or torch's own, and what it takes."""

from __future__ import annotations

from typing import Any

import pytest
from modscope._virtual.rules import batch_norm
from modscope._virtual.rules.rules import GpuAndTorch, all_rules
from truth_entries import entries, fits, measured_temporaries, needs_truth, temporaries
from virtual_helpers import needs_interception, run_on_h200

import torch

H200 = GpuAndTorch((9, 0), 132)


def meta(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype, device="meta")
    return made.to(memory_format=torch.channels_last) if last else made


@pytest.mark.parametrize(
    ("shape", "dtype", "weight", "training", "cudnn"),
    [
        ((32, 64, 56, 56), torch.float32, torch.float32, True, True),
        ((16, 32, 1000), torch.float32, torch.float32, True, True),
        ((64, 512), torch.float32, torch.float32, True, False),
        ((32, 64, 56, 56), torch.float16, torch.float32, True, True),
        ((32, 64, 56, 56), torch.float16, torch.float16, True, False),
        ((32, 64, 56, 56), torch.bfloat16, torch.float32, True, False),
        ((32, 64, 56, 56), torch.float32, None, True, False),
        ((70_000, 4, 2), torch.float32, torch.float32, False, False),
        ((70_000, 4, 2), torch.float32, torch.float32, True, True),
        ((4096, 64, 128, 128), torch.float32, torch.float32, True, False),
    ],
)
def test_cudnn_is_taken_where_torch_takes_it(shape: Any, dtype: Any, weight: Any, training: bool, cudnn: bool) -> None:
    affine = None if weight is None else meta(shape[1], dtype=weight)
    statistics = meta(shape[1])
    input = meta(*shape, dtype=dtype)
    assert batch_norm.takes_cudnn(input, affine, affine, statistics, statistics, training, True) is cudnn
    assert not batch_norm.takes_cudnn(input, affine, affine, statistics, statistics, training, False)


@pytest.mark.parametrize(
    ("operator", "shape", "dtype", "measured"),
    [
        ("native_batch_norm", (32, 64, 56, 56), torch.bfloat16, [131072, 8]),
        ("native_batch_norm", (8, 24, 100, 100), torch.bfloat16, [49152, 8]),
        ("native_batch_norm", (32, 2048, 7, 7), torch.bfloat16, []),
        ("cudnn_batch_norm", (32, 64, 56, 56), torch.float32, [810164]),
        ("cudnn_batch_norm", (256, 32, 112, 112), torch.float32, [25891892]),
        ("cudnn_batch_norm", (256, 32, 112, 112), torch.float16, [10357712]),
    ],
)
def test_channels_last_takes_what_it_took_on_an_h200(
    operator: str, shape: Any, dtype: Any, measured: list[int]
) -> None:
    input, channels = meta(*shape, dtype=dtype, last=True), meta(shape[1])
    args = (input, channels, channels, channels, channels, True, 0.1, 1e-5)
    took = temporaries(all_rules()[f"aten.{operator}.default"].function(H200, args, {}, None))
    assert took == pytest.approx(measured, rel=0.01, abs=512)
    contiguous = (meta(*shape, dtype=dtype), *args[1:])
    assert temporaries(all_rules()[f"aten.{operator}.default"].function(H200, contiguous, {}, None)) == []


@needs_truth
@pytest.mark.parametrize("name", ["aten.native_batch_norm.default", "aten.native_batch_norm_backward.default"])
def test_memory_is_what_jobs_on_an_h200_took(name: str) -> None:
    seen = 0
    for args, kwargs, events in entries(name):
        took, measured = temporaries(all_rules()[name].function(H200, args, kwargs, None)), measured_temporaries(events)
        assert fits(took, measured), (args[0].shape, took, measured)
        seen += 1
    assert seen >= 15


@needs_interception
def test_results_of_either_kernel() -> None:
    out = run_on_h200("""
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.empty(4, 8, 6, 6, device="cuda", dtype=dtype, requires_grad=True)
            norm = nn.BatchNorm2d(8).cuda()
            out = norm(x.to(memory_format=torch.channels_last))
            out.sum().backward()
            norm.eval()
            print(out.grad_fn.name(), out.stride(), norm.weight.grad.dtype, norm(x).shape == x.shape)
    """)
    assert out == [
        "CudnnBatchNormBackward0 (288, 1, 48, 8) torch.float32 True",
        "NativeBatchNormBackward0 (288, 1, 48, 8) torch.float32 True",
    ]


def test_adaptive_max_pooling_of_channels_last_copies() -> None:
    """Measured on 8 images of 30 channels, 57 by 57: both results and the input."""
    rule = all_rules()["aten.adaptive_max_pool2d.default"].function
    input = meta(8, 30, 57, 57, last=True)
    specs = [((8, 30, 7, 7), (1470, 49, 7, 1), torch.float32), ((8, 30, 7, 7), (1470, 49, 7, 1), torch.int64)]
    assert temporaries(rule(H200, (input, [7, 7]), {}, specs)) == [47104, 94208, 3119104]
    assert temporaries(rule(H200, (meta(8, 30, 57, 57), [7, 7]), {}, specs)) == []
