"""Other batches, from two captures of one program: every block's size is on the line through its two sizes. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from modscope._fit_job import Edit, Job, Outcome
from modscope._load import CaptureError
from modscope._text import counted, describe_position, size
from modscope._virtual.gpus import GPUS, threads_per_processor

_MOST_UNMATCHED = 0.02  # of the bytes of one capture's peak: above it, a sentence says so
_MOST_LEFT_OVER = 0.2  # of the blocks: above it, the programs differ
MOST_TIMES = 4096
"""A batch that is so many times the larger one is the largest that is tried."""


class Batches:
    """Two captures; ``large`` is the one that is edited. ``sizes``: their batches, where the user gave them."""

    def __init__(self, small: Job, large: Job, sizes: tuple[int, int] | None = None) -> None:
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
                f"The batches {given[0]} and {given[1]} do not agree with the captures, in which activations of the second are "
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
    """The largest number from 1 to ``most`` that fits, where every smaller one does too. ``first`` is tried first, and then
    its double until one does not fit. None: 1 does not fit."""
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


def _check_match(small: Job, large: Job, match: dict[str, Any]) -> str:
    """CaptureError if the captures are not of one program; else a sentence if blocks exist with one of the batches only."""
    for job, other, key in ((large, small, "here"), (small, large, "there")):
        count, bytes, first = match[key]
        if not count or bytes <= _MOST_UNMATCHED * job.capture.peaks[job.device].bytes * max(len(job.steps), 1):
            continue
        path, phase, of = first
        where = describe_position(phase, job.modules[path])
        found = f"{job.file} has {counted(count, 'block')} that {other.file} does not have, the first of them {size(of)} in {where}"
        if count > _MOST_LEFT_OVER * match["matched"]:
            raise CaptureError(
                f"{small.file} and {large.file} are not on one line: {found}. The programs differ, or operators take workspaces with "
                "one batch only: then give two larger batches"
            )
        return f"{found}: an operator works in another way with a larger batch, so figures of other batches are about right."
    return ""


def _most_partial_results(job: Job) -> int:
    """As large as the partial results of a sum become on the job's GPU; 0: it is not known.

    torch divides a sum over the rows of a matrix among blocks of 32 by 4 threads, of which each thread sums four columns:
    64 KiB of float32. It starts as many of them as fit on the GPU at the same time (setReduceConfig in ATen's Reduce.cuh)."""
    end, gpu = job.capture.end or {}, GPUS.get(job.capture.info.get("gpu", ""))
    try:
        threads = int(end["gpu_processors"]) * int(end["gpu_threads"])
    except (KeyError, ValueError):
        threads = gpu.processors * threads_per_processor(gpu.capability) if gpu else 0
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
    """Of an argument such as 8 or --batch=8; 0: it is none."""
    text = word.rpartition("=")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
