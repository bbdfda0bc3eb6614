"""Two captures of one program: of two batches, from which other batches follow, as every block's size is on the line
through its two sizes; or of a run that died half-way beside one that did not, from which what is missing is taken.
Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from modscope import _capture
from modscope._fit.job import Edit, Job, Outcome
from modscope._read.load import CaptureError
from modscope._read.text import counted, describe_moment, describe_position, size
from modscope._read.types import Call, calls_of
from modscope._virtual.gpus import GPUS

_MOST_UNMATCHED = 0.02  # of the bytes of one capture's peak: above it, a sentence says so
_MOST_LEFT_OVER = 0.2  # of the blocks: above it, the programs differ
_MOST_DIFFERENCE = 0.05  # of what is held: two runs of one program may differ by so much until one of them dies
MOST_TIMES = 4096
"""A batch that is so many times the larger one is the largest that is tried."""


# ---- two batches ----


class Batches:
    """Two captures; ``large`` is the one that is edited. ``sizes``: their batches, where the user gave them."""

    def __init__(self, small: Job, large: Job, sizes: tuple[int, int] | None = None) -> None:
        small.capture.align(large.capture)
        _check(small, large)
        paths = {name: path for path, name in enumerate(small.modules)}
        match = large.stream.match(
            small.stream, [paths.get(name) for name in large.modules], large.number, _most_partial_results(large)
        )
        self.note = _check_match(small, large, match)
        """A sentence, if the captures are not quite on one line; else empty."""
        if match["ratio"] <= 1:
            raise CaptureError(
                f"{large.file} needs no more than {small.file}: give captures of a small and of a larger batch"
            )
        self.large = large
        self.ratio = Fraction(match["ratio"]).limit_denominator(1024)
        given = sizes or _in_arguments(small, large, self.ratio)
        if given and Fraction(given[1], given[0]) != self.ratio:
            raise CaptureError(
                f"The batches {given[0]} and {given[1]} do not agree with the captures, in which activations of "
                f"the second are "
                f"{float(self.ratio):g} times as large"
            )
        self.is_known = given is not None
        """Whether the batches themselves are known, or only their ratio."""
        self.small_size, self.large_size = given or (self.ratio.denominator, self.ratio.numerator)

    def edits(self, batch: int) -> list[Edit]:
        return [("batch", (batch - self.small_size) / (self.large_size - self.small_size))]

    def describe(self, batch: int) -> str:
        if self.is_known:
            return f"batch {batch} instead of {self.large_size}"
        return f"{batch / self.large_size:.3g} times the batch"

    def replay(self, batch: int, capacity: int | None = None) -> Outcome:
        return self.large.replay(self.edits(batch), "", capacity)

    def largest(self, capacity: int) -> int | None:
        """The largest batch that fits, of those up to MOST_TIMES the larger one; None: not even 1 does. It is taken for
        granted that a larger batch needs no less."""
        return largest_that(
            lambda batch: self.replay(batch, capacity).fits_at_once, self.large_size, MOST_TIMES * self.large_size
        )


def largest_that(fits: Callable[[int], bool], first: int, most: int) -> int | None:
    """The largest number from 1 to ``most`` that fits, where every smaller one does too. ``first`` is tried first, and
    then its double until one does not fit. None: 1 does not fit."""
    low, high = 0, first
    while high <= most and fits(high):
        low, high = high, 2 * high
    if low and high > most:
        return most if fits(most) else _between(fits, low, most)
    return _between(fits, low, high) or None


def _between(fits: Callable[[int], bool], low: int, high: int) -> int:
    """``low`` fits, or is 0; ``high`` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _check(small: Job, large: Job) -> None:
    """CaptureError, with what differs first."""
    begin = f"{small.file} and {large.file} are not of one program"
    if small.capture.devices != large.capture.devices or small.device != large.device:
        raise CaptureError(f"{begin}: {small.device} and {large.device} hold most of the memory")
    for one, other in ((small, large), (large, small)):
        called = {other.modules[call.path] for call in other.calls}
        missing = next((name for call in one.calls if (name := one.modules[call.path]) not in called), None)
        if missing is not None:
            raise CaptureError(f"{begin}: only {one.file} calls {missing}")
    if len(small.steps) != len(large.steps):
        counts = f"{len(small.steps)} and {len(large.steps)} steps"
        raise CaptureError(f"{small.file} and {large.file} have {counts}: record the same number of steps of both")
    for first, second in zip(small.calls, large.calls):
        if small.modules[first.path] != large.modules[second.path]:
            names = f"{small.modules[first.path]} in one and {large.modules[second.path]} in the other"
            raise CaptureError(f"{begin}: in step {first.step} they call {names}")
    if len(small.calls) != len(large.calls):
        raise CaptureError(f"{begin}: they call modules {len(small.calls)} and {len(large.calls)} times")


def _check_match(small: Job, large: Job, match: _capture.Match) -> str:
    """CaptureError if the captures are not of one program; else a sentence if blocks exist with one of the batches
    only."""
    for job, other, (count, bytes, first) in ((large, small, match["here"]), (small, large, match["there"])):
        if first is None or bytes <= _MOST_UNMATCHED * job.capture.peaks[job.device].bytes * max(len(job.steps), 1):
            continue
        path, phase, of = first
        where = describe_position(phase, job.modules[path])
        found = (
            f"{job.file} has {counted(count, 'block')} that {other.file} does not have, the first of them "
            f"{size(of)} in {where}"
        )
        if count > _MOST_LEFT_OVER * match["matched"]:
            raise CaptureError(
                f"{small.file} and {large.file} are not on one line: {found}. The programs differ, or operators "
                f"take workspaces with "
                "one batch only: then give two larger batches"
            )
        return (
            f"{found}: an operator works in another way with a larger batch, so figures of other batches are "
            f"about right."
        )
    return ""


def _most_partial_results(job: Job) -> int:
    """As large as the partial results of a sum become on the job's GPU; 0: it is not known.

    torch divides a sum over the rows of a matrix among blocks of 32 by 4 threads, of which each thread sums four
    columns: 64 KiB of float32. It starts as many of them as fit on the GPU at the same time (setReduceConfig in ATen's
    Reduce.cuh)."""
    end, gpu = job.capture.end or {}, GPUS.get(job.capture.info.get("gpu", ""))
    try:
        threads = int(end["gpu_processors"]) * int(end["gpu_threads"])
    except (KeyError, ValueError):
        threads = gpu.processors * gpu.architecture.threads if gpu else 0
    return threads // (32 * 4) * (64 << 10)


def _in_arguments(small: Job, large: Job, ratio: Fraction) -> tuple[int, int] | None:
    """The batches, if one of the programs' arguments is a number that is larger by the ratio."""
    words = [job.capture.info.get("arguments", "").split("\n") for job in (small, large)]
    if len(words[0]) != len(words[1]):
        return None
    pairs = [tuple(map(_number, pair)) for pair in zip(*words)]
    found = {(first, second) for first, second in pairs if first and second and Fraction(second, first) == ratio}
    return found.pop() if len(found) == 1 else None


def _number(word: str) -> int:
    """Return the number of an argument such as 8 or --batch=8, or 0 if it has none."""
    text = word.rpartition("=")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


# ---- a run that died ----


def join(first: Job, second: Job) -> tuple[Job, list[str]]:
    """The job to judge, and sentences about it. One of the two must have died. CaptureError says why they do not suit
    each other."""
    if first.died == second.died:
        what = "Both runs died" if first.died else "Neither run died"
        raise CaptureError(
            f"{what}: give the capture of a run that died, and one of the same program that has whole steps, such "
            f"as a predicted one"
        )
    died, whole = (first, second) if first.died else (second, first)
    begin = f"{died.file} and {whole.file} are not of one program"
    if whole.device != died.device:
        raise CaptureError(f"{begin}: {died.device} and {whole.device} hold most of the memory")
    streams = died.capture.whole_stream(), whole.capture.whole_stream()
    calls = _same_calls(died, whole, streams, begin)
    difference = _difference_until(died, whole, streams, calls)
    last, step = calls[0], streams[0].steps()[-1][1] if died.steps else 0
    where = describe_moment(last.step, "forward", died.modules[last.path])
    whole.conf = died.conf or whole.conf
    whole.fraction = min(died.fraction, whole.fraction)
    return whole, [
        f"{died.file} ends in step {step}; its last call began {where}. Figures are those of {whole.file}; until "
        f"then, both differ by {100 * difference:.1f} %."
    ]


Streams = tuple[_capture.Stream, _capture.Stream]


def _same_calls(died: Job, whole: Job, streams: Streams, begin: str) -> tuple[Call, Call]:
    """The last call of the run that died, and the same one of the other. CaptureError if the calls differ."""
    mine, others = (calls_of(stream, died.number) for stream in streams)
    if not mine:
        raise CaptureError(
            f"{died.file} ends before the first call of a module: there is nothing to compare with {whole.file}"
        )
    for one, other in zip(mine, others):
        names = died.modules[one.path], whole.modules[other.path]
        if names[0] != names[1]:
            raise CaptureError(f"{begin}: in step {one.step} they call {names[0]} in one and {names[1]} in the other")
    if len(others) < len(mine):
        extra = died.modules[mine[len(others)].path]
        raise CaptureError(
            f"{whole.file} ends before {died.file} does: it has no further call where the other calls {extra}. "
            f"Record more steps of it"
        )
    return mine[-1], others[len(mine) - 1]


def _difference_until(died: Job, whole: Job, streams: Streams, calls: tuple[Call, Call]) -> float:
    """By how much of it the bytes that both held at most until the last call differ."""
    held = [
        stream.replay(job.number, [("stop", call.begin)], caching=False)["allocated_peak"]
        for job, stream, call in zip((died, whole), streams, calls)
    ]
    difference = abs(held[1] - held[0]) / max(held[0], 1)
    if difference > _MOST_DIFFERENCE:
        name = died.modules[calls[0].path]
        raise CaptureError(
            f"Until {name} is called in step {calls[0].step}, {died.file} holds {size(held[0])} at most "
            f"and {whole.file} {size(held[1])}: "
            "give a capture of the same program with the same arguments. Of two batches, both runs must have "
            "whole steps"
        )
    return float(difference)
