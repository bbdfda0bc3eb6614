"""Find the functions of torch's device guard and CUDA hooks that need an answer of their own.

They are virtual functions of C++ classes, in an order that no symbol tells. Each is found by a call that reaches it
while all of them are recorded (src/torch/virtual/answers.c).
"""

from __future__ import annotations

import torch
from modscope import _native

__all__ = ["forget_init_slot", "init_slot", "learn"]

_MARK = 0x5EED  # the number of a stream, by which a call that gets it is recognized
_FIRST_STREAM = 1000  # entry n of the guard answers with the stream 1000 + n
_LAST_INDEX = 5  # of a device, by which calls that get it are recognized
_FUNCTIONS = (
    "getDevice",
    "exchangeDevice",
    "setDevice",
    "uncheckedSetDevice",
    "deviceCount",
    "getStream",
    "getDefaultStream",
    "getStreamFromGlobalPool",
    "getNewStream",
    "exchangeStream",
    "elapsedTime",
    "isStreamCapturing",
    "getNewGenerator",
    "getPinnedMemoryAllocator",
    "isPinnedPtr",
)

_OF_SEVERAL_DEVICES = ("getDevice", "exchangeDevice", "setDevice", "uncheckedSetDevice", "deviceCount")
"""One device needs none of them: it is always the current one."""

_learned: dict[str, int] = {}
_init_slot: int | None = None


def init_slot() -> int | None:
    """The entry of the hooks that initializes CUDA, if torch called it while calls were recorded: it does so once in a
    process. None if it was not called, or CUDA has been initialized since."""
    return _init_slot


def forget_init_slot() -> None:
    """Called when CUDA was initialized for the real GPU."""
    global _init_slot
    _init_slot = None


def _stream_of(stream: torch.Stream) -> int:
    return int(stream.stream_id) - _FIRST_STREAM


def _probe_devices(found: dict[str, int]) -> None:
    functions = {
        "setDevice": "_accelerator_setDeviceIndex",
        "exchangeDevice": "_accelerator_exchangeDevice",
        "uncheckedSetDevice": "_accelerator_maybeExchangeDevice",
    }
    for name, function in functions.items():
        if hasattr(torch._C, function):
            _native.virtual_probed()
            getattr(torch._C, function)(_LAST_INDEX)
            calls = _native.virtual_probed()
            got = [slot for of_hooks, slot, device, _ in calls if not of_hooks and device == _LAST_INDEX << 8 | 1]
            found.update({name: slot for slot in got[:1]})  # a call without arguments seems to have the latest ones
    _native.virtual_probed()
    torch._C._accelerator_getDeviceIndex()
    found["getDevice"] = _last_of_guard()


def _probe_streams(found: dict[str, int]) -> None:
    found["getStream"] = _stream_of(torch.accelerator.current_stream())
    found["getNewStream"] = _stream_of(torch.Stream(device="cuda"))
    _native.virtual_probed()
    torch.accelerator.set_stream(torch.Stream(stream_id=_MARK, device_index=0, device_type=1))
    found.update(
        {
            "exchangeStream": slot
            for of_hooks, slot, _, mark in _native.virtual_probed()
            if not of_hooks and mark == _MARK
        }
    )


def _infer_from_neighbours(found: dict[str, int]) -> None:
    """Functions that no call from Python reaches: torch declares them right after others that are known."""
    if found["getNewStream"] == found["getStream"] + 3:
        found["getDefaultStream"] = found["getStream"] + 1
        found["getStreamFromGlobalPool"] = found["getStream"] + 2
    event = torch.Event("cuda")
    event.record()
    _native.virtual_probed()
    event.query()
    found["deviceCount"] = _last_of_guard() + 1  # a backward verifies it (device.py)


def _last_of_guard() -> int:
    """The entry of the guard that was called last."""
    return next((slot for of_hooks, slot, _, _ in reversed(_native.virtual_probed()) if not of_hooks), -1)


def _probe_capturing(found: dict[str, int]) -> None:
    stream = torch.accelerator.current_stream()
    if hasattr(stream, "is_capturing"):
        _native.virtual_probed()
        stream.is_capturing()
        found["isStreamCapturing"] = _last_of_guard()


def _probe_events(found: dict[str, int]) -> None:
    begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
    begin.record()
    end.record()
    _native.virtual_probed()
    begin.elapsed_time(end)
    found["elapsedTime"] = _last_of_guard()


def _probe_generators(found: dict[str, int]) -> None:
    torch.Generator(device="cuda")  # the first use may initialize more
    _native.virtual_probed()
    torch.Generator(device="cuda")
    found.update({"getNewGenerator": slot for of_hooks, slot, _, _ in _native.virtual_probed()[-1:] if of_hooks})


def _hook_calls() -> list[tuple[int, int]]:
    return [(slot, argument) for of_hooks, slot, argument, _ in _native.virtual_probed() if of_hooks]


def _probe_pinned_memory(found: dict[str, int]) -> None:
    global _init_slot
    tensor = torch.zeros(1, device="cpu")
    _native.virtual_probed()
    tensor.pin_memory()
    first = _hook_calls()
    tensor.pin_memory()
    second = _hook_calls()
    slots = [slot for slot, _ in second]
    if -1 in slots[1:]:  # the pinned allocator was used: the hooks have just returned it
        found["getPinnedMemoryAllocator"] = slots[slots.index(-1) - 1]
    found.update({"isPinnedPtr": slot for slot, argument in second if argument == tensor.data_ptr()})
    once = [slot for slot, _ in first if slot not in slots]
    if once:
        _init_slot = once[0]


def learn(devices: int = 1) -> str | None:
    """Find the functions, and let them answer for so many devices. None, or which were not found."""
    if not _learned:
        why = _native.virtual_probe(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr())
        if why is not None:
            return why
        found: dict[str, int] = {}
        try:
            for probe in (
                _probe_generators,
                _probe_devices,
                _probe_streams,
                _infer_from_neighbours,
                _probe_capturing,
                _probe_events,
                _probe_pinned_memory,
            ):
                probe(found)
        finally:
            _native.virtual_answer(found)
        missing = [name for name in _FUNCTIONS if found.get(name, -1) < 0]
        if not hasattr(torch.Stream, "is_capturing"):
            missing.remove("isStreamCapturing")
        if devices == 1:
            missing = [name for name in missing if name not in _OF_SEVERAL_DEVICES]
        if missing:
            return f"these functions were not found in its tables: {', '.join(missing)}"
        _learned.update(found)
    _native.virtual_answer(_learned)
    return None
