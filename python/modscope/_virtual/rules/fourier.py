"""Rules of Fourier transforms: the copies that torch makes of the input, and cuFFT's scratch memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from modscope._virtual.operators import operators
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules.rules import GpuAndTorch, doubt, rule

__all__: list[str] = []

_SOURCE = "ATen/native/cuda/SpectralOps.cpp; cuFFT's scratch: 13 transforms measured on an H200"
_MOST_DIMENSIONS = 3
"""That cuFFT transforms at once."""
_MEASURED_LENGTH, _LONG = 1024, 8192
"""The longest transform that was seen to take no scratch memory, and the length from which it is taken to need some: at
16,000 it does."""


def _scratch(lengths: list[int], batch: int, itemsize: int, is_real: bool) -> int:
    """A complex number for each that is transformed, half as many for real ones, of three dimensions and of long
    lengths; for a prime factor that cuFFT has no kernel for, one for each. Others take none."""
    count = batch * math.prod(lengths)
    primes = any(_largest_factor(length) > 127 for length in lengths)
    bytes = count * itemsize // (2 if is_real and not primes else 1)
    measured = len(lengths) <= 2 and max(lengths) <= _MEASURED_LENGTH and not primes
    if not measured:
        doubt("without_rule", 0, bytes)
    return bytes if primes or len(lengths) > 2 or max(lengths) > _LONG else 0


def _largest_factor(number: int) -> int:
    factor = 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            number //= factor
    return number


def _is_embedded(sizes: Any, strides: Any) -> bool:
    """cuFFT can read these: batch first, each stride a multiple of the next one."""
    if strides[-1] <= 0 or (sizes[0] != 1 and strides[0] == 0):
        return False
    return all(strides[i + 1] > 0 and strides[i] % strides[i + 1] == 0 for i in range(1, len(strides) - 1))


def _transform(data: torch.Tensor, dims: list[int], last: int | None = None) -> list[WorkspaceEvent]:
    """One call of cuFFT. ``last``: the length of the last dimension, where it is not the input's. The batch lies before
    what is transformed, in one dimension, and the input is copied where its strides are not such."""
    strides = data.stride()
    others = sorted((d for d in range(data.dim()) if d not in dims), key=strides.__getitem__, reverse=True)
    data = operators.to_meta(data).permute(*others, *dims)
    sizes = [math.prod(data.shape[: len(others)]), *data.shape[len(others) :]]
    lengths = [*sizes[1:-1], last or sizes[-1]]
    events: list[WorkspaceEvent] = []
    try:
        data = data.view(sizes)
        copied = not _is_embedded(data.shape, data.stride())
    except RuntimeError:
        copied = True
    if copied:
        events.append(("temporary", data.nbytes))
    is_real = last is not None or not data.is_complex()
    itemsize = data.dtype.itemsize if data.is_complex() else 2 * data.dtype.itemsize
    scratch = _scratch(lengths, sizes[0], itemsize, is_real)
    if scratch:
        events.append(("temporary", scratch))
    return [*events, *[("temporary", -bytes) for _, bytes in events]]


def _transforms(data: torch.Tensor, dims: list[int], made: int) -> list[WorkspaceEvent]:
    """As many calls as dimensions need; the second one has a second result."""
    strides = data.stride()
    dims = sorted(dims, key=strides.__getitem__, reverse=True)
    events = _transform(data, dims[-_MOST_DIMENSIONS:])
    others = dims[:-_MOST_DIMENSIONS]
    return [*events, ("temporary", made), *_transforms(data, others, 0)] if others else events


def _at_once(dims: list[int]) -> bool:
    return len(dims) <= _MOST_DIMENSIONS and dims[:2] != [0, 1]


def _dims(data: torch.Tensor, dims: Any) -> list[int]:
    return [d % data.dim() for d in dims]


@rule("aten._fft_c2c.default", source=_SOURCE)
def _complex_events(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    data, dims = args[0], _dims(args[0], args[1])
    return [("result", 0), *_transforms(data, dims, data.nbytes)] if dims else None


@rule("aten._fft_r2c.default", source=_SOURCE)
def _from_real_events(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    data, dims = args[0], _dims(args[0], args[1])
    if _at_once(dims):
        return [("result", 0), *_transform(data, dims)]
    made = math.prod(specs[0]) * specs[2].itemsize
    half = torch.empty(specs[0], dtype=specs[2], device="meta")
    first = _transform(data, dims[-1:])
    return [("result", 0), *first, ("temporary", made), *_transforms(half, dims[:-1], made)]


@rule("aten._fft_c2r.default", source=_SOURCE)
def _to_real_events(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    """The input is copied: cuFFT overwrites it."""
    data, dims, last = args[0], _dims(args[0], args[1]), args[3]
    copy = torch.empty(data.shape, dtype=data.dtype, device="meta")
    events: list[WorkspaceEvent] = [("result", 0), ("temporary", data.nbytes)]
    if _at_once(dims):
        return [*events, *_transform(copy, dims, last)]
    return [*events, *_transforms(data, dims[:-1], data.nbytes), *_transform(copy, dims[-1:], last)]
