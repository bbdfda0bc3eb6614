"""Operators of the virtual device that are not computed from the meta device alone."""

from __future__ import annotations

from typing import Any

import torch

from modscope import _native
from modscope._virtual import attention, batch_norm, convolution, ctc, encoder, operators, recurrent

# ---- new tensors ----


def empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    if memory_format in (None, torch.contiguous_format):
        return operators.make(size, operators.contiguous_strides(size), dtype)
    return operators.empty_like_meta(torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format))


def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    return operators.make(size, stride, dtype or torch.get_default_dtype())


def resize_(self: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    if tuple(self.shape) != tuple(size):
        self.data = empty(size, dtype=self.dtype, memory_format=memory_format)
    return self


# ---- views: another tensor in the same storage ----


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


# ---- values: a tensor of the virtual device has none, and is read as zeros ----


def local_scalar_dense(self: torch.Tensor) -> bool | float | int | complex:
    if self.dtype == torch.bool:
        return False
    if self.dtype.is_complex:
        return 0j
    return 0.0 if self.dtype.is_floating_point else 0


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if self.device.type == "cpu":
        self.zero_()
    return self


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return copy_(dst, self, non_blocking)


# ---- sizes that depend on values: half of the elements are taken to be selected ----


def nonzero(self: torch.Tensor) -> torch.Tensor:
    count = self.numel() // 2
    return operators.make((count, self.dim()), (1, max(count, 1)), torch.int64)


def masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    elements = torch.broadcast_shapes(self.shape, mask.shape).numel()
    return operators.make((elements // 2,), (1,), self.dtype)


KERNELS = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "resize_": resize_,
    "as_strided": as_strided,
    "view": view,
    "_reshape_alias": reshape_alias,
    "unfold": unfold,
    "_local_scalar_dense": local_scalar_dense,
    "copy_": copy_,
    "_copy_from": copy_from,
    "nonzero": nonzero,
    "masked_select": masked_select,
    **attention.KERNELS,
    **ctc.KERNELS,
    **encoder.KERNELS,
    **recurrent.KERNELS,
}
INFERENCES = {**attention.INFERENCES, **convolution.INFERENCES, **ctc.INFERENCES}

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


def _overload(name: str) -> Any:
    """The operator ``aten::name.overload``."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def from_meta() -> dict[str, Any]:
    """Operators that a CUDA build has a kernel for, although they can also be composed of others.

    torch composes them where that kernel is missing, with other memory. A kernel for the CPU tells that there is one for
    CUDA. Convolutions ask for libraries that are not there.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = ["aten::convolution", "aten::convolution_backward"]
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and has(name, "CPU") and not has(name, "CUDA"):
            if any(has(name, key) for key in _COMPOSITE):
                names.append(name)
    return {name.removeprefix("aten::"): _overload(name) for name in names}


COMPOSED = {**attention.COMPOSED, **batch_norm.COMPOSED, **recurrent.COMPOSED}
"""Operators made of differentiable ones."""
