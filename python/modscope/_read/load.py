"""``modscope.load``: a capture as Python objects. modscope._capture, in C, reads the file."""

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
from modscope._read.categories import Category
from modscope._read.cells import KEY as CELLS
from modscope._read.lines import Places
from modscope._read.snapshot import Snapshot
from modscope._read.text import counted
from modscope._read.types import (
    Block,
    Call,
    CaptureError,
    Collective,
    CollectiveGroup,
    Event,
    Names,
    Peak,
    Phase,
    Step,
    StepTimes,
    calls_of,
    find_main_device,
    plain,
)

__all__ = ["Block", "Capture", "CaptureError", "Event", "Phase", "Snapshot", "Step", "load", "parse_moment"]

OnProgress = Callable[[float], object]
_EncodedPlace = tuple[bytes | None, int, bytes | None, bytes | None]  # file, line, function, operator

EVENT_KINDS = ("add", "drop", "claim", "position", "thread", "step", "optimizer_step", "reserved", "oom")
_DEVICE_KINDS = frozenset(("add", "drop", "claim", "reserved", "oom"))
_MODULE_KINDS = frozenset(("add", "drop", "claim", "position", "oom"))
_BLOCK_KINDS = frozenset(("add", "drop", "claim"))
_SHORTEST = 16  # bytes; a shorter file is not even the beginning of a capture
_LARGEST_NUMBER = 2**63 - 1  # The reader takes no larger one.


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


# ---- a capture ----

_UNKNOWN_GROUP = CollectiveGroup("?", "", "", 0)


def _groups_by_number(groups: list[tuple[int, str, str, str, int]]) -> dict[int, CollectiveGroup]:
    return {number: CollectiveGroup(name, backend, ranks, size) for number, name, backend, ranks, size in groups}


class Capture:
    """What happened to memory during a run. It is read when it is asked for. Times are seconds since it began."""

    def __init__(self, reader: _capture.Reader, progress: OnProgress | None = None, file: str = "") -> None:
        self._reader = reader
        self.file = file
        """Its path, as it was given to ``load``."""
        self._progress = progress
        self._has_damaged_notes = False
        self._names = Names(reader.devices, [name for name, _, _ in reader.paths])
        self.devices = self._names.named_devices
        """The devices that the file names, by number."""
        self.info: Mapping[str, str] = reader.info
        """What the recording said of the run: "program", "arguments", "torch"... Any of it may be missing."""
        self.end: Mapping[str, str] | None = reader.end
        """How the run ended: "how", "status", "error". None: it was killed, or still runs."""
        self.bytes = reader.bytes
        """The size of the file in bytes."""

    def __repr__(self) -> str:
        program = self.info.get("program", "a program")
        return f"<Capture of {program!r}: {self.event_count} events, {self.duration:.3f} s>"

    def _repr_html_(self) -> str:
        from modscope._show import notebook

        return notebook.of_capture(self)

    def to_dict(self) -> dict[str, Any]:
        """The figures of ``modscope summary --json``, with all modules of each device, of plain JSON types."""
        from modscope._read.summary import summarize

        found: dict[str, Any] = plain(summarize(self.file, self))
        return found

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
        """The events in memory, for replays with edits (_capture.pyi). Of equal steps only a few are kept."""
        stream = self.whole_stream()
        stream.fold()
        return stream

    def whole_stream(self) -> _capture.Stream:
        """Read all events into memory."""
        self._survey  # what is damaged of the events is known before the rest is read
        before = self.damaged
        stream = _capture.Stream(self._reader)
        self._has_damaged_notes = self._has_damaged_notes or self.damaged > before
        return stream

    def align(self, other: Capture) -> None:
        """Keep the same steps of both in memory, where steps are equal in both, so that their streams can be
        compared."""
        self.stream, other.stream = self.whole_stream(), other.whole_stream()
        if len(self.stream.steps()) == len(other.stream.steps()):
            self.stream.fold(other.stream)

    @property
    def has_damaged_notes(self) -> bool:
        """Whether parts are damaged that are no events, but say what was requested and what autograd saved."""
        self.stream
        return self._has_damaged_notes

    def replay(
        self,
        device: str,
        edits: Sequence[tuple[Any, ...]] = (),
        *,
        conf: str | None = None,
        capacity: int | None = None,
        points: int = 0,
        window: tuple[int, int | None] = (0, None),
        folded: bool = False,
        variants: int = 0,
    ) -> _capture.Replay:
        """What the model of the run's allocator says (_capture.pyi). ``conf``: other settings than the run's own."""
        settings = self.info.get("allocator", "") if conf is None else conf
        return self.stream.replay(
            self.device_number(device),
            edits or None,
            caching=device != "cpu",
            version=self.info.get("rules") or self.info.get("torch"),
            conf=settings or None,
            capacity=capacity,
            points=min(points, self.stream.events),
            first=window[0],
            last=window[1],
            folded=folded,
            variants=variants,
        )

    def layout(self, stream: _capture.Stream, device: int) -> bytes:
        """Where the model of the run's allocator puts the blocks of a whole stream (_capture.pyi). ValueError if the
        model does not know the run's version of torch, or a setting."""
        version, settings = self.info.get("rules") or self.info.get("torch"), self.info.get("allocator")
        return stream.layout(device, version=version, conf=settings or None)

    def check_allocator(self) -> None:
        """Raise CaptureError if the model of the allocator does not know the run's version of torch, or a setting."""
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
            model_frames=reader.model_frames,
            called=reader.called,
            sources=reader.sources,
        )

    @cached_property
    def _survey(self) -> _capture.Survey:
        return self._reader.survey(self._progress)

    @cached_property
    def is_lower_bound(self) -> bool:
        """Whether events were lost or are damaged: figures are then "at least"."""
        return self._survey["is_lower_bound"]

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
        """The time spent in each phase ("idle", "forward", "recompute", ...) and the blocks allocated in it."""
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
        """Module to the seconds that the GPU needed for one forward of it, on average. Empty where that was not
        measured."""
        found: dict[str, list[Call]] = {}
        for call in calls_of(self.stream, 0):
            if call.gpu_nanoseconds:
                found.setdefault(self._names.module(call.path), []).append(call)
        return {
            module: sum(call.gpu_nanoseconds * call.stands_for for call in calls)
            / sum(call.stands_for for call in calls)
            / 1e9
            for module, calls in found.items()
        }

    @property
    def last_step(self) -> int:
        """The number of the last step that began; 0 if none did."""
        return self._survey["steps"]

    @property
    def optimizer_steps(self) -> int:
        """How many optimizer steps ended in the run."""
        return self._survey["optimizer_steps"]

    @property
    def oom_count(self) -> int:
        """How many allocations failed in the run."""
        return self._survey["oom_count"]

    @cached_property
    def last_oom(self) -> Event | None:
        """The last allocation that failed; None if none did."""
        after = self._survey["last_oom"]
        return next(self.events("oom", first=after - 1), None) if after else None

    @cached_property
    def main_device(self) -> str:
        """The accelerator with the highest peak, or else the CPU."""
        return find_main_device({device: peak.bytes for device, peak in self.peaks.items()})

    def steps(self) -> Iterator[Step]:
        """Yield the steps in their order, that before the first one too."""
        start = self._reader.snapshot(0)
        number, begin, first = start.step, start.time / 1e6, start.moment
        for event in self.events("step"):
            yield self._step(number, begin, event.time, first, event.number)
            number, begin, first = event.bytes, event.time, event.number
        yield self._step(number, begin, max(begin, self.duration), first, self.event_count)

    def _step(self, number: int, begin: float, end: float, first: int, last: int) -> Step:
        return Step(number, begin, end, first, last, self.most_held(first, last))

    def step_times(self) -> list[StepTimes]:
        """For each step, when it began and when it ended."""
        numbers = array("Q", self._reader.step_times())
        rows = zip(numbers[::4], numbers[1::4], numbers[2::4], numbers[3::4])
        return [StepTimes(step, begin / 1e6, end / 1e6 if ended else None, ended) for step, begin, end, ended in rows]

    @cached_property
    def input_shapes(self) -> list[tuple[tuple[int, ...], str, int, int, int]]:
        """The shapes of what went into the root modules step by step, largest first: the dimensions, "integer", "float"
        or "", how many steps, and, where there are several shapes, in which of these steps the main device held most,
        and how much. Of a step of several calls, the shape is that of the largest input."""
        names = self._names.devices
        return self._reader.input_shapes(names.index(self.main_device)) if self.main_device in names else []

    @cached_property
    def has_gpu_times(self) -> bool:
        """Whether the GPU's times of calls were measured in a real run."""
        return self._reader.has_call_times()

    def series(self, device: str, bounds: Sequence[float]) -> bytes:
        """What the device held over time: for each category an int64 for each two consecutive ``bounds``, in seconds,
        at the moment between them at which the device held most. -1 after the end of the capture."""
        times = array("Q", (max(round(bound * 1e6), 0) for bound in bounds))
        return self._reader.series(self._names.device_number(device), times.tobytes())

    def most_held(self, first: int, last: int) -> dict[str, int]:
        """Device to the most that it held between two moments."""
        return dict(zip(self._names.devices, self._reader.peaks(first, last)))

    def events(self, *kinds: str, first: int = 0, last: int | None = None) -> Iterator[Event]:
        """The events of these kinds, or of all, from moment ``first`` to moment ``last``, one by one."""
        unknown = [kind for kind in kinds if kind not in EVENT_KINDS]
        if unknown:
            raise ValueError(f"There are no events of kind {unknown[0]!r}. The kinds are: {', '.join(EVENT_KINDS)}")
        mask = sum(1 << EVENT_KINDS.index(kind) for kind in {*(kinds or EVENT_KINDS)})
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
        last = self._survey["last_oom"]
        if last is None:
            raise CaptureError("There is no moment oom: no allocation failed in this capture")
        return last

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
        # The true peak may be among the events that are missing, and so may what came after the last event that can be
        # read.
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

        found = []
        for place in self.places.innermost():
            file, function, line = place.innermost[:3] if place.innermost else (None, None, 0)
            found.append((encoded(file), line, encoded(function), encoded(place.operator)))
        return found


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


def load(file: str | os.PathLike[str] | IO[bytes], progress: OnProgress | None = None) -> Capture:
    """Read a capture from a path or an open file. ``progress`` is called with the part done, 0 to 1, in long work.

    OSError if the file cannot be read. CaptureError if it is not a capture, or was written by a newer version.
    """
    if isinstance(file, str | os.PathLike):
        name, fd = os.fspath(file), _open(file)
    else:
        name, fd = getattr(file, "name", "the file"), _duplicate(file)
    try:
        return Capture(_capture.Reader(fd), progress, name if isinstance(name, str) else "")
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
        (
            f". The file ends early, after {counted(capture.bytes, 'byte')}: its run was killed at its beginning, or "
            f"the file was cut short"
        )
        if capture.end is None
        else ""
    )
