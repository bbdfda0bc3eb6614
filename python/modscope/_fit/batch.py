"""``modscope batch``: the largest batch that fits a GPU, and what other batches reserve. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypedDict

from modscope._fit.capacity import nccl_bytes
from modscope._fit.job import Job, Outcome
from modscope._fit.text import notes_on
from modscope._fit.two_captures import MOST_TIMES, Batches
from modscope._predict.epoch.text import describe_read
from modscope._read.load import CaptureError
from modscope._virtual.certainty import OPEN, Judged, about_several, certainty_of, judge, other_kernels
from modscope._virtual.gpus import Gpu

_FAR = 4
"""A batch that is more than so many times the larger capture's is far from what was seen."""
_MOST_GROWTH = 8
"""A script is predicted with a batch that is so many times the largest known one at most."""


class BatchOnGpu(Judged):
    """The largest batch that fits a GPU."""

    gpu: str
    title: str
    capacity: int
    largest: int | None
    reserved: int
    is_far: bool
    largest_for_sure: int | None
    has_other_kernels: bool


class BatchPoint(TypedDict):
    """A batch, and what it reserves."""

    batch: int
    reserved: int
    allocated: int
    fits: bool
    is_known: bool


class Batch(TypedDict):
    """The largest batch that fits each GPU."""

    files: list[str]
    script: list[str] | None
    device: str
    caching: bool
    is_lower_bound: bool
    notes: list[str]
    batches: list[int]
    gpus: list[BatchOnGpu]
    curve: list[BatchPoint]
    most_tried: int
    of_epoch: bool


def largest_batch(small: Job, large: Job, gpus: Sequence[Gpu], sizes: tuple[int, int] | None = None) -> Batch:
    """What the command tells of two captures. CaptureError says why there is no answer."""
    for job in (small, large):
        check_whole(job)
    batches = Batches(small, large, sizes)
    if not batches.is_known:
        raise CaptureError(
            f"The arguments of the programs do not tell the batches, of which the second is "
            f"{float(batches.ratio):g} times the first: "
            "give them with --batches, such as --batches 4,8"
        )
    rows = [_row(batches, gpu) for gpu in gpus]
    about = [other.sentence for gpu in gpus if (other := other_kernels(large.capture, gpu))]
    if len(gpus) > 1:
        about = about_several(large.capture, gpus)
    (largest,) = {row["largest"] for row in rows} if len(rows) == 1 else (None,)
    known = (batches.small_size, batches.large_size)
    curve = [
        point(batch, batches.replay(batch, large.may_reserve(gpus[0])), batch in known)
        for batch in points_of(known, largest)
    ]
    return {
        "files": [small.file, large.file],
        "script": None,
        "device": large.device,
        "caching": large.caching,
        "is_lower_bound": large.is_lower_bound,
        "notes": [*notes_on(large), *filter(None, [batches.note]), *about],
        "batches": list(known),
        "gpus": rows,
        "curve": curve,
        "most_tried": MOST_TIMES * batches.large_size,
        "of_epoch": False,
    }


def check_whole(job: Job) -> None:
    if job.died and not job.whole_steps:
        raise CaptureError(
            f"{job.file}: the run ended in its first step, so what a step needs is not known. Capture two smaller "
            f"batches that fit, "
            "or predict the script:  modscope batch train.py -- --batch {}"
        )


def _row(batches: Batches, gpu: Gpu) -> BatchOnGpu:
    capacity = batches.large.may_reserve(gpu)
    largest = batches.largest(capacity)
    reserved = batches.replay(largest or 1).reserved
    is_far = largest is not None and largest > _FAR * batches.large_size
    made = _judged(batches.large, gpu, capacity, largest, reserved, is_far)
    if made["verdict"] == OPEN and made["largest_for_sure"] is not None:
        made["largest_for_sure"] = batches.largest(max(capacity - made["margin"], 0))
    return made


def _judged(job: Job, gpu: Gpu, capacity: int, largest: int | None, reserved: int, is_far: bool) -> BatchOnGpu:
    """The largest batch with the verdict on it; ``largest_for_sure`` is that of a verdict that is sure. ``reserved``:
    by the largest batch; if not even 1 fits, by that."""
    sure = certainty_of(gpu, job.capture, job.device, reserved, nccl_bytes(job.capture))
    verdict = judge(sure, capacity - reserved, capacity, largest is not None, 0, lambda other: reserved <= other)
    has_other_kernels = other_kernels(job.capture, gpu) is not None
    return {
        "gpu": gpu.name,
        "title": gpu.title,
        "capacity": capacity,
        "largest": largest,
        "reserved": reserved,
        "is_far": is_far,
        **verdict.as_json(),
        "largest_for_sure": None if has_other_kernels or is_far else largest,
        "has_other_kernels": has_other_kernels,
    }


def point(batch: int, outcome: Outcome, is_known: bool) -> BatchPoint:
    return {
        "batch": batch,
        "reserved": outcome.reserved,
        "allocated": outcome.allocated,
        "fits": outcome.fits_at_once,
        "is_known": is_known,
    }


def points_of(known: Iterable[int], largest: int | None) -> list[int]:
    """The batches of a curve: the known ones, and some up to the largest that fits and the next one."""
    quarters = [largest * part // 4 for part in (1, 2, 3, 4)] if largest else []
    beyond = [largest + 1] if largest else [1]
    return sorted({batch for batch in (*known, *quarters, *beyond) if batch > 0})


# ---- a script ----


def search(
    predict: Callable[[int], Job], gpu: Gpu, sizes: tuple[int, int], most_predictions: int, script: Sequence[str] = ()
) -> Batch:
    """What the command tells of a script. ``predict`` predicts it with a batch. Every batch that is shown was
    predicted. ``script``: with its arguments."""
    last: Job | None = None
    capacity = 0
    outcomes: dict[int, Outcome] = {}
    read: dict[int, str] = {}
    batch: int | None = sizes[0]
    while batch is not None and len(outcomes) < most_predictions:
        last = predict(batch)
        check_whole(last)
        capacity = last.may_reserve(gpu)
        outcomes[batch] = last.replay(capacity=capacity)
        if last.epoch is not None:
            read[batch] = describe_read(last.epoch.about())
        batch = sizes[1] if len(outcomes) < 2 else _next(outcomes, capacity, MOST_TIMES * sizes[1])
    assert last is not None
    largest = max((batch for batch, outcome in outcomes.items() if outcome.fits_at_once), default=None)
    reserved = outcomes[largest or min(outcomes)].reserved
    curve = [point(batch, outcomes[batch], True) for batch in sorted(outcomes)]
    made = _judged(last, gpu, capacity, largest, reserved, False)
    if made["verdict"] == OPEN:
        room = capacity - made["margin"]
        sure = (batch for batch, outcome in outcomes.items() if outcome.fits_at_once and outcome.reserved <= room)
        made["largest_for_sure"] = max(sure, default=None)
    return {
        "files": [],
        "script": list(script),
        "device": last.device,
        "caching": last.caching,
        "is_lower_bound": last.is_lower_bound,
        "notes": [*filter(None, [read.get(largest or min(outcomes))]), *notes_on(last)],
        "batches": list(sizes),
        "gpus": [made],
        "curve": curve,
        "most_tried": MOST_TIMES * sizes[1],
        "of_epoch": bool(read),
    }


def _next(outcomes: dict[int, Outcome], capacity: int, most: int) -> int | None:
    """The batch to predict next: the largest that fits by the line through two predictions, those on both sides of the
    capacity if there are such. None: the largest is known."""
    fitting = sorted(batch for batch, outcome in outcomes.items() if outcome.fits_at_once)
    others = sorted(batch for batch in outcomes if batch not in fitting)
    low = fitting[-1] if fitting else 0
    high = others[0] if others else min(_MOST_GROWTH * low, most) + 1
    if high - low <= 1:
        return None
    first, second = (low, high) if fitting and others else fitting[-2:] if fitting else others[:2]
    slope = (outcomes[second].reserved - outcomes[first].reserved) / (second - first)
    guess = first + (capacity - outcomes[first].reserved) / slope if slope > 0 else high if fitting else 1
    return int(min(max(guess, low + 1), high - 1))
