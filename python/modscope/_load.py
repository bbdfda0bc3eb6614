"""``modscope.load``: a capture as Python objects. modscope._capture, in C, reads the file. Needs no torch."""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import IO, Any

from modscope import _capture
from modscope._branch import Branch, grow, sum_by_name
from modscope._capture_types import (
    Block,
    CaptureError,
    Collective,
    CollectiveGroup,
    Event,
    Names,
    Phase,
    Step,
    find_main_device,
)
from modscope._cells import KEY as CELLS
from modscope._categories import CATEGORIES, TOTAL, Category, Kind, Raw, Sums, kinds_of, sums_of
from modscope._lines_read import Place, Places
from modscope._peak import Peak
from modscope._text import counted, natural_key

__all__ = ["Block", "Capture", "CaptureError", "Event", "Phase", "Snapshot", "Step", "load", "parse_moment"]

Progress = Callable[[float], object]
_EncodedPlace = tuple[bytes | None, int, bytes | None, bytes | None]  # file, line, function, operator

KINDS = ("add", "drop", "claim", "position", "thread", "step", "optimizer_step", "reserved", "oom")
_DEVICE_KINDS = frozenset(("add", "drop", "claim", "reserved", "oom"))
_MODULE_KINDS = frozenset(("add", "drop", "claim", "position", "oom"))
_BLOCK_KINDS = frozenset(("add", "drop", "claim"))
_BUSIEST = ("recompute", "backward", "optimizer", "forward", "evaluation")
_SHORTEST = 16  # bytes; a shorter file is not even the beginning of a capture
_LARGEST_NUMBER = 2**63 - 1  # that the reader takes


# ---- moments ----


def parse_moment(at: str) -> tuple[str, float | int]:
    """The word and the number of "peak", "oom", "step:N" or "time:T"; ValueError if it is none of them."""
    word, colon, number = at.partition(":")
    try:
        if word in ("peak", "oom") and not colon:
            return word, 0
        if word == "step" and number.isascii() and number.isdigit():
            return word, int(number) if len(number) < 19 else _LARGEST_NUMBER
        if word == "time" and (seconds := float(number)) >= 0:
            return word, seconds
    except ValueError:
        pass
    raise ValueError(f"There is no moment {at!r}: use peak, oom, step:N or time:SECONDS")


class Snapshot:
    """The bytes that were held at a moment, by device, module and category."""

    def __init__(self, names: Names, raw: _capture.Snapshot, places: Places | None = None) -> None:
        self._names = names
        self._places = places or Places([])
        self._raw = raw
        self.moment = raw.moment
        self.time = raw.time / 1e6
        self.step = raw.step
        self.optimizer_steps = raw.optimizer_steps
        """How many optimizer steps had ended."""
        self.is_lower_bound = raw.is_lower_bound
        """Whether an event before it was lost or is damaged, or of the peak whether any event was: every figure is then
        "at least"."""
        self.block_count = raw.count
        """How many blocks are held, on all devices."""

    def __repr__(self) -> str:
        return f"<Snapshot at {self.time:.3f} s, step {self.step}: {self.block_count} blocks>"

    def _repr_html_(self) -> str:
        from modscope import _notebook

        return _notebook.of_snapshot(self)

    @cached_property
    def totals(self) -> dict[str, Sums]:
        """Device to category to bytes, with "Total"."""
        return {device: sums_of(raw) for device, raw in zip(self._names.devices, self._raw.totals())}

    @cached_property
    def kinds(self) -> dict[str, Sums]:
        """Device to kind to bytes: what FSDP2 or DDP holds, within the categories. What holds nothing is left out."""
        found = {device: kinds_of(raw) for device, raw in zip(self._names.devices, self._raw.kinds())}
        return {device: kinds for device, kinds in found.items() if kinds}

    def kinds_by_module(self) -> dict[str, dict[str, Sums]]:
        """Device to module to kind to bytes: a module's own."""
        found: dict[str, dict[str, Sums]] = {}
        for number, path, raw in self._raw.module_kinds():
            kinds = found.setdefault(self._names.devices[number], {}).setdefault(self._names.module(path), {})
            for kind, value in kinds_of(raw).items():
                kinds[kind] = kinds.get(kind, 0) + value
        return found

    @cached_property
    def reserved(self) -> dict[str, int]:
        """What each device's allocator had reserved; 0 where it does not report that."""
        return dict(zip(self._names.devices, self._raw.reserved()))

    @cached_property
    def outside(self) -> dict[str, int]:
        """The part of each device's bytes that is not from torch's allocators: numpy, mmap, shared memory."""
        return dict(zip(self._names.devices, self._raw.outside()))

    @cached_property
    def running(self) -> tuple[str, str]:
        """The phase and the innermost module of the busiest thread."""
        threads = {phase: path for _, _, phase, path in reversed(self._raw.threads())}
        for phase in _BUSIEST:
            if phase in threads:
                return phase, self._names.module(threads[phase])
        return "idle", "Global"

    @cached_property
    def main_device(self) -> str:
        """The accelerator that holds most at this moment, or else the CPU."""
        return find_main_device({device: sums[TOTAL] for device, sums in self.totals.items()})

    def tree(self, device: str | None = None) -> tuple[Branch, ...]:
        """The modules that hold something on a device (by default the main one), largest first. "Global" owns
        what was allocated outside any module."""
        number = self._names.device_number(self.main_device if device is None else device)
        return grow(self._modules.get(number, ()))

    @cached_property
    def _modules(self) -> dict[int, list[tuple[str, Raw]]]:
        """By the device's number, the modules that hold something on it."""
        found: dict[int, list[tuple[str, Raw]]] = {}
        for device, path, raw in self._raw.modules():
            found.setdefault(device, []).append((self._names.module(path), raw))
        return found

    def by_module(self, children: bool = False) -> dict[str, dict[str, Sums]]:
        """Device to module to category to bytes, with "Total": a module's own, or with ``children`` its subtree's.
        Largest first; with ``children`` a module is followed by those below it."""
        found: dict[str, dict[str, Sums]] = {}
        for number in sorted(self._modules):
            device = self._names.devices[number]
            modules = self._subtrees(device) if children else self._owners(number)
            if modules:
                found[device] = modules
        return found

    def own_bytes(self, device: str) -> dict[str, Raw]:
        """Module to its own bytes on a device by category, in the order of ``CATEGORIES``. In no particular order."""
        return sum_by_name(self._modules.get(self._names.device_number(device), ()))

    def _owners(self, number: int) -> dict[str, Sums]:
        owned = {fqn: sums_of(raw) for fqn, raw in sum_by_name(self._modules[number]).items() if any(raw)}
        return dict(sorted(owned.items(), key=lambda item: (-item[1][TOTAL], natural_key(item[0]))))

    def _subtrees(self, device: str) -> dict[str, Sums]:
        modules: dict[str, Sums] = {}
        below = list(reversed(self.tree(device)))
        while below:
            branch = below.pop()
            modules[branch.fqn] = branch.subtree
            below += reversed(branch.children)
        return modules

    def by_place(self, device: str | None = None) -> list[tuple[Place | None, Sums]]:
        """The lines and operators that made what is held on a device (by default the main one), and the bytes by
        category, with "Total". None: what has neither. A place may occur several times."""
        number = self._names.device_number(self.main_device if device is None else device)
        return [(self._places.find(stack), sums_of(raw)) for on, stack, raw in self._raw.stacks() if on == number]

    def by_module_and_place(self, device: str) -> list[tuple[str, Place | None, Raw]]:
        """Each module, and the lines and operators that made what it holds itself on a device, with the bytes by category
        in the order of ``CATEGORIES``. None: what has neither. The same two may occur several times."""
        number = self._names.device_number(device)
        found: dict[tuple[int, int], list[int]] = {}
        for on, path, stack, category, _, size in self._raw.alike():
            if on == number:
                found.setdefault((path, stack), [0] * len(CATEGORIES))[CATEGORIES.index(category)] += size
        return [
            (self._names.module(path), self._places.find(stack), tuple(raw)) for (path, stack), raw in found.items()
        ]

    def alike(self, device: str) -> Iterator[tuple[str, Place | None, Category, Kind | None, int]]:
        """What is held on a device: module, place, category and kind, and the bytes that have these."""
        number = self._names.device_number(device)
        for on, path, stack, category, kind, size in self._raw.alike():
            if on == number:
                yield (
                    self._names.module(path),
                    self._places.find(stack),
                    Category(category),
                    Kind(kind) if kind else None,
                    size,
                )

    def blocks(self, limit: int | None = None, device: str | None = None) -> Iterator[Block]:
        """The blocks that are held, largest first and oldest first among equals; at most ``limit``."""
        names = self._names
        number = None if device is None else names.device_number(device)
        places = map(self._places.find, self._raw.block_stacks(-1 if number is None else number))
        for (size, on, category, path, phase, step, made_at, outside, slot, word), place in zip(
            self._raw.blocks(limit, number), places
        ):
            module, at = names.module(path), made_at / 1e6
            kind = None if word is None else Kind(word)
            yield Block(
                size, names.devices[on], Category(category), module, phase, step, at, outside, slot, kind, place
            )


# ---- a capture ----


_UNKNOWN_GROUP = CollectiveGroup("?", "", "", 0)


def _groups_by_number(groups: list[tuple[int, str, str, str, int]]) -> dict[int, CollectiveGroup]:
    return {number: CollectiveGroup(name, backend, ranks, size) for number, name, backend, ranks, size in groups}


class Capture:
    """What happened to memory during a run. It is read when it is asked for. Times are seconds since it began."""

    def __init__(self, reader: _capture.Reader, progress: Progress | None = None) -> None:
        self._reader = reader
        self._progress = progress
        self._names = Names(reader.devices, [name for name, _, _ in reader.paths])
        self.devices = self._names.named_devices
        """The devices that the file names, by number."""
        self.info: Mapping[str, str] = reader.info
        """What the recording said of the run: "program", "arguments", "torch"... Any of it may be missing."""
        self.end: Mapping[str, str] | None = reader.end
        """How the run ended: "how", "status", "error". None: it was killed, or still runs."""
        self.bytes = reader.bytes
        """The size of the file."""

    def __repr__(self) -> str:
        program = self.info.get("program", "a program")
        return f"<Capture of {program!r}: {self.event_count} events, {self.duration:.3f} s>"

    def _repr_html_(self) -> str:
        from modscope import _notebook

        return _notebook.of_capture(self)

    @property
    def event_count(self) -> int:
        """How many events there are, which is the number of the last moment."""
        return self._reader.event_count

    @property
    def lost(self) -> int:
        """How many events the writer had no room for."""
        return self._reader.lost

    @property
    def damaged(self) -> int:
        """How many bytes cannot be read, in the part of the file that was read so far."""
        return self._reader.damaged

    @property
    def duration(self) -> float:
        """The time of the last event that is known. Of a run that was killed it is final once everything was read."""
        return self._reader.duration / 1e6

    @cached_property
    def stream(self) -> _capture.Stream:
        """All events in memory, for replays with edits (_capture.pyi)."""
        return _capture.Stream(self._reader)

    def check_allocator(self) -> None:
        """CaptureError if the model of the allocator does not know the run's version of torch, or a setting."""
        try:
            _capture.Allocator(self.info.get("rules") or self.info.get("torch"), self.info.get("allocator") or None)
        except ValueError as error:
            raise CaptureError(f"The capture cannot be replayed: {error}") from None

    @property
    def module_names(self) -> Sequence[str]:
        """The names of the modules, by the numbers of their paths."""
        return self._names.modules

    def device_number(self, name: str) -> int:
        """The number of a device in the file. CaptureError if the capture has no such device."""
        return self._names.device_number(name)

    @cached_property
    def places(self) -> Places:
        """The lines and operators that made blocks, by the numbers of their stacks."""
        reader = self._reader
        cells = (self.end or {}).get(CELLS)
        return Places(
            reader.stacks,
            self.info.get("began"),
            reader.forward_stacks,
            cells,
            called=reader.called,
            sources=reader.sources,
        )

    @cached_property
    def _survey(self) -> dict[str, Any]:
        return self._reader.survey(self._progress)

    @cached_property
    def is_lower_bound(self) -> bool:
        """Whether events were lost or are damaged: figures are then "at least"."""
        return bool(self._survey["is_lower_bound"])

    @cached_property
    def peaks(self) -> dict[str, Peak]:
        """When each device held most; only devices that ever held something."""
        found = {}
        for device, raw in zip(self._names.devices, self._survey["peaks"]):
            if raw:
                size, moment, time, step, phase, path, reserved = raw
                module = self._names.module(path)
                found[device] = Peak(size, step, phase, module, moment=moment, time=time / 1e6, reserved=reserved)
        return found

    @cached_property
    def reserved(self) -> dict[str, int]:
        """The most that each device's allocator had reserved; 0 where it does not report that."""
        return dict(zip(self._names.devices, self._survey["reserved"]))

    @cached_property
    def phases(self) -> dict[str, Phase]:
        """For each of the phases "idle", "forward", "recompute", ...: the time spent in it and the blocks allocated in it."""
        return {word: Phase(time / 1e6, blocks, size) for word, (time, blocks, size) in self._survey["phases"].items()}

    def times_by_module(
        self, children: bool = False, first: int = 0, last: int | None = None
    ) -> dict[str, dict[str, float]]:
        """Module to phase to the seconds that it ran between two moments: itself, or with ``children`` also the modules
        below it. "Global" is the time outside any module. When several threads run, the busiest one's time counts."""
        found: dict[str, dict[str, float]] = {}
        for path, phase, microseconds in self._reader.times(first, last):
            parts = self._names.module(path).split(".")
            for count in range(1 if children else len(parts), len(parts) + 1):
                phases = found.setdefault(".".join(parts[:count]), {})
                phases[phase] = phases.get(phase, 0.0) + microseconds / 1e6
        return found

    def gpu_times(self) -> dict[str, float]:
        """Module to the seconds that the GPU needed for one forward of it, on average. Empty where that was not measured."""
        found: dict[str, list[int]] = {}
        for (path, *_), nanoseconds in zip(self.stream.calls(0), self.stream.gpu_times()):
            if nanoseconds:
                found.setdefault(self._names.module(path), []).append(nanoseconds)
        return {module: sum(times) / len(times) / 1e9 for module, times in found.items()}

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
        """The accelerator with the highest peak, or else the CPU."""
        return find_main_device({device: peak.bytes for device, peak in self.peaks.items()})

    def steps(self) -> Iterator[Step]:
        """The steps, one by one."""
        start = self._reader.snapshot(0)
        number, begin, first = start.step, start.time / 1e6, start.moment
        for event in self.events("step"):
            yield self._step(number, begin, event.time, first, event.number)
            number, begin, first = event.bytes, event.time, event.number
        yield self._step(number, begin, max(begin, self.duration), first, self.event_count)

    def _step(self, number: int, begin: float, end: float, first: int, last: int) -> Step:
        return Step(number, begin, end, first, last, self.most_held(first, last))

    def step_times(self) -> list[tuple[int, float]]:
        """The number of each step that began, and when."""
        numbers = array("Q", self._reader.step_times())
        return list(zip(numbers[::2], (time / 1e6 for time in numbers[1::2])))

    def series(self, device: str, bounds: Sequence[float]) -> bytes:
        """What the device held over time: for each category an int64 for each two consecutive ``bounds``, in seconds, at
        the moment between them at which the device held most. -1 after the end of the capture."""
        times = array("Q", (max(round(bound * 1e6), 0) for bound in bounds))
        return self._reader.series(self._names.device_number(device), times.tobytes())

    def most_held(self, first: int, last: int) -> dict[str, int]:
        """Device to the most that it held between two moments."""
        return dict(zip(self._names.devices, self._reader.peaks(first, last)))

    def events(self, *kinds: str, first: int = 0, last: int | None = None) -> Iterator[Event]:
        """The events of these kinds, or of all, from moment ``first`` to moment ``last``, one by one."""
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"There are no events of kind {unknown[0]!r}. The kinds are: {', '.join(KINDS)}")
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
            self._names.devices[device] if kind in _DEVICE_KINDS else None,
            size,
            self._names.module(path) if kind in _MODULE_KINDS else None,
            Category(category) if category else None,
            phase,
            slot if kind in _BLOCK_KINDS else None,
            extra if kind == "claim" else None,
            allocated,
            reserved,
        )

    # ---- moments ----

    def moment(self, at: str | int, device: str | None = None) -> int:
        """The number of a moment: "peak" (of a device, by default the main one), "oom" (the last failed allocation),
        "step:N" (the end of that step), "time:SECONDS", or a number. CaptureError if the capture does not have it."""
        if isinstance(at, int):
            if not 0 <= at <= self.event_count:
                raise CaptureError(f"There is no moment {at}: the capture has moments 0 to {self.event_count}")
            return at
        word, number = parse_moment(at)
        if word == "peak":
            return self._moment_of_peak(device)
        if word == "oom":
            return self._moment_of_oom()
        return self._moment_of_step(int(number)) if word == "step" else self._moment_of_time(number)

    def _moment_of_peak(self, device: str | None) -> int:
        if not self.peaks:
            raise CaptureError(f"There is no peak: the capture has no memory in it{describe_unreadable(self)}")
        name = self.main_device if device is None else device
        self.device_number(name)
        if name not in self.peaks:
            raise CaptureError(f"There is no peak on {name}: it never held anything")
        return self.peaks[name].moment

    def _moment_of_oom(self) -> int:
        if not self.oom_count:
            raise CaptureError("There is no moment oom: no allocation failed in this capture")
        return int(self._survey["last_oom"])

    def _moment_of_step(self, step: int) -> int:
        try:
            return self._reader.moment_at_step(step)
        except LookupError:
            raise CaptureError(f"There is no step {step}: the last is {self.last_step}") from None

    def _moment_of_time(self, seconds: float) -> int:
        if seconds > self.duration:
            self._survey  # reads everything: after that the duration is final
        if seconds > self.duration:
            raise CaptureError(f"There is no moment at {seconds:g} s: the capture ends at {self.duration:.6f} s")
        return self.moment_at(seconds)

    def moment_at(self, seconds: float) -> int:
        """The last moment at a time; beyond the end it is the last of all."""
        return self._reader.moment_at_time(round(seconds * 1e6))

    def snapshot(self, at: str | int = "peak", device: str | None = None) -> Snapshot:
        """What was held at a moment, which is given as to ``moment``."""
        snapshot = Snapshot(self._names, self._reader.snapshot(self.moment(at, device)), self.places)
        # The true peak may be among the events that are missing, and so may what came after the last event that can be read.
        is_peak_unsure = at == "peak" and self.is_lower_bound
        snapshot.is_lower_bound |= (
            is_peak_unsure or self.last_readable is not None and snapshot.moment >= self.last_readable
        )
        return snapshot

    @cached_property
    def last_readable(self) -> int | None:
        """The last moment that can be read, if the file is damaged from there to its end; None: the end can be read."""
        last = self._reader.snapshot(self.event_count).moment
        return last if last < self.event_count else None

    def collectives(self) -> list[Collective]:
        """All collectives of torch.distributed that the rank launched, in their order."""
        rows, groups = self._reader.collectives()
        named = _groups_by_number(groups)
        module = self._names.module
        return [
            Collective(
                kind,
                size,
                named.get(group, _UNKNOWN_GROUP),
                time / 1e6,
                taken / 1e9 or None,
                step,
                phase,
                module(path),
                event,
                timing or None,
            )
            for event, time, step, kind, size, taken, path, _, group, phase, timing in rows
        ]

    def collective_totals(self) -> list[tuple[str, CollectiveGroup, str, str, bool, int, int, float]]:
        """Sums over collectives: (kind, group, module, phase, whether in a step, count, bytes, seconds)."""
        rows, groups = self._reader.collective_totals()
        named = _groups_by_number(groups)
        return [
            (kind, named.get(group, _UNKNOWN_GROUP), self._names.module(path), phase, in_step, count, size, taken / 1e9)
            for kind, group, path, phase, in_step, count, size, taken in rows
        ]

    def collective_sums(self) -> list[tuple[CollectiveGroup, int, int, list[tuple[str, int, int, int, int]]]]:
        """Sums for each group, to compare ranks: (group, how many collectives but messages, a hash of their order,
        [(kind, count, bytes, nanoseconds, how many have a time)])."""
        rows, groups = self._reader.collective_sums()
        named = _groups_by_number(groups)
        return [(named.get(group, _UNKNOWN_GROUP), launched, order, kinds) for group, launched, order, kinds in rows]

    # ---- for the page and the exports ----

    @property
    def all_devices(self) -> Sequence[str]:
        """Names for all devices that may occur, by number, also for those that the file does not name."""
        return self._names.devices

    @property
    def modules(self) -> Sequence[str]:
        """The modules' names by the numbers of their paths. A module that is called in several places has several."""
        return self._names.modules

    def pack(self, first: int = 0, last: int | None = None) -> tuple[builtins.bytes, list[int]]:
        """The part between two moments as columns of numbers, which the page reads, and the numbers of the stacks that
        made blocks in it."""
        return self._reader.pack(first, last)

    def export(
        self,
        format: str,
        write: Callable[[builtins.bytes], object],
        encode: Callable[[str], builtins.bytes],
        order: list[int],
        title: builtins.bytes,
        pid: int,
        began: int,
        last: int | None,
    ) -> None:
        """Write all events up to moment ``last`` in a format of modscope._export. ``encode`` writes a name as the
        format does; ``order`` lists the devices by torch's numbers. OverflowError if addresses run out."""
        self._reader.export(
            format,
            write,
            modules=[encode(name) for name in self.modules],
            devices=[encode(name) for name in self.all_devices],
            places=self._encode_places(encode),
            order=order,
            title=title,
            pid=pid,
            began=began,
            last=last,
            progress=self._progress,
        )

    def _encode_places(self, encode: Callable[[str], builtins.bytes]) -> list[_EncodedPlace]:
        def encoded(text: str | None) -> builtins.bytes | None:
            return None if text is None else encode(text)

        return [
            (encoded(place.file), place.line or 0, encoded(place.function), encoded(place.operator))
            for place in self.places.innermost()
        ]


def _open(path: str | os.PathLike[str]) -> int:
    # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise CaptureError(f"{os.fspath(path)} is not a file, so it cannot be a capture")


def _duplicate(file: IO[bytes]) -> int:
    try:
        return os.dup(file.fileno())
    except (AttributeError, io.UnsupportedOperation):
        raise TypeError("load takes a path, or a file that is open on disk") from None


def load(file: str | os.PathLike[str] | IO[bytes], progress: Progress | None = None) -> Capture:
    """Read a capture from a path or an open file. ``progress`` is called with the part done, 0 to 1, in long work.

    OSError if the file cannot be read. CaptureError if it is not a capture, or was written by a newer version.
    """
    if isinstance(file, str | os.PathLike):
        name, fd = os.fspath(file), _open(file)
    else:
        name, fd = getattr(file, "name", "the file"), _duplicate(file)
    try:
        return Capture(_capture.Reader(fd), progress)
    except _capture.FormatError as error:
        raise CaptureError(f"{name}: {error}{_describe_short(os.fstat(fd).st_size)}") from None
    finally:
        os.close(fd)


def _describe_short(bytes: int) -> str:
    """The end of a sentence on a file that is too short to be a capture; "" if it is not."""
    if bytes >= _SHORTEST:
        return ""
    if not bytes:
        return (
            ". It is empty: its recording was ended before it wrote anything, or the disk is full. Record the run again"
        )
    return (
        f". It is only {counted(bytes, 'byte')} long: if a recording wrote it, it was cut short. Record the run again"
    )


def describe_unreadable(capture: Capture) -> str:
    """The end of a sentence on a capture without memory: why, if the file is not whole."""
    if capture.damaged:
        return ". The file is damaged, or was cut short: record or predict the run again"
    return (
        f". The file ends early, after {counted(capture.bytes, 'byte')}: its run was killed at its beginning, or the file was cut short"
        if capture.end is None
        else ""
    )
