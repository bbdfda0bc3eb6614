"""What a test takes: on a virtual GPU, or of the memory that torch really has. pytest_plugin.py asks for it where a
test has a marker of ours."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from modscope._predict.result import verdict_of
from modscope._predict.text import describe_failure
from modscope._read.categories import TOTAL
from modscope._read.groups import merge_numbers
from modscope._read.lines import Place
from modscope._read.load import Block, Capture, load
from modscope._read.sentence import describe_run
from modscope._read.summary import summarize
from modscope._read.text import clean, counted, label, parse_size, size
from modscope._virtual.certainty import OPEN, describe_margin
from modscope._virtual.gpus import Gpu, find_gpu

if TYPE_CHECKING:
    import pytest

    from modscope._predict.virtual_gpu import virtual_gpu
    from modscope._record.record import Recording

_DEVICE = "cuda:0"
_MOST_ROWS = 5  # of modules and of lines, in the report of a failure
_NO_LINE = "(no Python line)"
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class CannotMeasure(Exception):
    """A marker is wrong, or there can be no virtual GPU here: a sentence."""


class Figures(NamedTuple):
    """What a test took of a virtual GPU."""

    gpu: str
    torch: str
    reserved: int
    allocated: int
    modules: dict[str, int]
    """What modules held themselves at the peak. Numbers in their names are ``*``, so that layers are one row."""
    lines: dict[str, int]
    """What was held at the peak, by the line that allocated it: its file, function and text."""


# ---- markers ----


class StackFrame(NamedTuple):
    function: str
    filename: str
    lineno: int


class Leak(NamedTuple):
    """What one line has left behind after a test. ``filter_fn`` says whether it counts."""

    frames: tuple[StackFrame, ...]
    """Innermost first."""
    module: str
    bytes: int


class Limits(NamedTuple):
    """What the markers of a test ask for."""

    gpu: Gpu | None = None
    reserved: int | None = None
    held: int | None = None
    left: int | None = None
    counts: Callable[[Leak], bool] = lambda leak: True


def _bytes(text: object) -> int:
    """The bytes of "200 MB" or "1.5 GiB". A KB has 1,024, as in pytest-memray."""
    value = parse_size(text, kilo=1024) if isinstance(text, str) else None
    if value is None:
        raise CannotMeasure(f"{text!r} is not an amount of memory: give one such as '200 MB' or '1.5 GiB'")
    return value


def _read_gpu(limits: Limits, name: Any, max: object = None) -> Limits:
    try:
        gpu = name if isinstance(name, Gpu) else find_gpu(str(name))
    except ValueError as error:
        raise CannotMeasure(str(error)) from None
    return limits._replace(gpu=gpu, reserved=None if max is None else _bytes(max))


def _read_limit(limits: Limits, limit: Any, current_thread_only: bool = False) -> Limits:
    _check_threads("limit_memory", current_thread_only)
    return limits._replace(held=_bytes(limit))


def _read_leaks(
    limits: Limits,
    location_limit: Any,
    filter_fn: Callable[[Leak], bool] | None = None,
    current_thread_only: bool = False,
) -> Limits:
    _check_threads("limit_leaks", current_thread_only)
    return limits._replace(left=_bytes(location_limit), counts=filter_fn or limits.counts)


def _check_threads(marker: str, current_thread_only: bool) -> None:
    if current_thread_only:
        raise CannotMeasure(
            f"{marker} counts the tensors of all threads: leave current_thread_only out, or install pytest-memray"
        )


_MARKERS: dict[str, tuple[Callable[..., Limits], str]] = {
    "gpu_memory": (_read_gpu, '@pytest.mark.gpu_memory("rtx4090", max="18 GiB")'),
    "limit_memory": (_read_limit, '@pytest.mark.limit_memory("200 MB")'),
    "limit_leaks": (_read_leaks, '@pytest.mark.limit_leaks("1 MB")'),
}


def read_markers(markers: Iterable[pytest.Mark]) -> Limits:
    """Read the markers of a test. Raises CannotMeasure if one is wrong."""
    limits = Limits()
    for marker in markers:
        read, form = _MARKERS[marker.name]
        try:
            limits = read(limits, *marker.args, **marker.kwargs)
        except TypeError:
            raise CannotMeasure(f"{marker.name} does not take these arguments. Write it as  {form}") from None
    if limits.gpu and (limits.held, limits.left) != (None, None):
        raise CannotMeasure(
            "gpu_memory counts on a virtual GPU, limit_memory and limit_leaks count real memory: use them in two tests"
        )
    return limits


# ---- a test ----


class MeasuredTest:
    """A test with a marker, from before its fixtures to after their ends."""

    def __init__(self, limits: Limits, root: str) -> None:
        """``root``: the folder from which the files of lines are named."""
        self._limits = limits
        self._root = root
        self._gpu: virtual_gpu | None = None
        self._recording: Recording | None = None
        self._fd = -1
        self.figures: Figures | None = None
        """What it took of a virtual GPU."""
        self.section = ""
        """What the report of a failure shows: which modules and lines the memory is in."""

    def before_fixtures(self) -> None:
        """CannotMeasure if there can be no virtual GPU."""
        if self._limits.gpu is not None:
            from modscope import virtual_gpu

            gpu = virtual_gpu(self._limits.gpu)
            try:
                gpu.__enter__()
            except (RuntimeError, ImportError) as error:
                raise CannotMeasure(f"There can be no virtual GPU in this process: {error}") from None
            self._gpu = gpu

    def begin(self) -> None:
        """Note that the body of the test begins."""
        if self._limits.gpu is None:
            from modscope._record.record import Recording

            self._fd = os.memfd_create("modscope-test", os.MFD_CLOEXEC)
            self._recording = Recording(self._fd, yields=False)
            self._recording.start()

    def end(self, error: BaseException | None) -> str | None:
        """The body has ended, by this exception if it did. Why the test fails by its limits; None if it does not."""
        if self._gpu is not None:
            self._gpu.stop(error)
            return self._judge_gpu(self._gpu)
        if self._recording is None:
            return None
        if self._limits.left is not None:
            gc.collect()
        self._recording.stop()
        with open(self._fd, "rb", closefd=False) as file:
            capture = load(file)
        return self._judge_held(capture) or self._judge_left(capture)

    def leave(self) -> None:
        """The fixtures have ended. The body may not have begun."""
        if self._gpu is not None:
            self._gpu.__exit__(None, None, None)
        if self._recording is not None:
            self._recording.stop("stopped")
        if self._fd >= 0:
            os.close(self._fd)
        self._gpu, self._recording, self._fd = None, None, -1

    @staticmethod
    def end_traceback_outside(error: BaseException) -> None:
        """End an exception's traceback where the program, or torch, called this package: what stands in for the GPU
        raised it, and nobody looks for the cause there."""
        last, entry = None, error.__traceback__
        while entry is not None:
            if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE):
                last = entry
            entry = entry.tb_next
        if last is not None:
            last.tb_next = None

    # ---- what it took ----

    def _judge_gpu(self, gpu: virtual_gpu) -> str | None:
        most = self._limits.reserved
        modules, lines = self._describe(gpu.capture, _DEVICE, "peak" if gpu.fits else "oom")
        self.figures = Figures(
            gpu.gpu.name,
            str(gpu.result["torch"]).partition("+")[0],
            gpu.peak_reserved,
            gpu.peak_allocated,
            modules,
            lines,
        )
        too_close = f"It is too close to tell whether the test fits the {gpu.gpu.label}"
        if not gpu.fits:
            failure = describe_failure(gpu.result["out_of_memory"])
            if gpu.verdict == OPEN:
                return f"{too_close}: {failure}. {describe_margin(verdict_of(gpu.result))}"
            return f"The test does not fit the {gpu.gpu.label}: {failure}."
        if not gpu.peak_allocated:
            return 'The test used no GPU: put its model and its data on the device "cuda".'
        if most is None and gpu.verdict == OPEN:
            return (
                f"{too_close}: it reserves {size(gpu.peak_reserved)}, which leaves {size(gpu.result['to_spare'])}. "
                f"{describe_margin(verdict_of(gpu.result))} To limit what is reserved instead, give the marker max."
            )
        if most is None or gpu.peak_reserved <= most:
            return None
        return (
            f"The test reserves {size(gpu.peak_reserved)} of the {gpu.gpu.label}, {size(gpu.peak_reserved - most)} "
            f"more than its limit of {size(most)}. {_sentence(gpu.capture)}"
        )

    def _judge_held(self, capture: Capture) -> str | None:
        most = self._limits.held
        device = max(capture.peaks, key=lambda name: capture.peaks[name].bytes, default=None)
        if most is None or device is None or capture.peaks[device].bytes <= most:
            return None
        self._describe(capture, device, "peak")
        held = capture.peaks[device].bytes
        return (
            f"Torch held {size(held)} on {device} while the test ran, {size(held - most)} more than its limit of "
            f"{size(most)}. {_sentence(capture)}"
        )

    def _judge_left(self, capture: Capture) -> str | None:
        if self._limits.left is None:
            return None
        by_line: dict[tuple[StackFrame, ...], list[Block]] = {}
        for block in capture.snapshot(capture.event_count).blocks():
            if block.place is not None and (frames := _frames(block.place)):  # others were there before the test
                by_line.setdefault(frames, []).append(block)
        leaks = [
            Leak(frames, label(blocks[0].module), sum(block.bytes for block in blocks))
            for frames, blocks in by_line.items()
        ]
        found = [leak for leak in leaks if leak.bytes > self._limits.left and self._limits.counts(leak)]
        if not found:
            return None
        found.sort(key=lambda leak: -leak.bytes)
        rows = [(f"{self._shown(leak.frames[0])}, for {leak.module}", leak.bytes) for leak in found]
        self.section = _rows("Lines whose tensors are left:", rows)
        more = f", and those of {counted(len(found) - 1, 'other line')}" if len(found) > 1 else ""
        return (
            f"Tensors are left after the test: {size(found[0].bytes)}, allocated at {rows[0][0]}{more}. One line may "
            f"leave {size(self._limits.left)}."
        )

    # ---- where it is ----

    def _describe(self, capture: Capture, device: str, at: str) -> tuple[dict[str, int], dict[str, int]]:
        """What modules and lines hold at a moment, largest first; the section shows the largest of them."""
        if device not in capture.peaks:
            return {}, {}
        snapshot = capture.snapshot(at, device)
        modules = _sums((merge_numbers(fqn), sums[TOTAL]) for fqn, sums in snapshot.by_module().get(device, {}).items())
        lines = _sums((self._line(place), sums[TOTAL]) for place, sums in snapshot.by_place(device))
        self.section = "\n".join(
            (
                _rows("Modules that hold most:", modules.items()),
                _rows("Lines that allocated most of it:", lines.items()),
            )
        )
        return modules, lines

    def _line(self, place: Place | None) -> str:
        at = place.attributed if place is not None else None
        if at is None or not at.frames:
            return _NO_LINE
        frame = at.frames[0]
        return f"{self._file(frame.file)} in {frame.function}: {at.source or f'line {frame.line}'}"

    def _file(self, file: str) -> str:
        inside = os.path.isabs(file) and file.startswith(os.path.join(self._root, ""))
        return clean(os.path.relpath(file, self._root) if inside else file)

    def _shown(self, frame: StackFrame) -> str:
        return f"{self._file(frame.filename)}:{frame.lineno} in {clean(frame.function)}"


def _sentence(capture: Capture) -> str:
    return "".join(text for text, _ in describe_run(summarize("", capture), capture)).strip()


def _frames(place: Place) -> tuple[StackFrame, ...]:
    return tuple(StackFrame(frame.function, frame.file, frame.line) for frame in place.attributed.frames)


def _sums(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in rows:
        found[name] = found.get(name, 0) + value
    return dict(sorted(((name, value) for name, value in found.items() if value), key=lambda row: (-row[1], row[0])))


def _rows(title: str, rows: Iterable[tuple[str, int]]) -> str:
    """A table for the report of a failure."""
    shown = list(rows)
    more = [f"  {counted(len(shown) - _MOST_ROWS, 'more')}"] if len(shown) > _MOST_ROWS else []
    return "\n".join([title, *(f"  {size(value):>12}  {label(name)}" for name, value in shown[:_MOST_ROWS]), *more])
