"""The memory of the virtual device, in the words of torch.cuda: statistics, snapshots, settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import torch
from modscope import _native
from modscope._virtual.device.environment import allocator_settings
from modscope._virtual.gpus import Gpu

__all__ = ["Memory", "out_of_memory_message"]

_STAT_PARTS = ("current", "peak", "allocated", "freed")
_POOLS = ("all", "small_pool", "large_pool")
_HOST_STATS = ("allocations", "allocated_bytes", "active_requests", "active_bytes", "segment", "reserved_bytes")
_HOST_TIMES = ("host_alloc_time", "host_free_time")


def _setting(settings: str, key: str) -> str | None:
    """The last value that a text of PYTORCH_CUDA_ALLOC_CONF gives to a key."""
    found = re.findall(rf"{key}\s*:\s*([\d.]+)", settings)
    return found[-1] if found else None


def _parts(values: Any) -> dict[str, int]:
    return dict(zip(_STAT_PARTS, values, strict=True))


class Memory:
    """What torch asks about the memory of virtual GPUs of one kind. ``device``: the index of one of them."""

    def __init__(self, gpu: Gpu, count: int = 1) -> None:
        self._gpu = gpu
        self.count = count
        self._settings = allocator_settings() or ""
        fraction = float(_setting(self._settings, "per_process_memory_fraction") or 1)
        self._fractions = [fraction] * count
        self._metadata = ""
        self._outside = [0] * count
        self._raw: dict[int, int] = {}  # handles of what no tensor holds, by address
        self.name_of_pool: Callable[[int], tuple[int, int]] = lambda number: (0, number)

    # ---- statistics ----

    def stats(self, device: int = 0) -> dict[str, Any]:
        nested: dict[str, Any] = {"max_split_size": self._max_split_size(), "num_oom_rejections": 0}
        for name, value in _native.virtual_stats(device).items():
            if isinstance(value, int):
                nested[name] = value
            elif isinstance(value[0], int):
                nested[name] = _parts(value)
            else:
                nested[name] = {pool: _parts(part) for pool, part in zip(_POOLS, value, strict=True)}
        return nested

    def _max_split_size(self) -> int:
        megabytes = _setting(self._settings, "max_split_size_mb")
        return int(megabytes) << 20 if megabytes else -1

    def bytes(self, name: str, part: str, device: int = 0) -> int:
        of_all: tuple[int, ...] = _native.virtual_stats(device)[name][0]
        return of_all[_STAT_PARTS.index(part)]

    def has_allocated(self, device: int) -> bool:
        """Whether anything was ever allocated on it."""
        return self.bytes("allocated_bytes", "allocated", device) > 0

    def most_used(self, preferred: int = 0) -> int:
        """The index of the device that reserved most; of equal ones ``preferred``, or the first."""
        peaks = [self.bytes("reserved_bytes", "peak", device) for device in range(self.count)]
        return preferred if peaks[preferred] == max(peaks) else peaks.index(max(peaks))

    def info(self, device: int = 0) -> tuple[int, int]:
        """What cudaMemGetInfo says: free and total bytes."""
        taken = self._outside[device] + self.bytes("reserved_bytes", "current", device)
        return (max(self._gpu.capacity - taken, 0), self._gpu.memory)

    def out_of_memory(self, bytes: int) -> BaseException:
        """The error that torch raises where the current device has too little memory."""
        device = _native.virtual_device()
        allocated, reserved = (self.bytes(f"{what}_bytes", "current", device) for what in ("allocated", "reserved"))
        free, total = self.info(device)
        allowed = int(self._fractions[device] * total) if self._fractions[device] < 1 else None
        context = self._gpu.context + self._outside[device]
        return torch.OutOfMemoryError(
            out_of_memory_message(bytes, allocated, reserved, context, free, total, allowed, device)
        )

    def host_stats(self) -> dict[str, Any]:
        """The statistics of pinned memory: they stay 0, because it is ordinary memory here."""
        nothing = _parts((0, 0, 0, 0))
        times = {"total": 0, "max": 0, "min": 0, "count": 0, "avg": 0}
        return {
            "num_host_alloc": 0,
            "num_host_free": 0,
            **{name: dict(nothing) for name in _HOST_STATS},
            **{name: dict(times) for name in _HOST_TIMES},
        }

    # ---- snapshots ----

    def snapshot(self, pool: Any = None, include_traces: bool = True) -> dict[str, Any]:
        return {
            "segments": [
                segment
                for device in range(self.count)
                for segment in _segments(device, self.name_of_pool)
                if pool is None or tuple(pool)[:2] in ((0, 0), segment["segment_pool_id"])
            ],
            "device_traces": [[] for _ in range(self.count)],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": self._settings},
            "external_annotations": [],
        }

    # ---- settings ----

    def set_fraction(self, fraction: float, device: int = 0) -> None:
        self._fractions[device] = fraction
        _native.virtual_set_fraction(device, fraction)

    def set_outside(self, bytes: int, device: int = 0) -> None:
        """So much of the GPU is taken by others than torch's allocator, beside the context."""
        self._outside[device] = bytes
        _native.virtual_set_capacity(device, max(self._gpu.capacity - bytes, 0))

    def fraction(self, device: int = 0) -> float:
        return self._fractions[device]

    def apply(self, text: str) -> None:
        _native.virtual_apply_settings(text)
        self._settings = ",".join(filter(None, (self._settings, text)))
        fraction = _setting(text, "per_process_memory_fraction")
        if fraction:
            self._fractions = [float(fraction)] * self.count

    def settings(self) -> str:
        return self._settings

    # ---- memory that is taken by hand ----

    def take(self, bytes: int, stream: int = 0) -> int:
        before = _native.virtual_stream()
        _native.virtual_set_stream(stream)
        try:
            handle = _native.virtual_take(bytes)
        finally:
            _native.virtual_set_stream(before)
        if handle is None:
            raise self.out_of_memory(bytes)
        address = _native.virtual_address(handle)
        self._raw[address] = handle
        return address

    def give(self, address: int) -> None:
        handle = self._raw.pop(address, None)
        if handle is None:
            raise RuntimeError(f"invalid device pointer: {address:#x}")
        _native.virtual_give(handle)

    def adopt(self, handles: dict[int, int]) -> None:
        """Memory that ``give`` gives back: {address: handle}."""
        self._raw.update(handles)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What replaces functions of torch._C, by their names."""
        return {
            "_cuda_memoryStats": self.stats,
            "_cuda_resetPeakMemoryStats": lambda device=0: _native.virtual_reset(device, True),
            "_cuda_resetAccumulatedMemoryStats": lambda device=0: _native.virtual_reset(device, False),
            "_cuda_emptyCache": lambda: _native.virtual_empty_cache(),
            "_cuda_memorySnapshot": self.snapshot,
            "_cuda_setMemoryFraction": self.set_fraction,
            "_cuda_getMemoryFraction": self.fraction,
            "_cuda_cudaCachingAllocator_raw_alloc": self.take,
            "_cuda_cudaCachingAllocator_raw_delete": self.give,
            "_cuda_cudaCachingAllocator_enable": lambda *_: None,
            "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_record_memory_history": lambda *_, **__: None,
            "_cuda_record_memory_history_legacy": lambda *_, **__: None,
            "_cuda_isHistoryEnabled": lambda: False,
            "_cuda_attach_out_of_memory_observer": lambda *_: None,
            "_cuda_allocationTraceback": lambda *_: None,
            "_cuda_setMemoryMetadata": lambda text: setattr(self, "_metadata", text),
            "_cuda_getMemoryMetadata": lambda: self._metadata,
            "_cuda_hostMemoryStats": self.host_stats,
            "_cuda_resetPeakHostMemoryStats": lambda: None,
            "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
            "_host_emptyCache": lambda: None,
            "_accelerator_setAllocatorSettings": self.apply,
            "_accelerator_getAllocatorSettings": self.settings,
            "_cuda_cudaCachingAllocator_set_allocator_settings": self.apply,
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_emptyCache": lambda: _native.virtual_empty_cache(),
            "_accelerator_emptyHostCache": lambda: None,
            "_accelerator_getDeviceStats": self.stats,
            "_accelerator_resetPeakStats": lambda device=0: _native.virtual_reset(device, True),
            "_accelerator_resetAccumulatedStats": lambda device=0: _native.virtual_reset(device, False),
            "_accelerator_getMemoryInfo": self.info,
        }


def _segments(device: int, name_of_pool: Callable[[int], tuple[int, int]]) -> list[dict[str, Any]]:
    """The segments of a device as torch lists them: an expandable one is listed once for each of its ranges that has
    memory."""
    segments: list[dict[str, Any]] = []
    blocks = sorted(_native.virtual_blocks(device), key=lambda block: block[2])
    for (_, total, *_), group in itertools.groupby(blocks, key=lambda block: block[:2]):
        end = None
        for _, _, address, size, requested, stream, state, is_small, is_expandable, pool in group:
            if address != end:
                segments.append(_segment(device, address, total, stream, is_small, is_expandable))
                segments[-1]["segment_pool_id"] = name_of_pool(pool) if pool else (0, 0)
            end = address + size
            _add_block(segments[-1], address, size, requested, state)
    for segment in segments:
        segment["total_size"] = sum(block["size"] for block in segment["blocks"])
    return segments


def _segment(device: int, address: int, total: int, stream: int, is_small: bool, is_expandable: bool) -> dict[str, Any]:
    return {
        "device": device,
        "address": address,
        "total_size": total,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": stream,
        "segment_type": "small" if is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": is_expandable,
        "frames": [],
        "blocks": [],
    }


def _add_block(segment: dict[str, Any], address: int, size: int, requested: int, state: str) -> None:
    segment["allocated_size"] += size if state == "active_allocated" else 0
    segment["active_size"] += size if state != "inactive" else 0
    segment["requested_size"] += requested
    segment["blocks"].append(
        {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}
    )


# ---- the message of torch.OutOfMemoryError ----

_MIB = 1 << 20
_SMALL_SEGMENT, _LARGE_SEGMENT, _ROUND_SEGMENT = 2 * _MIB, 20 * _MIB, 2 * _MIB


def _format_size(size: int) -> str:
    """Format a size as torch does in this message."""
    if size <= 1024:
        return f"{size} bytes"
    for unit, name in ((1 << 10, "KiB"), (1 << 20, "MiB")):
        if size <= unit << 10:
            return f"{size / unit:.2f} {name}"
    return f"{size / (1 << 30):.2f} GiB"


def _segment_size(requested: int) -> int:
    """The size of the segment that the allocator tries to take for a request."""
    if requested <= _MIB:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if requested < 10 * _MIB else -(-requested // _ROUND_SEGMENT) * _ROUND_SEGMENT


def out_of_memory_message(
    requested: int,
    allocated: int,
    reserved: int,
    context: int,
    free: int,
    total: int,
    allowed: int | None = None,
    device: int = 0,
) -> str:
    """The message of torch.OutOfMemoryError, as torch words it. ``allocated``, ``reserved``: by torch; ``context``:
    what the process takes besides; ``free``, ``total``: of the GPU; ``allowed``: the most that torch may take, if
    less."""
    limit = "" if allowed is None else f"{_format_size(allowed)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {_format_size(_segment_size(requested))}. "
        f"GPU {device} has a total capacity of {_format_size(total)} of which {_format_size(free)} is free. "
        f"Including non-PyTorch memory, this process has {_format_size(reserved + context)} memory in use. "
        f"{limit}Of the allocated memory {_format_size(allocated)} is allocated by PyTorch, and "
        f"{_format_size(reserved - allocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
