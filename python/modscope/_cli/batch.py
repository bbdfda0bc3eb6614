"""``modscope batch``: the largest batch that fits a GPU, with what other batches reserve."""

from __future__ import annotations

from argparse import Namespace

from modscope._cli.command import Command, Load, Parser
from modscope._cli.options import (
    add_batches,
    add_device,
    add_epoch,
    add_gpus,
    add_prediction,
    check_epoch,
    check_no_ranks,
    check_ranks,
)
from modscope._fit import batch as _batch
from modscope._fit.batch import Batch
from modscope._fit.epoch_job import job_of
from modscope._fit.job import Job
from modscope._predict.capture_of_script import PredictedScript
from modscope._predict.options import records_of
from modscope._read.load import CaptureError
from modscope._read.script_arguments import script_words
from modscope._read.text import at_least, clean, gpu_label, rough_size, size
from modscope._show.terminal import Screen
from modscope._virtual.certainty import OPEN, Verdict, describe
from modscope._virtual.gpus import GPUS, Gpu

_PREDICTIONS = 8  # at most, of a script
_FIRST = (4, 8)
"""The batches with which a script is predicted first."""
_PLACE = "{}"
"""Stands for the batch in the arguments of a script."""


def add_options(parser: Parser) -> None:
    small = "a capture; or a script, which is predicted with several batches: {} in its arguments is the batch"
    parser.add_argument("file", metavar="SMALL", help=small)
    large = "a capture of the same program with a larger batch"
    parser.add_argument("other", metavar="LARGE", nargs="?", help=large)
    add_gpus(parser)
    add_batches(parser, "; of a script, those that are predicted first (default: 4,8)")
    add_device(parser)
    add_prediction(parser, of_captures="")
    add_epoch(parser, "and find the largest batch with which all of them fit")


def report(arguments: Namespace, load: Load) -> Batch:
    gpus: list[Gpu] = arguments.gpu or list(GPUS.values())
    check_epoch(arguments, bool(arguments.target))
    if arguments.target:
        return _of_script(arguments, gpus)
    check_no_ranks(arguments)
    if arguments.other is None:
        raise CaptureError(
            f"{arguments.file} is one capture: give captures of one program with a small and a larger batch, such "
            f"as 4 and 8. "
            "They can be predicted:  modscope predict --gpu h100 -o small.msc train.py --batch 4"
        )
    small, large = (Job(file, arguments.device) for file in (arguments.file, arguments.other))
    return _batch.largest_batch(small, large, gpus, arguments.batches)


def _of_script(arguments: Namespace, gpus: list[Gpu]) -> Batch:
    target: list[str] = arguments.target
    if not any(_PLACE in word for word in target[1:]):
        raise CaptureError(
            f"Write {_PLACE} for the batch in the arguments of the script:  modscope batch "
            f"{script_words(target[:1], '--gpu', 'rtx4090')} -- --batch {_PLACE}"
        )
    if len(gpus) != 1:
        raise CaptureError("A script is predicted several times for each GPU: give one, such as --gpu rtx4090")
    gpu = gpus[0]

    check_ranks(arguments)
    with PredictedScript(*records_of(arguments)) as script:

        def predict(batch: int) -> Job:
            words = [word.replace(_PLACE, str(batch)) for word in target]
            job = job_of(script, script.predict([gpu], f"batch {batch}", target=words))
            job.file = f"{script.name} with batch {batch}"
            return job

        return _batch.search(predict, gpu, arguments.batches or _FIRST, _PREDICTIONS, script.target)


# ---- as text ----


def text(result: Batch, screen: Screen, arguments: Namespace) -> list[str]:
    if len(result["gpus"]) > 1:
        out = [*_table_of_gpus(result, screen), ""]
    else:
        out = [*screen.wrap(_answer(result)), "", *_curve(result, screen), ""]
    for sentence in (*_open(result), _how(result), *result["notes"], *_far(result)):
        out += screen.wrap(sentence)
    return out


def _verb(result: Batch) -> str:
    return "reserves" if result["caching"] else "allocates"


def _answer(result: Batch) -> str:
    (row,) = result["gpus"]
    gpu = clean(gpu_label(row["title"]))
    room = f"of {size(row['capacity'])} that it may reserve"
    needs = at_least(result["is_lower_bound"], size(row["reserved"]))
    if row["largest"] is None:
        least = min(point["batch"] for point in result["curve"])
        return f"No batch fits {gpu}: with a batch of {least}, {result['device']} {_verb(result)} {needs}, {room}."
    if row["largest"] >= result["most_tried"]:
        return f"Every batch that was tried fits {gpu}, up to {row['largest']}."
    if result["script"] and not any(point["batch"] == row["largest"] + 1 for point in result["curve"]):
        return (
            f"A batch of {row['largest']} fits {gpu}, and a larger one may: {result['device']} {_verb(result)} "
            f"{needs} {room}."
        )
    return f"The largest batch that fits {gpu} is {row['largest']}: {result['device']} {_verb(result)} {needs} {room}."


def _curve(result: Batch, screen: Screen) -> list[str]:
    (row,) = result["gpus"]
    points = result["curve"]
    highest = max(row["capacity"], *(point["reserved"] for point in points))
    room = max(min(40, screen.width - 50), 10)
    rows = []
    for each in points:
        words = ["captured" if each["is_known"] and not result["script"] else ""]
        words += [
            "the largest that fits" if each["batch"] == row["largest"] else "" if each["fits"] else "does not fit"
        ]
        bar = screen.bar(each["reserved"] / highest, room)
        rows.append((str(each["batch"]), size(each["reserved"]), bar, ", ".join(filter(None, words))))
    return screen.table(("batch", "reserved" if result["caching"] else "allocated", "", ""), rows, left=[2])


def _table_of_gpus(result: Batch, screen: Screen) -> list[str]:
    rows = []
    for row in result["gpus"]:
        largest = (
            "none"
            if row["largest"] is None
            else f"{row['largest']} or more"
            if row["largest"] >= result["most_tried"]
            else str(row["largest"])
        )
        largest += " *" * row["has_other_kernels"]
        rows.append(
            (row["gpu"], rough_size(row["capacity"]), largest, rough_size(row["reserved"]) if row["largest"] else "")
        )
    return screen.table(
        ("GPU", "has", "largest batch", "which reserves" if result["caching"] else "which allocates"), rows, left=[0]
    )


def _how(result: Batch) -> str:
    small, large = result["batches"]
    if result["script"]:
        every = ", with every step of its epoch" if result["of_epoch"] else ""
        return f"Each of these batches was predicted{every}."
    return f"Other batches than {small} and {large} are interpolated linearly between both captures."


def _open(result: Batch) -> list[str]:
    """Up to which batch it is sure that it fits, where the largest one is too close to tell."""
    lines = {}
    for row in result["gpus"]:
        if row["verdict"] != OPEN:
            continue
        least = 1 if row["largest"] is None else row["largest"]
        sure = f"a batch of {row['largest_for_sure']} fits for sure" if row["largest_for_sure"] else "no batch is sure"
        found = Verdict(row["verdict"], row["margin"], row["why"])
        gpu, spare = clean(gpu_label(row["title"])), row["capacity"] - row["reserved"]
        lines[gpu] = f"On {gpu} {sure}; a batch of {least} is {describe(found, spare)}"
    return list(lines.values())


def _far(result: Batch) -> list[str]:
    if not any(row["is_far"] for row in result["gpus"]):
        return []
    return [
        "A batch more than four times the larger one captured may take other kernels with other workspaces: "
        "capture larger ones to be sure."
    ]


COMMAND = Command(
    ("batch small.msc large.msc --gpu rtx4090", "batch train.py --gpu rtx4090 -- --batch {}"),
    add_options,
    report,
    text,
    takes="script or captures",
    usage=("[options] SMALL LARGE", "[options] script.py [-- arguments]"),
    about="Of two captures, other batches are interpolated linearly. Options may stand before or after the captures or "
    "the script. What follows -- is the script's.",
)
