"""New tensors of the virtual device, and views: other tensors in the same storage."""

from __future__ import annotations

from typing import Any

import torch
from modscope import _native
from modscope._virtual.operators import operators

__all__ = ["KERNELS"]

# ---- new tensors ----


def _check_device(device: torch.device | None) -> None:
    if device is not None and device.index:
        operators.check_ordinal(device.index)


def empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    _check_device(device)
    dtype = dtype or torch.get_default_dtype()
    if memory_format in (None, torch.contiguous_format):
        return operators.make(size, operators.contiguous_strides(size), dtype)
    return operators.empty_like_meta(torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format))


def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    _check_device(device)
    return operators.make(size, stride, dtype or torch.get_default_dtype())


def resize_(self: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    if tuple(self.shape) != tuple(size):
        self.data = empty(size, dtype=self.dtype, memory_format=memory_format)
    return self


# ---- views ----


def as_strided(self: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    offset = self.storage_offset() if storage_offset is None else storage_offset
    return _native.virtual_alias(self, size, stride, offset)


def _view_like(self: torch.Tensor, meta: torch.Tensor) -> torch.Tensor:
    return _native.virtual_alias(self, meta.shape, meta.stride(), self.storage_offset() + meta.storage_offset())


def view(self: torch.Tensor, size: Any) -> torch.Tensor:
    return _view_like(self, operators.to_meta(self).view(size))


def reshape_alias(self: torch.Tensor, size: Any, stride: Any) -> torch.Tensor:
    return _native.virtual_alias(self, size, stride, self.storage_offset())


def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    return _view_like(self, operators.to_meta(self).unfold(dimension, size, step))


def _view_as(self: torch.Tensor, meta: torch.Tensor, offset: int) -> torch.Tensor:
    """A view of another type: all of the storage is seen as that type first."""
    count = (
        self.untyped_storage().nbytes() // max(self.itemsize, meta.itemsize) * max(1, meta.itemsize // self.itemsize)
    )
    whole = _native.virtual_alias(self, (count,), (1,), 0).view(meta.dtype)
    return _native.virtual_alias(whole, meta.shape, meta.stride(), offset)


def view_as_real(self: torch.Tensor) -> torch.Tensor:
    return _view_as(self, torch.view_as_real(operators.to_meta(self)), 2 * int(self.storage_offset()))


def view_as_complex(self: torch.Tensor) -> torch.Tensor:
    return _view_as(self, torch.view_as_complex(operators.to_meta(self)), int(self.storage_offset()) // 2)


KERNELS = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "resize_": resize_,
    "as_strided": as_strided,
    "view": view,
    "_reshape_alias": reshape_alias,
    "unfold": unfold,
    "view_as_real": view_as_real,
    "view_as_complex": view_as_complex,
}
