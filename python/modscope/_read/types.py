"""The types of what is read from a capture: phases, steps, peaks, events, blocks, names of devices and modules."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from modscope import _capture
from modscope._read.categories import Category, Kind
from modscope._read.lines import UNKNOWN, Place

_MOST_DEVICES = 64  # every device's number is below it


class CaptureError(ValueError):
    """A file that cannot be read as a capture, or something asked for that is not in it."""


class Refused(Exception):
    """A command cannot do what it was asked: a sentence for the user, and the exit status."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.status = status


def plain(value: Any) -> Any:
    """The value as JSON has it, with dicts, lists and plain values: a NamedTuple becomes a dict of its fields."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, enum.StrEnum) else value


def _as_dict(fields: NamedTuple) -> dict[str, Any]:
    return {key: plain(value) for key, value in fields._asdict().items()}


class Phase(NamedTuple):
    """The time spent in a phase, and the blocks that were allocated in it."""

    time: float
    blocks: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return _as_dict(self)


class Step(NamedTuple):
    """A training step: from its forward to the next one's, evaluation between them included. 0 is before the first."""

    number: int
    begin: float
    end: float
    first: int
    """The number of the moment at its beginning."""
    last: int
    """The number of the moment at its end."""
    peaks: dict[str, int]
    """The most that each device held in it."""

    def to_dict(self) -> dict[str, Any]:
        return _as_dict(self)


class StepTimes(NamedTuple):
    """When a training step began and ended, in seconds since the capture began."""

    number: int
    begin: float
    end: float | None
    """The end of its last optimizer step; None: it has none, as the run ended in it, or does not train."""
    optimizer_steps: int
    """How many optimizer steps of the run had ended by then."""

    def to_dict(self) -> dict[str, Any]:
        return _as_dict(self)


class CollectiveGroup(NamedTuple):
    """The ranks that take part in a collective."""

    name: str
    """The name that torch gave to the group; "?" if it is not known."""
    backend: str
    """The backend of the group, such as "nccl"."""
    ranks: str
    """The ranks of the group, such as "0-7", or "0-56:8" for every eighth one."""
    size: int
    """How many ranks the group has; 0 if that is not known."""

    def to_dict(self) -> dict[str, Any]:
        return _as_dict(self)


class Collective(NamedTuple):
    """A collective of torch.distributed that the rank launched, or a message that it sent or received."""

    kind: str
    """ "all_gather", "reduce_scatter", "all_reduce", ..."""
    bytes: int
    """The larger of what the rank puts in and what it gets out; of reduce_scatter_tensor_coalesced what it gets out."""
    group: CollectiveGroup
    time: float
    """When it began, in seconds since the capture began."""
    seconds: float | None
    """How long it took, which includes waiting for other ranks; None: not known."""
    step: int
    phase: str
    module: str
    event: int
    """It was launched after all events with lower numbers."""
    timing: str | None = None
    """What ``seconds`` is: "predicted"; "executed", by a thread of gloo's; "waited", from the launch until the
    program's wait for it returned, which is at least as long; "on_gpu"; None: not known."""

    def to_dict(self) -> dict[str, Any]:
        return _as_dict(self)


class Call(NamedTuple):
    """A forward of a module, as a replay knows it. Events are those of the stream."""

    number: int
    path: int
    parent: int | None
    begin: int
    end: int | None
    backward: int | None
    """The event that begins its backward; None: it keeps nothing for it."""
    step: int
    kept: int
    """Bytes for backward."""
    output: int
    """Other bytes that outlive it."""
    microseconds: int
    """Of the program, which runs ahead of a GPU."""
    recompute_nanoseconds: int
    """Of the part of its forward that a checkpoint runs again: up to the last tensor that autograd saves in it."""
    gpu_nanoseconds: int
    """0: not known."""
    stands_for: int
    """So many calls of equal steps, by whose means the times are; 1: itself."""

    @property
    def host_seconds(self) -> float:
        return self.microseconds / 1e6

    @property
    def seconds(self) -> float:
        """The time that the GPU noted, or else the program."""
        return self.gpu_nanoseconds / 1e9 or self.host_seconds

    @property
    def recompute_seconds(self) -> float:
        return self.recompute_nanoseconds // 1000 / 1e6


def calls_of(stream: _capture.Stream, device: int) -> list[Call]:
    """The calls of a stream, with what they keep on a device."""
    return [Call(number, *row) for number, row in enumerate(stream.calls(device))]


class Event(NamedTuple):
    """One thing that happened. What does not apply to its kind is None."""

    number: int
    kind: str
    time: float
    thread: int
    device: str | None
    bytes: int
    """The block's size; what is reserved; what was requested (oom); the step's number; the thread's id."""
    module: str | None
    category: Category | None
    phase: str | None
    slot: int | None
    """The block's number until it is dropped."""
    from_now_on: bool | None
    """Whether a claim holds from now on only, and not since the block was allocated (claim)."""
    allocated: int | None
    """What was allocated when the allocation failed (oom)."""
    reserved: int | None
    """What was reserved when the allocation failed (oom)."""

    def to_dict(self) -> dict[str, Any]:
        return _as_dict(self)


class Block(NamedTuple):
    """A block of memory that is held at a moment."""

    bytes: int
    device: str
    category: Category
    module: str
    phase: str
    """The phase in which it was allocated."""
    step: int
    """The step in which it was allocated."""
    made_at: float
    """When it was allocated, in seconds since the capture began."""
    outside: bool
    """Whether it did not come from torch's allocators."""
    slot: int
    kind: Kind | None = None
    """What FSDP2 or DDP holds it for, within its category; None for most blocks."""
    place: Place | None = None
    """The line and the operator that made it; None where neither is known."""

    def to_dict(self) -> dict[str, Any]:
        """With the keys of the place instead of it, as ``modscope blocks --json`` has them."""
        found = {**_as_dict(self._replace(place=None)), **(self.place or UNKNOWN).to_dict()}
        del found["place"]
        return found


def find_main_device(held: Mapping[str, int]) -> str:
    """The accelerator that holds most, or else the CPU."""
    return max(held, key=lambda device: (held[device] > 0, device != "cpu", held[device]), default="cpu")


class Names:
    """The names of a capture's devices and modules, by the numbers that its file uses for them."""

    def __init__(self, devices: Sequence[str], modules: Sequence[str]) -> None:
        unnamed = (f"device {i}" for i in range(len(devices), _MOST_DEVICES))
        self.devices = _make_distinct([*devices, *unnamed])
        """All devices that may occur, by number; those that the file does not name are called "device N"."""
        self.named_devices = self.devices[: len(devices)]
        """The devices that the file names, by number."""
        self.modules = modules
        """The names of the modules, by the numbers of their paths."""

    def module(self, path: int) -> str:
        return self.modules[path] if path < len(self.modules) else "?"

    def device_number(self, name: str) -> int:
        """The number of a device in the file. CaptureError if the capture has no such device."""
        try:
            return self.devices.index(name)
        except ValueError:
            known = ", ".join(self.named_devices) or "none"
            raise CaptureError(f"The capture has no device {name!r}. It has: {known}") from None


def _make_distinct(names: list[str]) -> list[str]:
    """The names, each with its number in parentheses after it if an earlier device has the same name."""
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name if name not in seen else f"{name} ({i})"] = i
    return list(seen)


class Peak(NamedTuple):
    """When a device held the most bytes. Only a ``MemTracker`` knows the owner; only a capture knows the moment, the
    time and what was reserved."""

    bytes: int
    step: int
    """The training step; 0 is before the first."""
    phase: str
    """"idle", "forward", "recompute", "backward", "optimizer" or "evaluation"."""
    module: str
    """The innermost module that was running then, or "Global"."""
    owner: str | None = None
    """The module that owns the block whose allocation reached the peak; None in a capture."""
    moment: int = 0
    """How many events of the capture came before it; 0 in a MemTracker."""
    time: float = 0.0
    """Seconds since the capture began; 0.0 in a MemTracker."""
    reserved: int = 0
    """What the device's allocator had reserved then; 0 where that is not known."""

    def to_dict(self) -> dict[str, Any]:
        return _as_dict(self)
