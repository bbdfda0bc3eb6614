"""The types of what is read from a capture: phases, steps, events, blocks, and the names of devices and modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from modscope._categories import Category, Kind
from modscope._lines_read import Place

_MOST_DEVICES = 64  # every device's number is below it


class CaptureError(ValueError):
    """A file that cannot be read as a capture, or something asked for that is not in it."""


class Phase(NamedTuple):
    """The time spent in a phase, and the blocks that were allocated in it."""

    time: float
    blocks: int
    bytes: int


class Step(NamedTuple):
    """A training step: from its forward to the next one's, evaluation between them included. 0 is before the first."""

    number: int
    begin: float
    end: float
    first: int
    """The moment at its beginning."""
    last: int
    """The moment at its end."""
    peaks: dict[str, int]
    """The most that each device held in it."""


class CollectiveGroup(NamedTuple):
    """The ranks that take part in a collective."""

    name: str
    """As torch calls it; "?" if it is not known."""
    backend: str
    """Such as "nccl"."""
    ranks: str
    """Such as "0-7", or "0-56:8" for every eighth one."""
    size: int
    """0: not known."""


class Collective(NamedTuple):
    """A collective of torch.distributed that the rank launched, or a message that it sent or received."""

    kind: str
    """ "all_gather", "reduce_scatter", "all_reduce", ..."""
    bytes: int
    """The larger of what the rank puts in and what it gets out."""
    group: CollectiveGroup
    time: float
    """When it began."""
    seconds: float | None
    """How long it took, which includes waiting for other ranks; None: not known."""
    step: int
    phase: str
    module: str
    event: int
    """It was launched after all events with lower numbers."""
    timing: str | None = None
    """What ``seconds`` is: "predicted"; "executed", by a thread of gloo's; "waited", from the launch until the program's wait
    for it returned, which is at least as long; "on_gpu"; None: not known."""


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
    """claim: whether it holds from now on only, and not since the block was allocated."""
    allocated: int | None
    """oom: what was allocated then."""
    reserved: int | None
    """oom: what was reserved then."""


class Block(NamedTuple):
    """A block of memory that is held."""

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
        """Those that the file names, by number."""
        self.modules = modules
        """By path."""

    def module(self, path: int) -> str:
        return self.modules[path] if path < len(self.modules) else "?"

    def device_number(self, name: str) -> int:
        """CaptureError if the capture has no such device."""
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
