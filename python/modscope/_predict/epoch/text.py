"""The lines that ``modscope predict --epoch`` prints. Needs no torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from modscope._predict.epoch.report import (
    EpochBatch,
    EpochCap,
    EpochFailure,
    EpochOnGpu,
    EpochReport,
    EpochShape,
    PredictEpoch,
)
from modscope._predict.result import verdict_of
from modscope._predict.text import seconds
from modscope._read.shapes import shape_text
from modscope._read.text import clean, counted, gpu_label, near_size, rough_size, size
from modscope._virtual.certainty import NOT, OPEN, Verdict, describe


def lines(figures: PredictEpoch, target: Sequence[str]) -> list[str]:
    told = [describe_read(figures)]
    for row in figures["gpus"]:
        told += ["".join(verdict_parts(row, figures)), *ways_out(row)]
    told += how_exact(figures)
    told += [clean(note) for note in (*figures["notes"], *figures["script_notes"])]
    told += _advice(figures, target)
    return told


def sentences(figures: EpochReport, row: EpochOnGpu) -> list[str]:
    """What was read and what comes of it on one GPU, for other commands."""
    at = row["failure"] or row["reserved_at"]
    if row["failure"] is None:
        which = f"Most is reserved by {describe_batch(at)}, {describe_shape(at)}{_fragments(row)}."
    else:
        first = f", the first of {row['failures']:,}" if row["failures"] > 1 else ""
        which = f"Memory would run out with {describe_batch(at)}{first}: {describe_shape(at)}."
    return [describe_read(figures), which, *how_exact(figures), *map(clean, figures["notes"])]


def describe_shape(of: EpochShape | EpochCap) -> str:
    return shape_text(of["shape"], of["unit"])


def describe_read(figures: EpochReport) -> str:
    count, shapes = figures["batches"], figures["shapes"]
    of = figures["batches_of_loader"]
    how_many = f"{count:,} batches" if count != 1 else "1 batch"
    if not figures["is_whole_epoch"]:
        how_many = f"the first {how_many}" + (f" of {of:,}" if of else "")
    if figures["loader"]:
        text = f"{how_many} of the DataLoader at {figures['loader']} were read in {seconds(figures['read_seconds'])}: "
    else:
        which = "" if figures["is_whole_epoch"] else "first "
        text = f"The script iterates no DataLoader. Its {which}{counted(count, 'step')} were predicted: "
    smallest, largest = figures["smallest"], figures["largest"]
    if smallest is None or largest is None:
        text += "it has none."
    elif shapes == 1:
        text += f"all of {describe_shape(largest)}."
    else:
        text += f"{shapes:,} shapes, {describe_shape(smallest)} to {describe_shape(largest)}."
    if figures["read_error"]:
        text += f" Then {'reading' if figures['loader'] else 'the script'} failed: {clean(figures['read_error'])}."
    elif not figures["is_whole_epoch"] and not figures["loader"]:
        text += " What follows them is not known (--steps, --seconds)."
    elif not figures["is_whole_epoch"]:
        text += " What follows them was not read (--epoch-batches, --seconds)."
    return text


# ---- one GPU ----


def verdict_parts(row: EpochOnGpu, figures: EpochReport) -> tuple[str, str, str]:
    """The verdict in a sentence, with what is before and after it."""
    return _fits(row, figures) if row["failure"] is None else _fails(row, row["failure"])


def ways_out(row: EpochOnGpu) -> list[str]:
    return [*(_cap(row) if row["failure"] else ()), *_expandable(row)]


def describe_batch(at: EpochBatch) -> str:
    return f"batch {at['batch']:,} (step {at['step']:,})"


def _fits(row: EpochOnGpu, figures: EpochReport) -> tuple[str, str, str]:
    gpu = gpu_label(row["title"])
    verdict = verdict_of(row)
    most = (
        f"{size(row['reserved_peak'])} are reserved at most, by {describe_batch(row['reserved_at'])}, "
        f"{describe_shape(row['reserved_at'])}{_fragments(row)}"
    )
    spare = row["may_reserve"] - row["reserved_peak"]
    seen = "" if figures["is_whole_epoch"] else f" that was {'read' if figures['loader'] else 'predicted'}"
    times = counted(row["retries"] or 0, "time")
    only = f"every batch{seen} fits, but only because the allocator gives memory back {times}"
    if verdict.answer == OPEN and spare < 0:
        return f"{gpu}: {only}: with more memory {most}. That is ", "too close to tell", _margin(verdict)
    if verdict.answer == OPEN:
        return f"{gpu}: {most}. ", f"That is {describe(verdict, spare)}", ""
    if spare < 0:
        return f"{gpu}: ", only, f": with more memory {most}."
    return f"{gpu}: ", f"every batch{seen} fits, with {rough_size(spare)} to spare", f": {most}."


def _margin(verdict: Verdict) -> str:
    return f", as it may be off by {near_size(verdict.margin)}: {verdict.why}"


def _fragments(row: EpochOnGpu) -> str:
    if not row["left_behind"]:
        return ""
    return f", {near_size(row['left_behind'])} of it fragments that batches of other shapes left behind"


def _fails(row: EpochOnGpu, at: EpochFailure) -> tuple[str, str, str]:
    gpu = gpu_label(row["title"])
    verdict = verdict_of(row)
    which = describe_batch(at)
    fails = f"{which[0].upper()}{which[1:]} would run out of memory"
    needs = (
        f": {describe_shape(at)} need {near_size(at['needs'])}, the {gpu} has {near_size(row['may_reserve'])} for it."
    )
    first = f" It is the first of {row['failures']:,}." if row["failures"] > 1 else ""
    if verdict.answer == OPEN:
        return f"{fails}{needs} That is ", "too close to tell", f"{_margin(verdict)}{first}"
    return "", fails, f"{needs}{first}"


def _cap(row: EpochOnGpu) -> list[str]:
    cap = row["cap"]
    if cap is None:
        return ["No shorter length makes the whole epoch fit: a smaller batch is needed."]
    what = describe_shape(cap) if cap["shape"] else f"{cap['length']} of {cap['value']:,}"
    left = f", {near_size(cap['left_behind'])} of it fragments that the shapes before left behind" * bool(
        cap["left_behind"]
    )
    return [f"Up to {what} fit. By then {size(cap['reserved_peak'])} are reserved{left}."]


def _expandable(row: EpochOnGpu) -> list[str]:
    other = row["expandable"]
    if row["failure"] is not None and other["fits"]:
        return [
            f"With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True every batch fits: "
            f"{size(other['reserved_peak'])} are reserved at most."
        ]
    if other["reserved_peak"] < row["reserved_peak"]:
        return [
            f"With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {size(other['reserved_peak'])} would be reserved "
            f"at most{', which is still too much' if row['failure'] is not None else ''}."
        ]
    return []


# ---- the whole ----


def how_exact(figures: EpochReport) -> list[str]:
    count = figures["predicted_shapes"]
    text = f"Steps of {counted(count, 'shape')} were predicted; those of the others follow from them"
    if figures["shapes"] <= count:
        return []
    if figures["inexact_blocks"]:
        part = 100 * figures["inexact_blocks"] / max(figures["blocks"], 1)
        return [f"{text}, {f'{part:.0f}' if part >= 1 else 'less than 1'} % of the sizes by interpolation."]
    return [f"{text}, each size exactly."]


def _advice(figures: PredictEpoch, target: Sequence[str]) -> list[str]:
    failed = next((row for row in figures["gpus"] if row["failure"] is not None), None)
    if failed is None or failed["failure"] is None or verdict_of(failed).answer not in (NOT, OPEN):
        return []
    longest = failed["failure"]["longest_sample"]
    sample = f"Sample {longest:,} of the dataset is the longest of that batch. " if longest is not None else ""
    cap = failed["cap"]
    first = f"Cap the length at {cap['value']:,}" if cap and cap["shape"] else "Make the batch smaller"
    command = clean(shlex.join(["modscope", "fit", "--epoch", "--gpu", failed["gpu"], *target]))
    return [f"{sample}{first}, or see what else would help:  {command}"]
