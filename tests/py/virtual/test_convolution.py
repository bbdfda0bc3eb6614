"""Convolutions on the virtual device: the layout of their results, and what they take."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from modscope._virtual.rules import convolution
from modscope._virtual.rules.convolution import Convolution
from modscope._virtual.rules.rules import GpuAndTorch, all_rules
from truth_entries import entries, measured_temporaries, needs_truth, temporaries
from virtual_helpers import needs_interception, run_on_h200

import torch

H200 = GpuAndTorch((9, 0), 132)
FORWARD = all_rules()["aten.convolution.default"].function
BACKWARD = all_rules()["aten.convolution_backward.default"].function


def tensor(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype, device="meta")
    return made.to(memory_format=torch.channels_last) if last else made


def forward(x: torch.Tensor, weight: torch.Tensor, padding: int = 1, groups: int = 1) -> list[int]:
    args = (x, weight, None, [1, 1], [padding, padding], [1, 1], False, [0, 0], groups)
    specs = convolution.INFERENCES[torch.ops.aten.convolution.default](args, {})
    return temporaries(FORWARD(H200, args, {}, specs))


def test_tensor_cores_want_channels_last_so_contiguous_tensors_are_copied() -> None:
    """Measured: 32 images of 128 channels, 28 by 28, in half precision; the input, the weight and the output are
    copied."""
    x, weight = tensor(32, 128, 28, 28, dtype=torch.bfloat16), tensor(128, 128, 3, 3, dtype=torch.bfloat16)
    copies = 2 * (2 * x.numel() + weight.numel())
    assert forward(x, weight) == pytest.approx([copies], abs=1024)
    assert forward(tensor(32, 128, 28, 28, dtype=torch.bfloat16, last=True), weight) != pytest.approx(
        [copies], abs=1024
    )


def test_pointwise_convolution_is_a_product_of_matrices() -> None:
    assert forward(tensor(32, 128, 28, 28), tensor(128, 128, 1, 1), padding=0) == []


def test_input_that_is_not_in_the_weight_s_layout_is_copied_first() -> None:
    x = tensor(32, 128, 28, 28, dtype=torch.bfloat16)
    assert forward(x, tensor(128, 128, 3, 3, dtype=torch.bfloat16, last=True))[0] == 2 * x.numel()


def test_depthwise_convolution_of_contiguous_tensors_takes_nothing() -> None:
    x, weight = tensor(32, 128, 28, 28), tensor(128, 1, 3, 3)
    assert forward(x, weight, groups=128) == []
    args = (x, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 128, [True, True, False])
    assert temporaries(BACKWARD(H200, args, {}, None)) == []


@pytest.mark.parametrize(("input_last", "weight_last", "last"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)])
def test_results_are_channels_last_where_the_input_or_the_weight_is(
    input_last: int, weight_last: int, last: int
) -> None:
    x, weight = tensor(2, 8, 5, 6, last=bool(input_last)), tensor(16, 8, 3, 3, last=bool(weight_last))
    args: Any = (x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    shape, stride, _ = convolution.INFERENCES[torch.ops.aten.convolution.default](args, {})
    assert (tuple(shape), tuple(stride)) == ((2, 16, 5, 6), (480, 1, 96, 16) if last else (480, 30, 6, 1))
    args = (tensor(2, 16, 5, 6), x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    of_input, of_weight, of_bias = convolution.INFERENCES[torch.ops.aten.convolution_backward.default](args, {})
    assert tuple(of_input[1]) == ((240, 1, 48, 8) if last else (240, 30, 6, 1)) and of_bias is None
    assert tuple(of_weight[1]) == ((72, 1, 24, 8) if last else (72, 9, 3, 1))


def test_workspace_of_a_measured_convolution_is_the_measured_one() -> None:
    assert convolution.workspace(Convolution(0, 1, 0, 2, 1, 32, 128, 256, 784, 784, 9, 1, 1)) == 19857555


def test_measured_convolutions_are_predicted_from_the_others() -> None:
    """Leave each out: half are right within 2 % of the convolution's own size, the mean error is 15 % of it."""
    errors = []
    for family in convolution._measured().values():
        for left_out in family[::12]:
            call = left_out.call
            others = [other for other in family if other.call != call]
            bytes = convolution.from_similar(call, others)
            errors.append(min(1.5, abs(bytes - left_out.bytes) / convolution._size(call)))
    assert len(errors) > 200
    assert statistics.median(errors) <= 0.02 and statistics.mean(errors) <= 0.15


def _filled(args: Any) -> Any:
    """The arguments of a measured ``convolution``, whose last ones were not written down."""
    x, weight, _, stride, padding, dilation, transposed, output_padding = args
    groups = 1 if transposed else x.size(1) // weight.size(1)
    return (x, weight, None, stride, padding, dilation, transposed, output_padding, groups)


@needs_truth
def test_forward_of_jobs_on_an_h200_is_predicted() -> None:
    """The jobs' own shapes were not used for the rule. Blocks can be larger than what was asked for, by up to 1 MiB."""
    errors = []
    for args, _, events in entries("aten.convolution.default"):
        filled = _filled(args)
        specs = convolution.INFERENCES[torch.ops.aten.convolution.default](filled, {})
        took, measured = sum(temporaries(FORWARD(H200, filled, {}, specs))), sum(measured_temporaries(events))
        size = sum(t.numel() * t.dtype.itemsize for t in filled[:2])
        errors.append(max(0, abs(took - measured) - (1 << 20)) / size)
    assert len(errors) > 80
    assert statistics.median(errors) == 0 and statistics.mean(errors) < 0.25


@needs_interception
def test_channels_last_model_trains() -> None:
    out = run_on_h200("""
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)).cuda()
        model = model.to(memory_format=torch.channels_last)
        out = model(torch.empty(2, 3, 16, 16, device="cuda"))
        out.sum().backward()
        print(out.stride(), model[0].weight.stride(), model[0].weight.grad.stride())
        deconvolution = nn.ConvTranspose2d(4, 8, 2, 2).cuda()
        volume = nn.Conv3d(4, 8, 3, padding=1).cuda()(torch.empty(1, 4, 6, 6, 6, device="cuda"))
        line = nn.Conv1d(4, 8, 3).cuda()(torch.empty(1, 4, 16, device="cuda"))
        print(deconvolution(out.detach()).stride(), tuple(volume.shape), tuple(line.shape))
    """)
    assert out == ["(196, 1, 28, 4) (27, 1, 9, 3) (27, 1, 9, 3)", "(1568, 1, 112, 8) (1, 8, 6, 6, 6) (1, 8, 14)"]
