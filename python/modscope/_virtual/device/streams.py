"""Streams and events of the virtual device. No work waits on a stream: what is launched on it counts as complete, and
an event has the time of the virtual clock at which it was recorded.

A stream matters for memory all the same: a block belongs to the stream that is current when it is allocated."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from modscope import _native
from modscope._virtual.device import graphs
from modscope._virtual.operators.operators import check_ordinal
from modscope._virtual.ranks import traffic
from modscope._virtual.time import times

__all__ = ["Event", "ExternalStream", "Stream"]

_CUDA = 1  # torch's number of the device type
_HIGHEST_PRIORITY = -3


class Stream(torch.Stream):
    """Stands for torch.cuda.Stream."""

    _priority: int
    _before: list[tuple[int, int]]
    """The device, and the stream of this one's, that were current before those ``with`` statements that are open."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        index: Any = kwargs.get("device_index", _native.virtual_device())
        if device is not None:
            index = torch.cuda._utils._get_device_index(device, optional=True)
            check_ordinal(index)
        number = kwargs.get("stream_id", kwargs.get("stream_ptr"))
        if number is None:
            number = _native.virtual_new_stream(priority)
        self: Stream = super().__new__(cls, stream_id=number, device_index=index, device_type=_CUDA)
        self._priority = max(min(priority, 0), _HIGHEST_PRIORITY)
        self._before = []
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def cuda_stream(self) -> int:
        return int(self.stream_id)

    @property
    def native_handle(self) -> int:
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        return self._priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, _HIGHEST_PRIORITY)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def wait_event(self, event: Any) -> None:
        if isinstance(event, Event):
            event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        traffic.pass_on(self.cuda_stream, stream.stream_id)

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        times.wait()

    def is_capturing(self) -> bool:
        return graphs.is_capturing(self.cuda_stream)

    def __enter__(self) -> Stream:
        index = self.device.index
        self._before.append((_native.virtual_set_device(index), _native.virtual_stream(index)))
        _native.virtual_set_stream(self.cuda_stream, index)
        return self

    def __exit__(self, *_: object) -> None:
        device, stream = self._before.pop()
        _native.virtual_set_stream(stream, self.device.index)
        _native.virtual_set_device(device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and (self.stream_id, self.device) == (other.stream_id, other.device)

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)


class ExternalStream(Stream):
    """Stands for torch.cuda.ExternalStream."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
        return super().__new__(cls, device, stream_ptr=stream_ptr, **kwargs)  # type: ignore[return-value]


class Event(torch.Event):
    """Stands for torch.cuda.Event."""

    _has_time: bool
    _recorded: float | None
    _waits: traffic.Ends | None
    """The collectives for which the stream waited on which this was recorded."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> Event:
        self: Event = super().__new__(cls, "cuda", enable_timing=enable_timing, blocking=blocking)
        self._has_time = enable_timing
        self._recorded = None
        self._waits = None
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def cuda_event(self) -> int:
        return 0 if self._recorded is None else id(self)

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        raise RuntimeError("an event of a virtual GPU cannot be shared between processes")

    def ipc_handle(self) -> bytes:
        raise RuntimeError("an event of a virtual GPU cannot be shared between processes")

    def record(self, stream: Any = None) -> None:
        self._recorded = times.now()
        self._waits = traffic.waits(_native.virtual_stream() if stream is None else stream.stream_id)

    def wait(self, stream: Any = None) -> None:
        traffic.wait_for(self._waits, None if stream is None else stream.stream_id)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Any) -> float:
        if not self._has_time or not getattr(end_event, "_has_time", False):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded is None or end_event._recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1e3 * float(end_event._recorded - self._recorded)

    def synchronize(self) -> None:
        times.wait()

    def __repr__(self) -> str:
        return (
            "<torch.cuda.Event uninitialized>" if self._recorded is None else f"<torch.cuda.Event {self.cuda_event:#x}>"
        )
