"""``modscope batch``: the largest batch that fits a GPU, and what other batches reserve. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from modscope._fit.capacity import nccl_bytes
from modscope._fit.job import Job, Outcome
from modscope._fit.text import notes_on
from modscope._fit.two_captures import MOST_TIMES, Batches
from modscope._read.load import CaptureError
from modscope._virtual.certainty import OPEN, about_several, certainty_of, judge, other_kernels
from modscope._virtual.gpus import Gpu

Report = dict[str, Any]
_FAR = 4
"""A batch that is more than so many times the larger capture's is far from what was seen."""
_MOST_GROWTH = 8
"""A script is predicted with a batch that is so many times the largest known one at most."""


def largest_batch(small: Job, large: Job, gpus: Sequence[Gpu], sizes: tuple[int, int] | None = None) -> Report:
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
    begin = beginning(large, known)
    begin["notes"] = [*begin["notes"], *filter(None, [batches.note]), *about]
    return {**begin, "gpus": rows, "curve": curve, "most_tried": MOST_TIMES * batches.large_size}


def check_whole(job: Job) -> None:
    if job.died and not job.whole_steps:
        raise CaptureError(
            f"{job.file}: the run ended in its first step, so what a step needs is not known. Capture two smaller "
            f"batches that fit, "
            "or predict the script:  modscope batch train.py -- --batch {}"
        )


def beginning(job: Job, sizes: tuple[int, int]) -> Report:
    return {
        "device": job.device,
        "caching": job.caching,
        "is_lower_bound": job.is_lower_bound,
        "notes": notes_on(job),
        "batches": list(sizes),
    }


def _row(batches: Batches, gpu: Gpu) -> Report:
    capacity = batches.large.may_reserve(gpu)
    largest = batches.largest(capacity)
    reserved = batches.replay(largest or 1).reserved
    made = row(gpu, capacity, largest, reserved, largest is not None and largest > _FAR * batches.large_size)
    judged = _judged(batches.large, gpu, made)
    if judged["verdict"] == OPEN:
        judged["largest_for_sure"] = batches.largest(max(capacity - judged["margin"], 0))
    return {**made, **judged}


def _judged(job: Job, gpu: Gpu, row: Report) -> Report:
    """The verdict on the largest batch, and the largest of which it is sure."""
    sure = certainty_of(gpu, job.capture, job.device, row["reserved"], nccl_bytes(job.capture))
    is_any, spare = row["largest"] is not None, row["capacity"] - row["reserved"]
    verdict = judge(sure, spare, row["capacity"], is_any, 0, lambda capacity: row["reserved"] <= capacity)
    return {
        **verdict.as_json(),
        "largest_for_sure": row["largest"],
        "has_other_kernels": other_kernels(job.capture, gpu) is not None,
    }


def row(gpu: Gpu, capacity: int, largest: int | None, reserved: int, is_far: bool) -> Report:
    """``reserved``: by the largest batch; if not even 1 fits, by that."""
    return {
        "gpu": gpu.name,
        "title": gpu.title,
        "capacity": capacity,
        "largest": largest,
        "reserved": reserved,
        "is_far": is_far,
    }


def point(batch: int, outcome: Outcome, is_known: bool) -> Report:
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


def search(predict: Callable[[int], Job], gpu: Gpu, sizes: tuple[int, int], most_predictions: int) -> Report:
    """What the command tells of a script. ``predict`` predicts it with a batch. Every batch that is shown was
    predicted."""
    last: Job | None = None
    capacity = 0
    outcomes: dict[int, Outcome] = {}
    batch: int | None = sizes[0]
    while batch is not None and len(outcomes) < most_predictions:
        last = predict(batch)
        check_whole(last)
        capacity = last.may_reserve(gpu)
        outcomes[batch] = last.replay(capacity=capacity)
        batch = sizes[1] if len(outcomes) < 2 else _next(outcomes, capacity, MOST_TIMES * sizes[1])
    assert last is not None
    largest = max((batch for batch, outcome in outcomes.items() if outcome.fits_at_once), default=None)
    reserved = outcomes[largest or min(outcomes)].reserved
    curve = [point(batch, outcomes[batch], True) for batch in sorted(outcomes)]
    most = MOST_TIMES * sizes[1]
    made = row(gpu, capacity, largest, reserved, False)
    judged = _judged(last, gpu, made)
    if judged["verdict"] == OPEN:
        room = capacity - judged["margin"]
        sure = (batch for batch, outcome in outcomes.items() if outcome.fits_at_once and outcome.reserved <= room)
        judged["largest_for_sure"] = max(sure, default=None)
    return {**beginning(last, sizes), "gpus": [{**made, **judged}], "curve": curve, "most_tried": most}


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
