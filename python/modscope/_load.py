"""``modscope.load``: a capture as Python objects. Only names and types; modscope._capture reads. Needs no torch."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import IO, Any, NamedTuple

from modscope import _capture
from modscope._branch import Branch, grow
from modscope._peak import Peak
from modscope._categories import TOTAL, Category, Raw, Sums, sums_of

Progress = Callable[[float], object]

KINDS = ("add", "drop", "claim", "position", "thread", "step", "optimizer_step", "reserved", "oom")
_DEVICE_KINDS = frozenset(("add", "drop", "claim", "reserved", "oom"))
_MODULE_KINDS = frozenset(("add", "drop", "claim", "position", "oom"))
_BLOCK_KINDS = frozenset(("add", "drop", "claim"))
_BUSIEST = ("recompute", "backward", "optimizer", "forward")
_MOST = 2**63 - 1  # what the reader takes for a number
_DEVICES = 64  # a device's number is below


class CaptureError(ValueError):
    """A file that cannot be read as a capture, or something asked for that is not in it."""


class Phase(NamedTuple):
    """The time spent in a phase, and what was made in it."""

    time: float
    blocks: int
    bytes: int


class Step(NamedTuple):
    """A training step: from its forward to the next one's. 0 is before the first."""

    number: int
    begin: float
    end: float
    first: int
    """The moment at its beginning."""
    last: int
    """The moment at its end."""
    peaks: dict[str, int]
    """The most each device held in it."""


class Event(NamedTuple):
    """One thing that happened. What does not apply to its kind is None."""

    number: int
    kind: str
    time: float
    thread: int
    device: str | None
    bytes: int
    """The block's; what is reserved; what was asked for (oom); the step's number; the thread's id."""
    module: str | None
    category: Category | None
    phase: str | None
    slot: int | None
    """The block's, until it is dropped."""
    from_now_on: bool | None
    """claim: whether it is so from now on only."""
    allocated: int | None
    """oom: what was held then."""
    reserved: int | None
    """oom: what was reserved then."""


class Block(NamedTuple):
    """A block of memory that is held."""

    bytes: int
    device: str
    category: Category
    module: str
    phase: str
    """It was made in."""
    step: int
    """It was made in."""
    made_at: float
    """When it was made, in seconds since the capture began."""
    outside: bool
    """Whether it is not from torch's allocators."""
    slot: int


# ---- moments ----


def parse_moment(at: str) -> tuple[str, float | int]:
    """The word and the number of "peak", "oom", "step:N" or "time:T"; ValueError if it is none of them."""
    word, colon, number = at.partition(":")
    try:
        if word in ("peak", "oom") and not colon:
            return word, 0
        if word == "step" and number.isascii() and number.isdigit():
            return word, int(number) if len(number) < 19 else _MOST
        if word == "time" and (seconds := float(number)) >= 0:
            return word, seconds
    except ValueError:
        pass
    raise ValueError(f"A moment is peak, oom, step:N or time:SECONDS, not {at!r}")


class Snapshot:
    """Who held what at a moment."""

    def __init__(self, capture: Capture, raw: _capture.Snapshot) -> None:
        self._capture = capture
        self._raw = raw
        self.moment = raw.moment
        self.time = raw.time / 1e6
        self.step = raw.step
        self.optimizer_steps = raw.optimizer_steps
        """How many optimizer steps had ended."""
        self.is_lower_bound = raw.is_lower_bound
        """Whether an event before it was lost or is damaged: every figure is then "at least"."""
        self.count = raw.count
        """How many blocks are held."""

    def __repr__(self) -> str:
        return f"<Snapshot at {self.time:.3f} s, step {self.step}: {self.count} blocks>"

    def _repr_html_(self) -> str:
        from modscope import _notebook

        return _notebook.of_snapshot(self)

    @cached_property
    def totals(self) -> dict[str, Sums]:
        """Device to category to bytes, with "Total"."""
        return {device: sums_of(raw) for device, raw in zip(self._capture._names, self._raw.totals())}

    @cached_property
    def reserved(self) -> dict[str, int]:
        """What each device's allocator had reserved; 0 where it does not tell."""
        return dict(zip(self._capture._names, self._raw.reserved()))

    @cached_property
    def running(self) -> tuple[str, str]:
        """The phase and the innermost module of the thread that was busiest."""
        threads = {phase: path for _, _, phase, path in reversed(self._raw.threads())}
        for phase in _BUSIEST:
            if phase in threads:
                return phase, self._capture._module(threads[phase])
        return "idle", "Global"

    @cached_property
    def main_device(self) -> str:
        """The device that matters most: the one that holds most then, the CPU only where no other holds any."""
        return _main({device: sums[TOTAL] for device, sums in self.totals.items()})

    def tree(self, device: str | None = None) -> tuple[Branch, ...]:
        """The modules that hold something on a device (by default the main one), largest first. "Global" is
        what was made outside any module."""
        number = self._capture._device(self.main_device if device is None else device)
        return grow([(self._capture._module(path), raw) for on, path, raw in self._modules if on == number])

    @cached_property
    def _modules(self) -> list[tuple[int, int, Raw]]:
        return self._raw.modules()

    def by_module(self, children: bool = False) -> dict[str, dict[str, Sums]]:
        """Device to module to category to bytes, with "Total": a module's own, or its subtree's."""
        found: dict[str, dict[str, Sums]] = {}

        def note(modules: dict[str, Sums], branch: Branch) -> None:
            if children or branch.own[TOTAL]:
                modules[branch.fqn] = branch.subtree if children else branch.own
            for child in branch.children:
                note(modules, child)

        for device in self.totals:
            modules: dict[str, Sums] = {}
            for branch in self.tree(device):
                note(modules, branch)
            if modules:
                found[device] = modules
        return found

    def blocks(self, most: int | None = None, device: str | None = None) -> Iterator[Block]:
        """What is held, largest first, oldest first among equals; at most so many."""
        number = None if device is None else self._capture._device(device)
        capture = self._capture
        for size, on, category, path, phase, step, born, outside, slot in self._raw.blocks(most, number):
            name = capture._module(path)
            yield Block(size, capture._names[on], Category(category), name, phase, step, born / 1e6, outside, slot)


def _main(held: Mapping[str, int]) -> str:
    return max(held, key=lambda device: (held[device] > 0, device != "cpu", held[device]), default="cpu")


# ---- a capture ----


class Capture:
    """What happened to memory during a run. Read when asked for; times are seconds since it began."""

    def __init__(self, reader: _capture.Reader, progress: Progress | None = None) -> None:
        self._reader = reader
        self._progress = progress
        self._paths = reader.paths
        named = reader.devices
        self._names = _unlike([*named, *(f"device {i}" for i in range(len(named), _DEVICES))])
        self.devices = self._names[: len(named)]
        """Their names, by number."""
        self.info: Mapping[str, str] = reader.info
        """What was said of the run: "program", "arguments", "torch"... None of it must be there."""
        self.end: Mapping[str, str] | None = reader.end
        """How it ended: "how", "status", "error". None: it was killed, or still runs."""
        self.bytes = reader.bytes
        """Of the file."""

    def __repr__(self) -> str:
        return f"<Capture of {self.info.get('program', 'a program')!r}: {self.count} events, {self.duration:.3f} s>"

    def _repr_html_(self) -> str:
        from modscope import _notebook

        return _notebook.of_capture(self)

    @property
    def count(self) -> int:
        """The last moment: how many events there are."""
        return self._reader.event_count

    @property
    def lost(self) -> int:
        """Events for which the writer had no room."""
        return self._reader.lost

    @property
    def damaged(self) -> int:
        """Bytes of the file that cannot be read, so far as it has been."""
        return self._reader.damaged

    @property
    def duration(self) -> float:
        """Until the last that is known; of a run that was killed it is known once everything was read."""
        return self._reader.duration / 1e6

    def _module(self, path: int) -> str:
        return self._paths[path][0] if path < len(self._paths) else "?"

    def _device_name(self, number: int) -> str:
        """Those without a name are known once they are met."""
        if number >= len(self.devices):
            self.devices = _unlike(self._reader.devices)
        return self.devices[number] if number < len(self.devices) else f"device {number}"

    def _device(self, name: str) -> int:
        try:
            return self._names.index(name)
        except ValueError:
            raise CaptureError(f"The capture has no device {name!r}, but {', '.join(self.devices) or 'none'}") from None

    @cached_property
    def _survey(self) -> dict[str, Any]:
        return self._reader.survey(self._progress)

    @cached_property
    def is_lower_bound(self) -> bool:
        """Whether something was lost or damaged: figures are then "at least"."""
        return bool(self._survey["is_lower_bound"])

    @cached_property
    def peaks(self) -> dict[str, Peak]:
        """When each device held most; only those that ever held something."""
        found = {}
        for device, raw in zip(self._names, self._survey["peaks"]):
            if raw:
                size, moment, time, step, phase, path, reserved = raw
                module = self._module(path)
                found[device] = Peak(
                    size, step, phase, module, moment=moment, time=time / 1e6, reserved=reserved
                )
        return found

    @cached_property
    def reserved(self) -> dict[str, int]:
        """The most each device's allocator had reserved; 0 where it does not tell."""
        return dict(zip(self._names, self._survey["reserved"]))

    @cached_property
    def phases(self) -> dict[str, Phase]:
        """idle, forward, recompute, backward, optimizer."""
        return {word: Phase(time / 1e6, blocks, size) for word, (time, blocks, size) in self._survey["phases"].items()}

    @property
    def last_step(self) -> int:
        """The number of the last step that began; 0 if none did."""
        return int(self._survey["steps"])

    @property
    def optimizer_steps(self) -> int:
        """How many optimizer steps ended."""
        return int(self._survey["optimizer_steps"])

    @property
    def oom_count(self) -> int:
        """How many allocations failed."""
        return int(self._survey["oom_count"])

    @cached_property
    def last_oom(self) -> Event | None:
        """The last allocation that failed."""
        after = self._survey["last_oom"]
        return next(self.events("oom", first=after - 1), None) if after else None

    @cached_property
    def main_device(self) -> str:
        """The device that matters most: the one with the highest peak, the CPU only if there is no other."""
        return _main({device: peak.bytes for device, peak in self.peaks.items()})

    def steps(self) -> Iterator[Step]:
        """The steps, one by one."""
        start = self._reader.snapshot(0)
        number, begin, first = start.step, start.time / 1e6, start.moment
        for event in self.events("step"):
            yield self._step(number, begin, event.time, first, event.number)
            number, begin, first = event.bytes, event.time, event.number
        yield self._step(number, begin, max(begin, self.duration), first, self.count)

    def _surveyed_duration(self) -> float:
        self._survey  # reads to the end
        return self.duration

    def _step(self, number: int, begin: float, end: float, first: int, last: int) -> Step:
        return Step(number, begin, end, first, last, dict(zip(self._names, self._reader.peaks(first, last))))

    def events(self, *kinds: str, first: int = 0, last: int | None = None) -> Iterator[Event]:
        """What happened, one by one: of these kinds, or all, from moment ``first`` to moment ``last``."""
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"No kind of event: {unknown[0]!r}. There are: {', '.join(KINDS)}")
        mask = sum(1 << KINDS.index(kind) for kind in {*(kinds or KINDS)})
        return map(self._event, self._reader.events(mask, first, last))

    def _event(self, raw: tuple[Any, ...]) -> Event:
        number, kind, time, thread, device, size, path, category, phase, slot, extra = raw
        allocated, reserved = extra if kind == "oom" else (None, None)
        return Event(
            number,
            kind,
            time / 1e6,
            thread,
            self._names[device] if kind in _DEVICE_KINDS else None,
            size,
            self._module(path) if kind in _MODULE_KINDS else None,
            Category(category) if category else None,
            phase,
            slot if kind in _BLOCK_KINDS else None,
            extra if kind == "claim" else None,
            allocated,
            reserved,
        )

    def moment(self, at: str | int, device: str | None = None) -> int:
        """The number of the moment "peak" (of a device, by default the main one), "oom" (the last), "step:N" (its
        end), "time:SECONDS", or of that number. CaptureError if it is not there."""
        if isinstance(at, int):
            if not 0 <= at <= self.count:
                raise CaptureError(f"There is no moment {at}: the capture has 0 to {self.count}")
            return at
        word, number = parse_moment(at)
        if word == "peak":
            return self._peak(device)
        if word == "oom":
            return self._oom()
        return self._at_step(int(number)) if word == "step" else self._at_time(number)

    def _peak(self, device: str | None) -> int:
        if not self.peaks:
            raise CaptureError("There is no peak: the capture has no memory in it")
        name = self.main_device if device is None else device
        self._device(name)
        if name not in self.peaks:
            raise CaptureError(f"There is no peak on {name}: it never held anything")
        return self.peaks[name].moment

    def _oom(self) -> int:
        if not self.oom_count:
            raise CaptureError("There is no moment oom: no allocation failed in this capture")
        return int(self._survey["last_oom"])

    def _at_step(self, step: int) -> int:
        try:
            return self._reader.moment_at_step(step)
        except LookupError:
            raise CaptureError(f"There is no step {step}: the last is {self.last_step}") from None

    def _at_time(self, seconds: float) -> int:
        if seconds > self.duration and seconds > self._surveyed_duration():
            raise CaptureError(f"There is no moment at {seconds:g} s: the capture ends at {self.duration:.6f} s")
        return self._reader.moment_at_time(round(seconds * 1e6))

    def snapshot(self, at: str | int = "peak", device: str | None = None) -> Snapshot:
        """Who held what at a moment, as ``moment`` takes it."""
        return Snapshot(self, self._reader.snapshot(self.moment(at, device)))


def _unlike(names: list[str]) -> list[str]:
    """With a number after a name that was there before."""
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name if name not in seen else f"{name} ({i})"] = i
    return list(seen)


def _open(path: str | os.PathLike[str]) -> int:
    # A pipe without a writer must not hang us.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise CaptureError(f"{os.fspath(path)} is not a file, and cannot be a capture")


def _dup(file: IO[bytes]) -> int:
    try:
        return os.dup(file.fileno())
    except (AttributeError, io.UnsupportedOperation):
        raise TypeError("load takes a path, or a file that is open on disk") from None


def load(file: str | os.PathLike[str] | IO[bytes], progress: Progress | None = None) -> Capture:
    """Read a capture: a path, or a file that is open. ``progress`` is told the part done, 0 to 1, in long work.

    OSError if the file cannot be read, CaptureError if it is no capture, or of a newer version.
    """
    if isinstance(file, str | os.PathLike):
        name, fd = os.fspath(file), _open(file)
    else:
        name, fd = getattr(file, "name", "the file"), _dup(file)
    try:
        return Capture(_capture.Reader(fd), progress)
    except _capture.FormatError as error:
        raise CaptureError(f"{name}: {error}") from None
    finally:
        os.close(fd)
