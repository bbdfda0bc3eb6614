"""Devices, by the numbers that the ledger has for them."""

from __future__ import annotations

import torch
from modscope import _native

# torch's own numbers of its device types, as its allocators report them.
_TYPES = {"cpu": 0, "cuda": 1, "hip": 6, "xpu": 12, "mps": 13, "meta": 14, "privateuseone": 20}
_names = {number: name for name, number in _TYPES.items()}


def number_device(device: torch.device) -> int:
    """The ledger's number of a device. The C code asks for the device of each tensor that an operator returns."""
    if device.type == "cuda" and not torch.backends.cuda.is_built() and not torch.version.hip:
        raise RuntimeError(
            "modscope: this torch is built without CUDA, and its autograd aborts the process for fake 'cuda' tensors. "
            "Use device='cpu' for the fake model, or a CUDA build of torch, whose backward needs a GPU."
        )
    kind = _TYPES.setdefault(device.type, 40 + len(_TYPES))
    _names[kind] = device.type
    return _native.device_number(kind, -1 if device.index is None else device.index)


def devices() -> list[torch.device]:
    """All devices, in the order of the ledger's numbers."""
    return [
        torch.device(_names.get(kind, "privateuseone")) if index < 0 else torch.device(_names[kind], index)
        for kind, index in _native.devices()
    ]


def list_cuda_blocks() -> dict[int, int] | None:
    """The sizes of the blocks that the CUDA allocator has allocated, by address. None if CUDA is not in use."""
    # is_available() would initialize the driver, and no forked child could use it then
    if not torch.cuda.is_initialized():
        return None
    sizes = {}
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                sizes[address] = block["size"]
            address += block["size"]
    return sizes
