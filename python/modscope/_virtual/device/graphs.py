"""CUDA graphs of the virtual device. What is captured runs once, in a private pool, and the device takes no time for
it; each replay takes that time, and allocates nothing."""

from __future__ import annotations

import types
from typing import Any

import torch
from modscope import _native
from modscope._virtual.device.pools import Handle, Pools
from modscope._virtual.time import times

__all__ = ["graph_class", "has_captured", "is_capturing"]

_capturing: list[_Graph] = []
_captured = False


def has_captured() -> bool:
    """Whether any graph was captured in this process."""
    return _captured


def is_capturing(stream: int | None = None) -> bool:
    """Whether a stream, by default the current one, is being captured."""
    number = _native.virtual_stream() if stream is None else stream
    return any(graph._stream == number for graph in _capturing)


class _Graph:
    """Stands for torch._C._CUDAGraph."""

    _pools: Pools  # set by the device
    _stream: int | None
    _has_graph_exec = False

    def __new__(cls, keep_graph: bool = False) -> Any:
        graph = object.__new__(cls)
        graph._held, graph._of_pool, graph._stream, graph._work = [], None, None, None
        return graph

    def __init__(self, keep_graph: bool = False) -> None:
        pass

    _held: list[tuple[int, Handle]]
    _of_pool: Handle | None
    _work: times.Work | None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if _native.virtual_stream() == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        self._of_pool = self._pools.new_handle_of_graph() if pool is None else (int(pool[0]), int(pool[1]))
        self._held.append((_native.virtual_device(), self._of_pool))
        self._pools.begin(*self._held[-1], is_of_stream=True)
        self._stream = _native.virtual_stream()
        self._work = times.begin_capture()
        _capturing.append(self)

    def capture_end_pre(self) -> None:
        global _captured
        if self not in _capturing:
            raise RuntimeError("capture_end was called, but nothing is being captured")
        _captured = True
        _capturing.remove(self)
        times.end_capture()
        self._pools.end(*self._held[-1])
        self._stream = None

    def capture_end_post(self) -> None:
        pass

    def capture_end(self) -> None:
        self.capture_end_pre()

    def instantiate(self) -> None:
        self._has_graph_exec = True

    def replay(self) -> None:
        if self._work is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        times.replay(self._work)

    def reset(self) -> None:
        if self in _capturing:
            self.capture_end_pre()
        for device, handle in self._held:
            self._pools.release(device, handle)
        self._held.clear()
        self._work = None
        self._has_graph_exec = False

    def pool(self) -> Any:
        if self._of_pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._of_pool

    def pools(self) -> list[Handle]:
        return list(dict.fromkeys(handle for _, handle in self._held))

    def _retain_pool(self, handle: Any) -> None:
        self._held.append((_native.virtual_device(), handle))
        self._pools.hold(*self._held[-1])

    @staticmethod
    def get_currently_capturing_graph() -> Any:
        if not _capturing:
            raise RuntimeError("no graph is being captured")
        return _capturing[-1]

    def enable_debug_mode(self) -> None:
        pass

    def register_generator_state(self, generator: Any) -> None:
        pass

    def raw_cuda_graph(self) -> int:
        raise RuntimeError("a graph of a virtual GPU has no cudaGraph_t")

    def debug_dump(self, *args: Any, **kwargs: Any) -> None:
        self.raw_cuda_graph()

    raw_cuda_graph_exec = get_graph_data = raw_cuda_graph

    def __del__(self) -> None:
        _Graph.reset(self)


def graph_class(pools: Pools) -> Any:
    """The class that stands for torch.cuda.CUDAGraph: torch's own methods, such as its hooks, above ours."""
    base = type("_CUDAGraph", (_Graph,), {"_pools": pools, "__module__": "torch.cuda.graphs"})
    own: Any = torch.cuda.graphs.CUDAGraph
    cell = types.CellType()
    members = {
        name: _with_class(member, cell)
        for name, member in vars(own).items()
        if name not in ("__dict__", "__weakref__", "__del__", "raw_cuda_graph", "raw_cuda_graph_exec", "get_graph_data")
    }
    cell.cell_contents = made = type("CUDAGraph", (base,), members)
    return made


def _with_class(member: Any, cell: types.CellType) -> Any:
    """A function of a class as one of another class: what it calls by super() is of that one."""
    if isinstance(member, staticmethod):
        return staticmethod(_with_class(member.__func__, cell))
    if not isinstance(member, types.FunctionType) or "__class__" not in member.__code__.co_freevars:
        return member
    closure = tuple(
        cell if name == "__class__" else of
        for name, of in zip(member.__code__.co_freevars, member.__closure__ or (), strict=True)
    )
    copy = types.FunctionType(member.__code__, member.__globals__, member.__name__, member.__defaults__, closure)
    copy.__kwdefaults__ = member.__kwdefaults__
    return copy
