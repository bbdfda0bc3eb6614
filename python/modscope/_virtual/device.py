"""Install the virtual device in torch, and remove it."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from modscope import _interception, _native, _text
from modscope._virtual import kernels, known, operators, sparse
from modscope._virtual.custom_operators import fakes_preferred
from modscope._virtual.gpus import Gpu

__all__ = ["VirtualDevice"]

_CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_STAT_PARTS = ("current", "peak", "allocated", "freed")
_POOLS = ("all", "small_pool", "large_pool")


def _allocator_settings() -> str | None:
    return next((os.environ[name] for name in _CONF_NAMES if os.environ.get(name)), None)


class VirtualDevice:
    """One virtual GPU. While it is installed, torch in this process believes that it is there."""

    def __init__(self, gpu: Gpu, version: str | None = None) -> None:
        self.gpu = gpu
        self._version = version or str(torch.__version__)
        self._undo = contextlib.ExitStack()

    def install(self) -> None:
        """Install the device. No backward may have run in this process: autograd counts devices when the first one runs."""
        if torch.backends.cuda.is_built():
            raise RuntimeError("a virtual GPU needs a torch that was built without CUDA: this one has kernels for a real GPU")
        _native.virtual_install(self._version, _allocator_settings(), self.gpu.capacity, self.gpu.memory)
        with contextlib.ExitStack() as undo:
            undo.callback(_native.virtual_remove)
            _interception.prepare()  # after the installation: autograd counts devices when the first backward runs
            missing = _native.virtual_find_functions(
                torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA).raw_repr()
            )
            if missing:
                raise RuntimeError(f"a virtual GPU needs another torch: {missing}")
            undo.enter_context(_kernels_registered())
            undo.enter_context(fakes_preferred())
            undo.enter_context(_replaced(torch.cuda, self._cuda_functions()))
            undo.enter_context(_replaced(torch.accelerator, {"current_stream": lambda *_: _Stream()}))
            undo.enter_context(_replaced(_amp_common(), {"amp_definitely_not_available": lambda: False}))
            undo.enter_context(_replaced(operators, {"out_of_memory": self._out_of_memory}))
            self._undo = undo.pop_all()

    def remove(self) -> None:
        self._undo.close()
        operators.forget()
        known.forget_all()

    # ---- torch.cuda ----

    def _stats(self) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for name, value in _native.virtual_stats().items():
            if isinstance(value, int):
                nested[name] = value
            elif isinstance(value[0], int):
                nested[name] = dict(zip(_STAT_PARTS, value, strict=True))
            else:
                nested[name] = {
                    pool: dict(zip(_STAT_PARTS, part, strict=True)) for pool, part in zip(_POOLS, value, strict=True)
                }
        return nested

    def _bytes(self, name: str, part: str) -> int:
        return int(self._stats()[name]["all"][part])

    def _memory_info(self, device: Any = None) -> tuple[int, int]:
        return (self.gpu.capacity - self._bytes("reserved_bytes", "current"), self.gpu.memory)

    def _out_of_memory(self, bytes: int) -> BaseException:
        allocated, reserved = self._bytes("allocated_bytes", "current"), self._bytes("reserved_bytes", "current")
        free, total = self._memory_info()
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_text.size(bytes)}. GPU 0 has a total capacity of {_text.size(total)} "
            f"of which {_text.size(free)} is free. Of the allocated memory {_text.size(allocated)} is allocated by PyTorch, "
            f"and {_text.size(reserved - allocated)} is reserved by PyTorch but unallocated. (This is a virtual GPU.)"
        )

    def _cuda_functions(self) -> dict[str, Any]:
        gpu = self.gpu
        properties = types.SimpleNamespace(
            name=gpu.title,
            total_memory=gpu.memory,
            major=gpu.capability[0],
            minor=gpu.capability[1],
            multi_processor_count=gpu.processors,
            max_threads_per_multi_processor=2048,
            warp_size=32,
            gcnArchName="",
            is_integrated=False,
        )

        def answer(value: Any) -> Callable[..., Any]:
            """A function of its own for each name: dynamo distinguishes torch's functions by identity."""
            return lambda *_, **__: value

        return {
            "is_available": answer(True),
            "is_initialized": answer(True),
            "_lazy_init": answer(None),
            "init": answer(None),
            "device_count": answer(1),
            "current_device": answer(0),
            "set_device": answer(None),
            "synchronize": answer(None),
            "get_device_properties": answer(properties),
            "get_device_name": answer(gpu.title),
            "get_device_capability": answer(gpu.capability),
            "is_bf16_supported": answer(gpu.capability >= (8, 0)),
            "is_current_stream_capturing": answer(False),
            "manual_seed": answer(None),
            "manual_seed_all": answer(None),
            "seed": answer(None),
            "seed_all": answer(None),
            "empty_cache": lambda: _native.virtual_empty_cache(),
            "memory_allocated": lambda *_: self._bytes("allocated_bytes", "current"),
            "max_memory_allocated": lambda *_: self._bytes("allocated_bytes", "peak"),
            "memory_reserved": lambda *_: self._bytes("reserved_bytes", "current"),
            "max_memory_reserved": lambda *_: self._bytes("reserved_bytes", "peak"),
            "memory_snapshot": lambda *_, **__: _snapshot(),
            "memory_stats_as_nested_dict": lambda *_: self._stats(),
            "mem_get_info": self._memory_info,
            "reset_peak_memory_stats": lambda *_: _native.virtual_reset(True),
            "reset_accumulated_memory_stats": lambda *_: _native.virtual_reset(False),
        }


def _snapshot() -> list[dict[str, Any]]:
    """As torch.cuda.memory_snapshot(), with a segment for each block."""
    return [
        {
            "device": 0,
            "address": address,
            "total_size": size,
            "allocated_size": size,
            "active_size": size,
            "stream": 0,
            "segment_type": "large" if size > 1 << 20 else "small",
            "blocks": [{"address": address, "size": size, "requested_size": size, "state": "active_allocated"}],
        }
        for address, size in sorted(_native.virtual_blocks())
    ]


class _Stream:
    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        return None


def _amp_common() -> Any:
    import torch.cuda.amp.common

    return torch.cuda.amp.common


@contextlib.contextmanager
def _replaced(module: Any, values: dict[str, Any]) -> Iterator[None]:
    """Set attributes of a module, and restore them in the end."""
    absent = object()
    before = {name: getattr(module, name, absent) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is absent:
                delattr(module, name)
            else:
                setattr(module, name, value)


def _bound(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: known.run(op, *args, **kwargs)


@contextlib.contextmanager
def _kernels_registered() -> Iterator[None]:
    every = torch.library.Library("_", "IMPL")  # noqa: TOR901
    aten = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    try:
        every.fallback(known.run, "CUDA")
        for name, op in kernels.from_meta().items():
            if name not in kernels.KERNELS:
                aten.impl(name, _bound(op), "CUDA")
        for name, kernel in kernels.KERNELS.items():
            aten.impl(name, kernel, "CUDA")
        for name, composed in kernels.COMPOSED.items():
            for key in ("CUDA", "AutogradCUDA"):
                aten.impl(name, composed, key)
        for name, kernel in sparse.KERNELS.items():
            aten.impl(name, kernel, "SparseCUDA")
        yield
    finally:
        aten._destroy()
        every._destroy()
