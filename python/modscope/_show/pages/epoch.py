"""What ``modscope predict --epoch`` says, for the page: what is reserved over the batches of the epoch, their shapes,
and the batch that runs out of memory."""

from __future__ import annotations

import os

from modscope._predict.epoch.report import EpochBin, EpochOnGpu, PredictEpoch
from modscope._predict.epoch.text import (
    describe_batch,
    describe_read,
    describe_shape,
    how_exact,
    verdict_parts,
    ways_out,
)
from modscope._predict.text import seconds
from modscope._read.load import Capture
from modscope._read.summary import Report
from modscope._read.text import clean, counted, gpu_label, size
from modscope._show.pages import Page
from modscope._show.pages.report import Source, page

_FAR = 2.5
"""A capacity that is more than so many times what is reserved would make the curves flat: it is not drawn."""


def page_of(program: str, capture: Capture, figures: PredictEpoch) -> Page:
    """The page of the steps that were predicted, with the epoch on one GPU."""
    (row,) = figures["gpus"]
    steps = f"{counted(capture.last_step, 'step')} of them predicted in {seconds(figures['seconds'])}"
    before, judged, after = verdict_parts(row, figures)
    verdict = [(clean(before), False), (clean(judged), True), (clean(after), False)]
    epoch = {
        "verdict": verdict,
        "lead": [],
        "facts": clean(f"{figures['batches']:,} batches · {steps} · torch {figures['torch']}"),
        "epoch": _panel(row, figures, capture.last_step),
    }
    return page([Source(os.path.basename(program) or program, capture, lambda window: {**epoch})])


def _panel(row: EpochOnGpu, figures: PredictEpoch, predicted: int) -> Report:
    failure = row["failure"]
    gpu = clean(gpu_label(row["title"]))
    is_drawn = row["may_reserve"] <= _FAR * row["reserved_peak"]
    has = f"what the {gpu} has for it: {size(row['may_reserve'])}{'' if is_drawn else ', above the picture'}"
    sentences = [
        describe_read(figures),
        *ways_out(row),
        *how_exact(figures),
        f"The timeline below is that of the {counted(predicted, 'step')} that were predicted.",
        *figures["notes"],
        *figures["script_notes"],
    ]
    return {
        "text": clean(" ".join(sentences)),
        "batches": figures["batches"],
        "capacity": row["may_reserve"] if is_drawn else None,
        "lines": [
            ["reserved", "reserved by the batches so far, if memory is unlimited"],
            ["allocated", "allocated at most in the batch's step"],
            ["capacity", clean(has)],
        ],
        "points": _points(figures),
        "curve": clean("".join(verdict_parts(row, figures))),
        "failure": failure and {"batch": failure["batch"], "text": clean(describe_batch(failure))},
        **_shapes(row, figures),
    }


def _points(figures: PredictEpoch) -> list[Report]:
    curve, period = figures["curve"], figures["batches_per_step"]
    ends = [point["batch"] for point in curve[1:]] + [figures["batches"]]
    return [
        {**point, "text": _at(point["batch"], max(end - 1, point["batch"]), period)} for point, end in zip(curve, ends)
    ]


def _at(first: int, last: int, period: int) -> str:
    """ "batches 100 to 119 (steps 101 to 120)" """
    step, until = first // period + 1, last // period + 1
    steps = f"step {step:,}" if step == until else f"steps {step:,} to {until:,}"
    return f"batch {first:,} ({steps})" if first == last else f"batches {first:,} to {last:,} ({steps})"


def _shapes(row: EpochOnGpu, figures: PredictEpoch) -> Report:
    """The bars of the distribution; none, where all batches have one size."""
    bins, at = figures["distribution"], row["failure"] or row["reserved_at"]
    elements = 1
    for dim in at["shape"]:
        elements *= dim
    what = "runs out of memory first" if row["failure"] else "needs most"
    unit = at["unit"] or "elements"
    return {
        "bins": [
            {
                "from": each["elements_from"],
                "to": each["elements_to"],
                "batches": each["batches"],
                "text": _bar(each),
                "decides": each["elements_from"] <= elements < each["elements_to"],
            }
            for each in bins
        ]
        if len(bins) > 1
        else [],
        "axis": f"{unit} of a batch",
        "shapes": clean(f"{describe_read(figures)} {describe_batch(at).capitalize()} {what}: {describe_shape(at)}."),
        "decides": clean(f"the one that {what}: {describe_shape(at)}"),
    }


def _bar(each: EpochBin) -> str:
    smallest, largest = describe_shape(each["smallest"]), describe_shape(each["largest"])
    count = "1 batch" if each["batches"] == 1 else f"{each['batches']:,} batches"
    return clean(f"{count} of {largest}" if smallest == largest else f"{count}: {smallest} to {largest}")
