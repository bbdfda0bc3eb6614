"""``modscope predict``: run a script on a virtual GPU, and say what the real one would have to reserve.

For one GPU this process becomes the script's, as ``modscope run`` does. For several, and for --check, it starts the
script's processes, and prints at their end."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Callable

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import page_address
from modscope._cli.options import (
    add_epoch,
    add_gpus,
    add_page,
    add_prediction,
    add_recording,
    amount,
    check_epoch,
    check_ranks,
    file_name,
    fraction,
    rank_count,
)
from modscope._predict import guard
from modscope._predict.epoch.report import PredictEpoch
from modscope._predict.options import records_of, with_environment
from modscope._predict.result import Predicted
from modscope._read.load import Capture
from modscope._read.own_files import PAGE
from modscope._record.run import check_target, start
from modscope._show.output_file import check, create
from modscope._show.terminal import Screen, as_lines, complain
from modscope._virtual.device.environment import allocator_settings
from modscope._virtual.time import SHIPPED_TABLES, table_path


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add_gpus(parser)
    add_prediction(parser)
    add("--all-ranks", action="store_true", help="predict each rank, where ranks differ, as in pipelines")
    reshard = "override fully_shard's reshard_after_forward: yes or no"
    add("--reshard", choices=("yes", "no"), help=reshard)
    over = "override fully_shard's mesh: groups of N ranks hold one copy of the model (HSDP)"
    add("--shard-over", type=rank_count, metavar="N", help=over)
    table = "measurements of a GPU's operators (modscope calibrate), or h200: ours"
    add("--table", type=_table, metavar="FILE", help=table)
    selected = "the fraction of a mask with unknown values that is selected (default: 0.5)"
    add("--selected", type=fraction, metavar="FRACTION", help=selected)
    unless = "end with status 3 if the job does not fit, or if that is not known"
    add("--fail-unless-fits", action="store_true", help=unless)
    above = "end with status 3 if the job reserves more than SIZE, such as 22GiB"
    add("--fail-above", type=amount, metavar="SIZE", help=above)
    add("--check", action="store_true", help="run the same steps on this machine's GPU afterwards, and print the error")
    row = "with --check: write the figures to a file that can be published: no names, arguments, paths or lines"
    add("--share", type=file_name, metavar="ROW", help=row)
    add_epoch(parser, "and say whether any of them runs out of memory", "--batches")
    add_page(parser, "draws the epoch; needs --epoch and one GPU")
    ranks = "a rank's has the rank in its name: x.rank3.msc for x.msc; a table of ranks writes captures where this is"
    add_recording(parser, f"{ranks} given, and it may be a folder")


def _table(text: str) -> str:
    path: str = table_path(text)
    if not text or not os.path.isfile(path):
        made = f"give a file that modscope calibrate wrote, or {', '.join(SHIPPED_TABLES)}"
        raise argparse.ArgumentTypeError(f"there is no table {text}: {made}")
    return path


# ---- what does not go together ----


def _check_allocator(arguments: Namespace) -> None:
    """The version and the allocator's settings must be ones that the model knows."""
    from modscope._capture import Allocator

    try:
        Allocator(arguments.torch, allocator_settings())
    except ValueError as error:
        arguments.error(f"--torch: {error}" if "version of torch" in str(error) else str(error))


_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "accelerate.commands.launch",
    "deepspeed",
    "mpirun",
)


def _launcher(arguments: Namespace) -> str:
    """The launcher of a job, if that was given instead of a script; "" otherwise."""
    target: list[str] = arguments.target
    name = target[1] if target[0] == "-m" else os.path.basename(target[0])
    return name if name in _LAUNCHERS else ""


def _check_ranks(arguments: Namespace) -> None:
    sizes = arguments.ranks or []
    if not sizes and (arguments.all_ranks or arguments.reshard or arguments.shard_over):
        arguments.error("--all-ranks, --reshard and --shard-over need --ranks, such as --ranks 64")
    if sizes and (launcher := _launcher(arguments)):
        arguments.error(
            f"with --ranks give the script itself, without {launcher}: each rank is simulated here, as in modscope "
            f"predict --ranks {sizes[0]} train.py"
        )
    if arguments.shard_over and any(size % arguments.shard_over for size in sizes):
        arguments.error(f"--shard-over {arguments.shard_over}: the number of ranks must be a multiple of it")
    check_ranks(arguments)
    if arguments.all_ranks and (len(sizes) > 1 or arguments.rank is not None):
        arguments.error("--all-ranks needs one number of --ranks, and no --rank")
    if sizes and arguments.check:
        arguments.error("--check runs the script on one GPU: leave --ranks out")
    if (len(sizes) > 1 or arguments.all_ranks) and (not arguments.gpu or len(arguments.gpu) > 1):
        arguments.error("a table of ranks needs one GPU, such as --gpu h100")
    if (len(sizes) > 1 or arguments.all_ranks) and arguments.force and not arguments.output:
        arguments.error(
            "-f overwrites captures, and a table of ranks writes them where -o is given: add -o NAME.msc, or -o FOLDER"
        )


def _check_several(arguments: Namespace) -> None:
    if arguments.share and not arguments.check:
        arguments.error("--share writes what --check finds: add --check, which needs a GPU, or leave --share out")
    if arguments.share and os.path.abspath(arguments.share) == os.path.abspath(arguments.output or ""):
        arguments.error(f"--share {arguments.share} is written otherwise: choose another name")
    several = not arguments.check and (arguments.gpu is None or len(arguments.gpu) > 1)
    if arguments.check and arguments.gpu and len(arguments.gpu) > 1:
        arguments.error("--check compares one GPU with the one of this machine: give one, or leave --gpu out")
    if several and (arguments.output or arguments.force):
        arguments.error(
            "-o and -f need one GPU, such as --gpu h100: for several, only the table is made, and no capture"
        )
    of_ranks = arguments.all_ranks or len(arguments.ranks or ()) > 1
    if (several or of_ranks or arguments.check) and arguments.target[0] == "-":
        arguments.error("a script that is read from stdin can be run once: give one GPU and one rank, without --check")


def _check_epoch(arguments: Namespace) -> None:
    check_epoch(arguments)
    if arguments.report and not arguments.epoch:
        arguments.error("--report draws an epoch: add --epoch, or give the capture to modscope report")
    if not arguments.epoch:
        return
    if arguments.report and len(arguments.gpu or ()) != 1:
        arguments.error("--report needs one GPU: give its name with --gpu")
    if arguments.check or arguments.all_ranks or len(arguments.ranks or ()) > 1:
        arguments.error("--epoch predicts one rank: leave --check, --all-ranks and further --ranks out")
    if arguments.output or (arguments.force and not arguments.report):
        arguments.error("--epoch makes no capture: leave -o and -f out")


# ---- the command ----


_RAN = {"ended": "stopped", "status": "0", "timed_out": None, "steps": 1}
"""A script whose epoch was predicted took steps, and was then stopped."""


def report(arguments: Namespace, load: Load) -> Predicted:
    """Predict the script; with one GPU, this does not return."""
    predicted = _predict(arguments)
    figures = predicted.figures or {}
    results = figures.get("gpus") or figures.get("ranks") or ([figures] if figures else [])
    if arguments.epoch:
        results = [{**_RAN, **row} for row in results]
    why = guard.why_stopped(records_of(arguments)[1], results)
    if (
        why is None
        and arguments.fail_unless_fits
        and not figures.get("is_whole_epoch", True)
        and not arguments.epoch_batches
    ):
        why = "Status 3: not all batches were read, so that it is not known whether the others fit."
    if why is None:
        return predicted
    text = predicted.text
    return predicted._replace(status=guard.STATUS, text=lambda screen: [*text(screen), *as_lines([why], screen)])


def _predict(arguments: Namespace) -> Predicted:
    _check_allocator(arguments)
    _check_ranks(arguments)
    _check_several(arguments)
    _check_epoch(arguments)
    of_ranks = arguments.all_ranks or len(arguments.ranks or ()) > 1
    if arguments.gpu and len(arguments.gpu) == 1 and not arguments.check and not of_ranks and not arguments.epoch:
        script, prediction = records_of(arguments)
        prediction = prediction._replace(gpus=[arguments.gpu[0].name])
        start(with_environment(script, prediction), prediction)
    check_target(arguments.target)
    if arguments.epoch:
        from modscope._predict.epoch import predict as epoch

        return epoch.predict(arguments, _page_of_epoch(arguments) if arguments.report else None)
    if of_ranks:
        from modscope._predict import several_ranks

        return several_ranks.predict(arguments)
    if arguments.check:
        from modscope._predict import check

        return check.check(arguments)
    from modscope._predict import several_gpus

    return several_gpus.predict(arguments)


def _page_of_epoch(arguments: Namespace) -> Callable[[PredictEpoch, Capture], None]:
    """Writes the page. An OSError now says that there is a file already."""
    output: str = arguments.report
    check(output, PAGE, arguments.force)

    def draw(figures: PredictEpoch, capture: Capture) -> None:
        from modscope._show.pages.epoch import page_of

        made = page_of(records_of(arguments)[0].program, capture, figures)
        for note in made.notes:
            complain(note)
        with create(output, PAGE, arguments.force) as file:
            file.write(made.html.encode())

    return draw


def text(predicted: Predicted, screen: Screen, arguments: Namespace) -> list[str]:
    if arguments.quiet and not arguments.check:
        return []
    address = page_address(arguments.report) if arguments.report and predicted.figures else []
    return [*predicted.text(screen), *address]


COMMAND = Command(
    (
        "predict --gpu rtx4090 train.py --batch 8",
        "predict --gpu all train.py",
        "predict --gpu 24GiB --json=fits.json train.py",
        "predict --gpu h100 --ranks 8,16,32,64 train.py",
        "predict --gpu h100 --fail-unless-fits train.py && sbatch job.sh",
    ),
    add_options,
    report,
    text,
    lambda predicted, arguments: predicted.figures,
    lambda predicted: predicted.status,
    figures="the result",
    takes="script",
    usage=("[options] script.py [arguments]", "[options] -m module [arguments]"),
    about="It says how much memory the GPU would have to reserve, and whether it has that much. No GPU is needed: "
    "nothing is computed on it, and what is on it is read as zeros. Everything after the script or the module is "
    "passed to it. The exit status is the script's own, 2 for wrong options, and 3 if --fail-unless-fits or "
    "--fail-above does not let the job through.",
)
