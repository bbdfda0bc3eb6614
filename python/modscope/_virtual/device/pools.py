"""Private pools of the virtual device's memory: torch.cuda.MemPool, and those of CUDA graphs.

torch names a pool by two numbers. The model of the allocator has one number for each; 0 is the default pool."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from modscope import _native
from modscope._virtual.device.memory import Memory

__all__ = ["Handle", "MemPool", "Pools"]

Handle = tuple[int, int]
"""torch's name of a pool."""
_ON_OOM, _NO_SPLIT = 1, 2  # ms_pool_flags


class Pools:
    """The private pools of one installation of virtual devices."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._numbers: dict[Handle, int] = {}
        self._of_graphs, self._of_users = itertools.count(1), itertools.count(1)
        memory.name_of_pool = self.name

    def new_handle(self) -> Handle:
        """torch.cuda.graph_pool_handle(), and the name of a MemPool."""
        return (0, next(self._of_users))

    def new_handle_of_graph(self) -> Handle:
        return (next(self._of_graphs), 0)

    def number(self, handle: Any) -> int:
        return self._numbers.setdefault((int(handle[0]), int(handle[1])), len(self._numbers) + 1)

    def name(self, number: int) -> Handle:
        return next((handle for handle, other in self._numbers.items() if other == number), (0, 0))

    def hold(self, device: int, handle: Any, flags: int = 0) -> None:
        _native.virtual_pool_hold(device, self.number(handle), flags)

    def release(self, device: int, handle: Any, empties: bool = False) -> None:
        _native.virtual_pool_release(device, self.number(handle), empties)

    def begin(self, device: int, handle: Any, is_of_stream: bool = False) -> None:
        """Whoever begins to allocate in a pool uses it, until it is released."""
        self.hold(device, handle)
        _native.virtual_pool_begin(device, self.number(handle), is_of_stream)

    def end(self, device: int, handle: Any) -> None:
        _native.virtual_pool_end(device, self.number(handle))

    def allocated(self, device: int, handle: Any) -> _State:
        return _State(_native.virtual_pool_state(device, self.number(handle)), self.number(handle))

    def is_allocated(self, device: int, handle: Any, addresses: set[int]) -> bool:
        """Whether exactly these addresses are allocated in the pool."""
        return {address for address, _, _ in self.allocated(device, handle).blocks} == set(addresses)

    def restore(self, device: int, state: _State, stale: list[int], live: list[int]) -> None:
        """The pool is again what it was. ``live``: storages that have memory of it from now on; raw_delete frees the
        rest."""
        self._memory.adopt(_native.virtual_pool_restore(device, state.pool, state.blocks, list(live)))

    def functions(self) -> dict[str, Any]:
        """What replaces functions of torch._C, by their names."""
        return {
            "_graph_pool_handle": self.new_handle,
            "_cuda_beginAllocateCurrentThreadToPool": lambda device, handle: self.begin(device, handle),
            "_cuda_beginAllocateToPool": lambda device, handle: self.begin(device, handle, True),
            "_cuda_endAllocateToPool": self.end,
            "_cuda_endAllocateCurrentStreamToPool": self.end,
            "_cuda_releasePool": self.release,
            "_cuda_getCheckpointState": self.allocated,
            "_cuda_setCheckpointPoolState": self.restore,
            "_cuda_checkPoolLiveAllocations": self.is_allocated,
            "_free_And_Remove_DeleterFn": lambda storage: _native.virtual_storage_drop(storage),
            "_has_Standard_Deleter": lambda storage: _native.virtual_storage_has_memory(storage),
            "_construct_storage_from_data_pointer": _storage_at,
            "_construct_CUDA_Tensor_From_Storage_And_Metadata": _tensor_of,
            "_tensors_data_ptrs_at_indices_equal": _are_at,
            **{name: _nothing for name in _OF_CUDA_BUILDS if not hasattr(torch._C, name)},
        }


_OF_CUDA_BUILDS = ("_set_storage_access_error_msg", "_set_storage_data_ptr_access_error_msg")
"""Functions of torch._C that need no GPU, and that a build without CUDA lacks: what a program is told that uses memory
of a graph which another one has overwritten."""


def _nothing(*args: Any) -> None:
    return None


class _State:
    """What was allocated in a pool at one moment."""

    def __init__(self, blocks: list[tuple[int, int, int]], pool: int) -> None:
        self.blocks = blocks
        self.pool = pool


def _storage_at(address: int, device: torch.device, bytes: int) -> torch.UntypedStorage:
    """A storage that does not own its memory."""
    before = _native.virtual_set_device(device.index or 0)
    try:
        return _native.virtual_empty_at(address, bytes, torch.uint8).untyped_storage()
    finally:
        _native.virtual_set_device(before)


def _tensor_of(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.no_grad():
        tensor = torch.empty((0,), dtype=metadata["dtype"], device=metadata["device"])
        return tensor.set_(storage, metadata.get("storage_offset", 0), metadata["size"], metadata["stride"])


def _are_at(tensors: Any, addresses: Any, indices: Any) -> bool:
    return all(
        not isinstance(tensors[i], torch.Tensor) or tensors[i].data_ptr() == addresses[i]
        for i in indices
        if addresses[i] is not None
    )


class MemPool:
    """Stands for torch.cuda.MemPool. An allocator of its own (``allocator``) is taken to be torch's."""

    _pools: Pools  # set by the device

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False, **_: Any) -> None:
        self.allocator = allocator
        self.device = int(_native.virtual_device())
        self._id = self._pools.new_handle()
        self._pools.hold(self.device, self._id, _ON_OOM * bool(use_on_oom) | _NO_SPLIT * bool(no_split))

    @property
    def id(self) -> Handle:
        return self._id

    def use_count(self) -> int:
        return 1

    def snapshot(self, include_traces: bool = True) -> Any:
        return torch.cuda.memory_snapshot(self.id)

    def __del__(self) -> None:
        if hasattr(self, "_id"):
            self._pools.release(self.device, self._id, empties=True)
