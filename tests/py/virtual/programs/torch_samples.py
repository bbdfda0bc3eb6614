"""torch's own sample arguments of its operators: on a virtual GPU each has results of the same shapes and types as on
the CPU. Run by test_programs.py."""

import contextlib
import os

from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import torch

SAMPLES = 6 if os.environ.get("MODSCOPE_LONG") == "1" else 3  # of each operator
NOT_ON_CUDA = {"histogram", "histogramdd"}
NOT_SUPPORTED = {"sparse.sampled_addmm", "sparse.mm"}  # compressed layouts
BY_VALUES = {"argwhere", "nonzero", "masked_select", "unique", "unique_consecutive", "bincount"}
CHECK_VALUES = {"cov", "linalg.eig"}
NOT_MOVED = {"as_strided"}  # a sample is part of a larger storage, which a copy is not
OTHER_ON_CUDA = {
    "native_batch_norm", "_native_batch_norm_legit",  # statistics are also made in evaluation
    "linalg.lstsq",  # another driver
    "tensor_split",  # refuses indices that are not on the CPU
    "nn.functional.scaled_dot_product_attention", "torch.ops.aten._efficient_attention_forward",
}  # fmt: skip


def _on_cuda(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cuda().requires_grad_(value.requires_grad)
    return "cuda" if value in ("cpu", torch.device("cpu")) and isinstance(value, (str, torch.device)) else value


def _described(results):
    return [(tuple(x.shape), x.dtype) for x in tree_leaves(results) if isinstance(x, torch.Tensor)]


def _backward(results):
    parts = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    if parts:
        sum(x.abs().sum() for x in parts).backward()


def _samples_of(operator):
    dtype = next((dtype for dtype in (torch.float32, torch.int64) if operator.supports_dtype(dtype, "cpu")), None)
    if dtype is None:
        return  # a variant for other devices
    grad = operator.supports_autograd and dtype.is_floating_point
    with contextlib.suppress(Exception):
        for sample, _ in zip(operator.sample_inputs("cpu", dtype, requires_grad=grad), range(SAMPLES), strict=False):
            yield sample


def _difference(operator, sample):
    try:
        expected = operator(sample.input, *sample.args, **sample.kwargs)
        _backward(expected)
    except Exception:
        return None  # not a sample for the CPU
    try:
        found = operator(*tree_map(_on_cuda, (sample.input, *sample.args)), **tree_map(_on_cuda, sample.kwargs))
        _backward(found)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    found, expected = _described(found), _described(expected)
    return None if found == expected else f"{found} instead of {expected}"


def results_are_as_on_the_cpu():
    left_out = NOT_ON_CUDA | NOT_SUPPORTED | BY_VALUES | CHECK_VALUES | NOT_MOVED | OTHER_ON_CUDA
    compared, wrong = 0, {}
    for operator in op_db:
        if operator.name in left_out:
            continue
        for sample in _samples_of(operator):
            difference = _difference(operator, sample)
            compared += 1
            if difference is not None:
                wrong[f"{operator.name} {operator.variant_test_name}"] = difference
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    assert compared > 1000, compared
