"""Convolutions on the virtual device: the layout of their results, and the memory that they take.

Sources: torch's aten/src/ATen/native/Convolution.cpp and cudnn/ConvShared.cpp for layouts and copies. Which of its
kernels cuDNN chooses is decided by heuristics of its own. Where the library is installed it is asked (plans.py).
Otherwise a workspace is that of the most similar convolutions that were measured (convolutions_h200.csv)."""

from __future__ import annotations

import importlib.resources
import math
from functools import cache
from typing import Any, NamedTuple

import torch
from modscope._virtual.operators import operators
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules import plans
from modscope._virtual.rules.rules import GpuAndTorch, all_rules, doubt, rule

__all__ = ["INFERENCES", "Convolution", "from_similar", "memory_format", "workspace"]

_FORWARD, _OF_INPUT, _OF_WEIGHT = 0, 1, 2
_RESULT: WorkspaceEvent = ("result", 0)
_MIB = 1 << 20
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}


class Convolution(NamedTuple):
    """One pass of a convolution, as cuDNN sees it. A transposed one is the gradient of the input of an ordinary one."""

    what: int
    """0: forward, 1: the gradient of the input, 2: the gradient of the weight."""
    dtype: int
    """0: float32, 1: bfloat16, 2: float16, 3: float64, which was not measured."""
    channels_last: int
    dimensions: int
    groups: int
    batch: int
    inputs: int
    """Channels."""
    outputs: int
    input_area: int
    output_area: int
    kernel_area: int
    stride: int
    dilation: int

    @property
    def itemsize(self) -> int:
        return (4, 2, 2, 8)[self.dtype]

    @property
    def weights(self) -> int:
        """How many elements the weight has."""
        return self.inputs * self.outputs // self.groups * self.kernel_area

    def padded(self, channels: int) -> int:
        """Channels as kernels for tensor cores want them: 16 bytes, or 4 channels for the first layer's large
        kernels."""
        if channels <= 4 and self.kernel_area > 9:
            return 4
        alignment = 16 // self.itemsize
        return -(-channels // alignment) * alignment


# ---- workspaces ----


def _split_weights(call: Convolution) -> int:
    """Partial gradients of the weight, where its tiles of 128 times 128 elements do not occupy the GPU."""
    columns = call.inputs // call.groups * call.kernel_area
    tiles = -(-call.outputs // 128) * -(-columns // 128)
    splits = 132 // tiles
    bytes = call.weights * 4 * splits
    return bytes if splits >= 2 and bytes < 9_000_000 else 0


def _candidates(call: Convolution) -> list[int]:
    """What kernels take: nothing, or copies of the tensors in the layout that they want, and partial sums."""
    input_copy = call.batch * call.padded(call.inputs) * call.input_area * call.itemsize
    output_copy = call.batch * call.padded(call.outputs) * call.output_area * call.itemsize
    weight = call.padded(call.outputs) * call.padded(call.inputs // call.groups) * call.kernel_area * call.itemsize
    copies = input_copy + output_copy + weight
    found = [0, copies, input_copy + output_copy]
    if call.what == _FORWARD:
        return [*found, input_copy + weight]
    if call.what == _OF_INPUT:
        return [*found, output_copy + weight]
    split = _split_weights(call)
    return [*found, call.batch * call.weights * 4, split, copies + split, 4 * _MIB, copies + 4 * _MIB]


def _size(call: Convolution) -> int:
    elements = call.batch * (call.inputs * call.input_area + call.outputs * call.output_area) + call.weights
    return elements * call.itemsize


def _errors(call: Convolution, bytes: int) -> list[float]:
    """How far each candidate is from what was measured, in parts of the convolution's own size."""
    return [min(1.5, abs(candidate - bytes) / _size(call)) for candidate in _candidates(call)]


_WEIGHTS = (1.33, 0.98, 0.97, 3.18, 0.93, 1.07, 0.5, 3.21, 1.28, 0.53, 1.02, 0.5, 1.0)
"""How much each part of a position counts: found by leaving out each measurement and predicting it from the others."""


def _position(call: Convolution) -> list[float]:
    """Where a convolution lies among others: similar ones are near."""
    pointwise = call.kernel_area == 1 and call.stride == 1
    sizes = (call.batch, call.inputs, call.outputs, call.kernel_area, call.output_area, call.stride, call.dilation)
    flags = (pointwise, call.inputs % 8 != 0, call.outputs % 8 != 0, call.inputs <= 4, call.dtype == 2)
    values = [math.log2(size) for size in sizes] + [float(flag) for flag in flags] + [math.log2(call.groups)]
    return [value * weight for value, weight in zip(values, _WEIGHTS, strict=True)]


def _family(call: Convolution) -> tuple[int, ...]:
    """Only convolutions of one family are compared: depthwise and other grouped ones are families of their own."""
    grouped = 0 if call.groups == 1 else 2 if call.groups == call.inputs else 1
    return (call.what, call.itemsize, call.channels_last, max(call.dimensions, 2), grouped)


class _Measured(NamedTuple):
    call: Convolution
    position: list[float]
    bytes: int


@cache
def _measured() -> dict[tuple[int, ...], list[_Measured]]:
    text = importlib.resources.files(__package__).joinpath("convolutions_h200.csv").read_text()
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            fields = line.split(",")
            shape = list(map(int, fields[:10]))
            for kind, bytes in (measured.split("=") for measured in fields[10:]):
                found.append((Convolution(*map(int, kind), *shape), int(bytes)))
    families: dict[tuple[int, ...], list[_Measured]] = {}
    for call, number in sorted(found):  # of equally similar ones the first counts
        families.setdefault(_family(call), []).append(_Measured(call, _position(call), number))
    return families


def from_similar(call: Convolution, others: list[_Measured]) -> int:
    """What the three most similar of ``others`` take, of the same kind for this convolution's sizes."""
    at = _position(call)
    nearest = sorted(
        (sum(abs(a - b) for a, b in zip(at, other.position, strict=True)), i) for i, other in enumerate(others)
    )[:3]
    candidates = _candidates(call)
    scores = [0.0] * len(candidates)
    for distance, i in nearest:
        for candidate, error in enumerate(_errors(others[i].call, others[i].bytes)):
            scores[candidate] += error / (0.3 + distance)
    chosen = scores.index(min(scores))
    return candidates[chosen] + _more(chosen, [others[i] for _, i in nearest])


_MOST_MORE = 4096
"""Bytes of parameters that a kernel can have in its workspace."""


def _more(chosen: int, nearest: list[_Measured]) -> int:
    """What kernels take for their parameters beside a candidate: as the most similar convolution that took that
    candidate."""
    for other in nearest:
        more = other.bytes - _candidates(other.call)[chosen]
        if 0 <= more <= _MOST_MORE:
            return more
    return 0


@cache
def _measured_or_similar(call: Convolution) -> tuple[int, bool]:
    """The bytes of the workspace, and whether this very convolution was measured."""
    family = _measured().get(_family(call), [])
    same = next((other for other in family if other.call == call), None)
    return (from_similar(call, family), False) if same is None else (same.bytes, True)


def workspace(call: Convolution) -> int:
    """By the table alone."""
    return _measured_or_similar(call)[0]


_MEASURED_ON = (9, 0)
"""The compute capability of the GPU of the table."""
_LIKE_MEASURED = (0, *range(91500, 92100))
"""Versions of cuDNN that answer as the one of the table. 0: it is not known which the program will have."""
_SPLIT = {(9, 0): 2 * _MIB}
"""Hopper's kernels and those of later GPUs divide sums between multiprocessors, by how many of them run at once, which
cuDNN does not know without a GPU. 96 % of Hopper's workspaces are within so much (partial_sums.c)."""
_SPLIT_OF_LATER = 8 * _MIB
"""Before its partial sums were counted, 95 % of Hopper's were within so much. Later GPUs were not measured."""
_MOST_OF_PRODUCT = 16 * _MIB
"""The most that cuBLAS takes for the sums of a product of matrices, beside a few hundred bytes."""
_FEW = 256


class _Workspace(NamedTuple):
    bytes: int
    kind: str
    """One of certainty.DOUBTS."""
    more: int
    """It may take so many bytes more."""


def _of_product(call: Convolution, processors: int) -> _Workspace:
    """cuBLAS multiplies the matrices, and says nothing without a GPU. Each image has sums of its own where a matrix is
    an image; with channels last it is one product, whose sums are divided so that they fill the multiprocessors."""
    if call.what != _OF_WEIGHT:
        return _Workspace(0, "planned_convolution", 2 * _FEW)
    sums = call.weights * 4
    if not call.channels_last:
        return _Workspace(call.batch * sums, "planned_convolution", 2 * _FEW)
    splits = min(processors // 2, _MOST_OF_PRODUCT // sums)
    return _Workspace(splits * sums + _FEW if splits else 0, "planned_convolution", _MOST_OF_PRODUCT)


def _planned(gpu: GpuAndTorch, call: Convolution, asked: plans.Asked) -> tuple[_Workspace | None, bool]:
    """What cuDNN says, or None where it says nothing; and whether it leaves a product of matrices to cuBLAS."""
    plan = plans.ask(gpu, asked)
    if plan is None or plan.result == plans.NO_PLAN:
        return None, False
    if plan.result == plans.PRODUCT:
        return _of_product(call, gpu.processors), True
    is_guess = torch.backends.cudnn.benchmark  # torch then measures which plan is the fastest
    more = plan.bytes if is_guess else 0
    split = _SPLIT.get(gpu.capability, _SPLIT_OF_LATER if gpu.capability > _MEASURED_ON else 0)
    return _Workspace(plan.bytes, "planned_convolution", more + split), False


def _find_workspace(gpu: GpuAndTorch, call: Convolution, asked: plans.Asked) -> _Workspace:
    measured, is_measured = _measured_or_similar(call) if call.dtype != _DTYPES[torch.float64] else (0, False)
    planned, is_product = _planned(gpu, call, asked)
    if planned is not None and not (is_product and is_measured and _is_as_measured(gpu)):
        return planned
    return _Workspace(measured, "convolution" if is_measured else "similar_convolution", measured)


def _is_as_measured(gpu: GpuAndTorch) -> bool:
    return gpu.capability == _MEASURED_ON and plans.version(gpu) in _LIKE_MEASURED


# ---- layouts ----


def memory_format(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The layout that cuDNN works in: channels last where the input or the weight is."""
    from torch._prims_common import suggest_memory_format

    for tensor in (input, weight):
        format = suggest_memory_format(tensor)
        if format != torch.contiguous_format and input.dtype != torch.float64:
            return format
    return torch.contiguous_format


def _like_batch_of_one(input: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the input has no dimension for the batch."""
    return input.dim() == weight.dim() - 1


def _in_format(spec: Any, format: torch.memory_format) -> Any:
    shape, _, dtype = spec
    return (shape, torch.empty(shape, dtype=dtype, device="meta", memory_format=format).stride(), dtype)


def _forward_results(args: Any, kwargs: Any) -> Any:
    spec = operators.infer_on_meta(torch.ops.aten.convolution.default, args, kwargs)
    format = memory_format(args[0], args[1])
    return spec if format == torch.contiguous_format or len(spec[0]) < 4 else _in_format(spec, format)


def _backward_results(args: Any, kwargs: Any) -> Any:
    specs = operators.infer_on_meta(torch.ops.aten.convolution_backward.default, args, kwargs)
    format = memory_format(args[1], args[2])
    if format == torch.contiguous_format:
        return specs
    return [_in_format(spec, format) if spec is not None and len(spec[0]) >= 4 else spec for spec in specs]


INFERENCES = {
    torch.ops.aten.convolution.default: _forward_results,
    torch.ops.aten.convolution_backward.default: _backward_results,
}


# ---- rules ----


def _copy(tensor: torch.Tensor, format: torch.memory_format) -> list[WorkspaceEvent]:
    if tensor.dim() < 4:
        format = torch.contiguous_format
    return [] if tensor.is_contiguous(memory_format=format) else [("temporary", tensor.nbytes)]


def _area(shape: Any) -> int:
    return math.prod(shape[2:])


def _call(
    what: int,
    input: Any,
    weight: Any,
    output: Any,
    stride: Any,
    dilation: Any,
    transposed: bool,
    groups: int,
    last: bool,
) -> Convolution:
    """``input``, ``weight`` and ``output`` are shapes, except that ``weight`` is a tensor."""
    if transposed:
        what = {_FORWARD: _OF_INPUT, _OF_INPUT: _FORWARD}.get(what, what)
        input, output = output, input
    return Convolution(
        what, _DTYPES[weight.dtype], int(last), len(input) - 2, groups, input[0], input[1], output[1],
        _area(input), _area(output), _area(weight.shape), max(stride), max(dilation),
    )  # fmt: skip


def _each(values: Any, count: int) -> list[int]:
    """torch takes one value for all dimensions."""
    return list(values) * count if len(values) == 1 else list(values)


def _asked(
    what: int, input: Any, weight: Any, output: Any, geometry: tuple[Any, Any, Any], transposed: bool, last: bool
) -> plans.Asked:
    """As ``_call``, and as torch asks cuDNN. ``geometry``: stride, padding, dilation."""
    count = len(input) - 2
    stride, padding, dilation = (_each(values, count) for values in geometry)
    shapes = [list(input), list(weight.shape), list(output)]
    if count == 1:  # torch makes it two-dimensional
        for shape in shapes:
            shape.insert(2, 1)
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    if transposed:
        what = {_FORWARD: _OF_INPUT, _OF_INPUT: _FORWARD}.get(what, what)
        shapes[0], shapes[2] = shapes[2], shapes[0]
    settings = torch.backends.cudnn
    is_deterministic = settings.deterministic or torch.are_deterministic_algorithms_enabled()
    flags = int(last) | 2 * int(is_deterministic) | 4 * int(not settings.allow_tf32)
    return plans.Asked(
        what, _DTYPES[weight.dtype], flags, tuple(shapes[0]), tuple(shapes[1]), tuple(shapes[2]),
        tuple(padding), tuple(stride), tuple(dilation),
    )  # fmt: skip


def _is_native_depthwise(gpu: GpuAndTorch, input: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """torch has kernels of its own for depthwise convolutions of contiguous tensors: they take nothing."""
    return (
        groups > 1
        and groups == input.size(1)
        and memory_format(input, weight) == torch.contiguous_format
        and input.dim() <= 4
    )


def _taken(gpu: GpuAndTorch, call: Convolution, asked: plans.Asked) -> list[WorkspaceEvent]:
    bytes, kind, more = _find_workspace(gpu, call, asked)
    doubt(kind, bytes, more)
    return [("temporary", bytes), ("temporary", -bytes)] if bytes else []


@rule("aten.convolution.default", source="ATen/native/cudnn/ConvShared.cpp; workspaces: cuDNN, or measured")
def _forward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    input, weight, _, stride, padding, dilation, transposed, _, groups = args
    if _like_batch_of_one(input, weight) or weight.dtype not in _DTYPES:
        return None
    format = memory_format(input, weight)
    events = [*_copy(input, format)]
    if _is_native_depthwise(gpu, input, weight, groups) and not transposed:
        return [*events, _RESULT] if events else None
    last = format != torch.contiguous_format
    call = _call(_FORWARD, input.shape, weight, specs[0], stride, dilation, transposed, groups, last)
    geometry = (stride, padding, dilation)
    asked = _asked(_FORWARD, input.shape, weight, specs[0], geometry, transposed, last)
    return [*events, _RESULT, *_copy(weight, format), *_taken(gpu, call, asked)]


def _bias_gradient(gpu: GpuAndTorch, grad: torch.Tensor) -> list[WorkspaceEvent]:
    known = all_rules().get("aten.sum.dim_IntList")
    dimensions = [0, *range(2, grad.dim())]
    events = known.function(gpu, (grad, dimensions, False), {}, None) if known is not None else None
    return [event for event in events if event[0] != "result"] if isinstance(events, (list, tuple)) else []


@rule("aten.convolution_backward.default", source="ATen/native/cudnn/ConvShared.cpp; workspaces: cuDNN, or measured")
def _backward(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    grad, input, weight, _, stride, padding, dilation, transposed, _, groups, mask = args
    if _like_batch_of_one(input, weight) or weight.dtype not in _DTYPES:
        return None
    format = memory_format(input, weight)
    last = format != torch.contiguous_format
    native = _is_native_depthwise(gpu, input, weight, groups) and not transposed
    events = [*(_copy(input, format) if mask[1] else []), *_copy(grad, format)]
    for what, wanted in ((_OF_INPUT, mask[0]), (_OF_WEIGHT, mask[1])):
        events.append(_RESULT)
        if wanted and not native:
            copy = _copy(weight, format) if what == _OF_INPUT else []
            call = _call(what, input.shape, weight, grad.shape, stride, dilation, transposed, groups, last)
            asked = _asked(what, input.shape, weight, grad.shape, (stride, padding, dilation), transposed, last)
            events += [*copy, *_taken(gpu, call, asked), *[("temporary", -bytes) for _, bytes in copy]]
    return [*events, _RESULT, *(_bias_gradient(gpu, grad) if mask[2] else [])]
