"""What copies between devices and selections by a mask take beside their results."""

from __future__ import annotations

import torch

from modscope._virtual.operators import Event
from modscope._virtual.rules import contiguous_copy

__all__ = ["between_devices", "indices_of_mask"]


def between_devices(to: torch.Tensor, of: torch.Tensor) -> list[Event]:
    """The copy on the GPU through which a tensor goes that cannot be copied at once (Copy.cu: copy_requires_temporaries)."""
    if to.dtype == of.dtype and to.shape == of.shape and to.stride() == of.stride():
        return []
    return contiguous_copy(to) if to.is_cuda else contiguous_copy(of)


def indices_of_mask(count: int, dimensions: int) -> list[Event]:
    """A mask becomes indices before it selects (TensorAdvancedIndexing.cpp: masked_select_out_impl, expandTensors)."""
    return [("temporary", max(count * max(dimensions, 1) * 8, 1))]
