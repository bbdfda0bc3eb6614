"""Storages of the virtual device: made, resized, and set in tensors. torch does this per device, in C++ and by
types."""

from __future__ import annotations

import threading
from typing import Any

import torch
from modscope import _native
from modscope._virtual.operators import operators

__all__ = ["KERNELS", "replacements"]

_CANNOT_BE_SHARED = (
    "a tensor of a virtual GPU cannot be shared with another process: send a copy, tensor.cpu(). What a worker of a "
    "DataLoader returns can be moved to the GPU by the program that reads it."
)
_FEEDER = "QueueFeederThread"
"""How multiprocessing names the thread that pickles what is put in a queue. An error there reaches nobody."""


def _make(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """As UntypedStorage(bytes, device=...)."""
    device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    if device is None or device.type != "cuda":
        return torch._C.StorageBase.__new__(cls, *args, **kwargs)
    content = args[0] if args else kwargs.get("size", 0)
    bytes = content if isinstance(content, int) else len(content)
    with operators.on_device(device.index):
        return operators.make((bytes,), (1,), torch.uint8).untyped_storage()


def _resize(self: Any, size: int) -> Any:
    if self.device.type != "cuda":
        base: Any = torch._C.StorageBase
        return base.resize_(self, size)
    if not _native.virtual_resize(self._cdata, size):
        with operators.on_device(self.device.index):
            raise operators.out_of_memory(size)
    return self


def _share(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Whoever takes the tensor out of a queue gets the error, by _new_shared."""
    if threading.current_thread().name != _FEEDER:
        raise RuntimeError(_CANNOT_BE_SHARED)
    return (self.device.index, b"virtual", max(self.nbytes(), 1), 0, b"", 0, b"", False)


def _new_shared(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(_CANNOT_BE_SHARED)


def replacements() -> list[tuple[Any, dict[str, Any]]]:
    of_storage = {
        "__new__": staticmethod(_make),
        "resize_": _resize,
        "_share_cuda_": _share,
        "_new_shared_cuda": _new_shared,
    }
    return [(torch.UntypedStorage, of_storage)]


# ---- operators ----


def _on_cpu(op: Any, *args: Any) -> Any:
    """The kernel for the CPU: it changes a tensor's fields, whatever its device is."""
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args)


def _set_storage(self: torch.Tensor, source: Any) -> torch.Tensor:
    size = source.nbytes() // self.element_size()
    return _set_part_of_storage(self, source, 0, (size,), (1,))


def _set_part_of_storage(self: torch.Tensor, source: Any, offset: Any, size: Any, stride: Any = ()) -> torch.Tensor:
    stride = stride or operators.contiguous_strides(size)
    _on_cpu(torch.ops.aten.set_.source_Storage_storage_offset, self, source, offset, size, stride)
    return self


def _set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return _set_part_of_storage(self, source.untyped_storage(), source.storage_offset(), source.shape, source.stride())


def _set_nothing(self: torch.Tensor) -> torch.Tensor:
    return _set_part_of_storage(self, operators.make((0,), (1,), torch.uint8).untyped_storage(), 0, (0,), (1,))


def _record_stream(self: torch.Tensor, stream: Any) -> None:
    _native.virtual_record_stream(self, stream.stream_id)


def _equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """A comparison gives False, as that of elements."""
    return False


KERNELS = {
    "set_.source_Storage": _set_storage,
    "set_.source_Storage_storage_offset": _set_part_of_storage,
    "set_.source_Tensor": _set_tensor,
    "set_": _set_nothing,
    "record_stream": _record_stream,
    "equal": _equal,
}
