"""``modscope predict``: run a script on a virtual GPU, and say what the real one would have to reserve.

For one GPU this process replaces itself with the script's, as ``modscope run`` does. For several, and for --check, it
starts the script's processes, and prints at their end.
"""

from __future__ import annotations

import argparse
import os
import sys

from modscope import _ranks, _run
from modscope._predict_script import Asked
from modscope._virtual.environment import allocator_settings
from modscope._virtual.gpus import GPUS, parse_gpus
from modscope._virtual.network import RANKS_PER_NODE
from modscope._virtual.shipped import SHIPPED_TABLES, table_path

_STEPS, _SECONDS, _SELECTED = 3, 60.0, 0.5


# ---- arguments ----


def parse_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds: give 60, or 0 for no limit")
    return value


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction: give a number from 0 to 1, such as 0.15")
    return value


def _known_gpus() -> str:
    import textwrap

    return textwrap.fill(f"GPUs: {', '.join(GPUS)}", 76, subsequent_indent="      ", break_on_hyphens=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="modscope predict",
        usage="modscope predict [options] script.py [arguments]\n       modscope predict [options] -m module [arguments]",
        description="Run a script on a virtual GPU, and say how much memory the real one would\n"
        "have to reserve, and whether it has that much. No GPU is needed: nothing is\n"
        "computed on it, and what is on it is read as zeros.",
        epilog="Everything after the script or the module is passed to it.\n\n"
        f"{_known_gpus()}\n\n"
        "Examples:\n  modscope predict --gpu rtx4090 train.py --batch 8\n  modscope predict --gpu all train.py\n"
        "  modscope predict --gpu 24GiB --json fits.json train.py\n"
        "  modscope predict --gpu h100 --ranks 8,16,32,64 train.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    gpu = "a GPU by name, its memory as 24GiB, several with commas between them, or all (the default)"
    add("--gpu", type=parse_gpus, metavar="GPU", help=gpu)
    add(
        "--steps",
        type=_run.count,
        default=_STEPS,
        metavar="N",
        help="stop the script after N optimizer steps (default: 3)",
    )
    add(
        "--seconds",
        type=parse_seconds,
        default=_SECONDS,
        metavar="S",
        help="stop the script after S seconds (default: 60; 0: never)",
    )
    add("--torch", metavar="VERSION", help="the torch whose rules apply, such as 2.11 (default: the installed one)")
    add("--plan", metavar="PLAN", help="checkpoint the modules that a plan names; see modscope help plan")
    stacks = "keep N of the script's own Python frames for each block (default: 1, its line; 0: none)"
    add("--stacks", type=_run.frames, default=1, metavar="N", help=stacks)
    add("--json", metavar="OUT", help="write the result to a file as JSON; see modscope help predictions")
    add("--table", metavar="FILE", help="measurements of a GPU's operators (modscope calibrate), or h200: ours")
    selected = "of a mask with unknown values, this fraction of the elements is selected (default: 0.5)"
    add("--selected", type=_fraction, default=_SELECTED, metavar="FRACTION", help=selected)
    ranks = "imagine so many ranks: the script's process groups have them; several with commas give a table"
    add("--ranks", type=_ranks.parse_sizes, metavar="N", help=ranks)
    add("--rank", type=_ranks.parse_rank, metavar="R", help="which of them the script is (default: 0)")
    add("--all-ranks", action="store_true", help="predict each of them, where they differ, as in pipelines")
    add("--ranks-per-node", type=_ranks.parse_count, metavar="N", help="how many of them share a node (default: 8)")
    reshard = "override fully_shard's reshard_after_forward: yes or no"
    add("--reshard", choices=("yes", "no"), help=reshard)
    over = "override fully_shard's mesh: groups of N ranks hold one copy of the model (HSDP)"
    add("--shard-over", type=_ranks.parse_count, metavar="N", help=over)
    add("--check", action="store_true", help="run the same steps on this machine's GPU afterwards, and print the error")
    output = "the capture's path (default: modscope-<script>.<pid>.msc in this folder). A rank's has the rank in its name: x.rank3.msc for x.msc. A table of ranks writes captures where this is given; it may be a folder"
    add("-o", "--output", metavar="FILE", help=output)
    add("-f", "--force", action="store_true", help="overwrite the capture if it exists")
    add("-q", "--quiet", action="store_true", help="print nothing at the end unless there was an error")
    add("-m", dest="module", action="store_true", help="run a module, as python -m does")
    add("--part", help=argparse.SUPPRESS)  # for the processes that this one starts: see _predict_script.Asked
    add("--mail", help=argparse.SUPPRESS)
    add("--real", action="store_true", help=argparse.SUPPRESS)
    add("target", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = _run.parse_with_target(parser, arguments, "predict")
    if options.gpu == []:
        parser.error("--gpu needs the name of a GPU, or all")
    for option in ("output", "json", "table"):
        if getattr(options, option) == "":
            parser.error(f"--{option} needs the name of a file")
    if options.table and not os.path.isfile(table_path(options.table)):
        parser.error(
            f"there is no table {options.table}: give a file that modscope calibrate wrote, or {', '.join(SHIPPED_TABLES)}"
        )
    folder = os.path.dirname(os.path.abspath(options.json)) if options.json else "."
    if options.json and (os.path.isdir(options.json) or not os.path.isdir(folder)):
        parser.error(f"--json {options.json}: it is a folder, or its folder does not exist")
    if options.json and os.path.exists(options.json):
        read = [path for path in (*options.target, options.plan, options.table) if path and os.path.exists(path)]
        if any(os.path.samefile(options.json, path) for path in read):
            parser.error(f"--json {options.json} is a file that is read: choose another name")
    _check_allocator(parser, options.torch)
    _check_ranks(parser, options)
    _check_several(parser, options)
    _run.check_plan(parser, options.plan)
    options.no_capture = options.follow_fork = False
    return options


def _check_allocator(parser: argparse.ArgumentParser, version: str | None) -> None:
    """The version and the allocator's settings must be ones that the model knows."""
    from modscope._capture import Allocator

    try:
        Allocator(version, allocator_settings())
    except ValueError as error:
        parser.error(f"--torch: {error}" if "version of torch" in str(error) else str(error))


_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "accelerate.commands.launch",
    "deepspeed",
    "mpirun",
)


def _launcher(options: argparse.Namespace) -> str:
    """The launcher of a job, if that was given instead of a script; "" otherwise."""
    name: str = options.target[0] if options.module else os.path.basename(options.target[0])
    return name if name in _LAUNCHERS else ""


def _check_ranks(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    sizes = options.ranks or []
    if not sizes and (options.rank is not None or options.all_ranks or options.ranks_per_node):
        parser.error("--rank, --all-ranks and --ranks-per-node need --ranks, such as --ranks 64")
    if not sizes and (options.reshard or options.shard_over):
        parser.error("--reshard and --shard-over need --ranks, such as --ranks 64")
    if sizes and (launcher := _launcher(options)):
        parser.error(
            f"with --ranks give the script itself, without {launcher}: each rank is imagined here, as in modscope predict --ranks {sizes[0]} train.py"
        )
    if options.shard_over and any(size % options.shard_over for size in sizes):
        parser.error(f"--shard-over {options.shard_over}: the number of ranks must be a multiple of it")
    if options.rank is not None and options.rank >= min(sizes):
        parser.error(f"--rank {options.rank}: of {min(sizes)} ranks the last one is {min(sizes) - 1}")
    if options.all_ranks and (len(sizes) > 1 or options.rank is not None):
        parser.error("--all-ranks needs one number of --ranks, and no --rank")
    if sizes and options.check:
        parser.error("--check runs the script on one GPU: leave --ranks out")
    if (len(sizes) > 1 or options.all_ranks) and (not options.gpu or len(options.gpu) > 1):
        parser.error("a table of ranks needs one GPU, such as --gpu h100")
    if (len(sizes) > 1 or options.all_ranks) and options.force and not options.output:
        parser.error(
            "-f overwrites captures, and a table of ranks writes them where -o is given: add -o NAME.msc, or -o FOLDER"
        )


def _check_several(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    several = not options.check and (options.gpu is None or len(options.gpu) > 1) and not options.part
    if options.check and options.gpu and len(options.gpu) > 1:
        parser.error("--check compares one GPU with the one of this machine: give one, or leave --gpu out")
    if several and (options.output or options.force):
        parser.error("-o and -f need one GPU, such as --gpu h100: for several, only the table is made, and no capture")
    of_ranks = options.all_ranks or len(options.ranks or ()) > 1
    if (several or of_ranks or options.check) and options.target[0] == "-" and not options.module:
        parser.error("a script that is read from stdin can be run once: give one GPU and one rank, without --check")


# ---- one GPU ----


def asked_of(options: argparse.Namespace) -> Asked:
    return Asked(
        gpu=options.gpu[0].name if options.gpu else "h100",
        torch=options.torch or "",
        seconds=options.seconds,
        table=table_path(options.table) if options.table else "",
        json=os.path.abspath(options.json) if options.json else "",
        part=os.path.abspath(options.part) if options.part else "",
        also=[gpu.name for gpu in options.gpu or ()],
        selected=options.selected,
        real=options.real,
        ranks=options.ranks[0] if options.ranks else 0,
        rank=options.rank or 0,
        per_node=options.ranks_per_node or RANKS_PER_NODE,
        mail=options.mail or "",
        reshard=options.reshard or "",
        shard_over=options.shard_over or 0,
    )


def main(arguments: list[str]) -> int:
    """Returns an exit status if the script cannot be run or was run by another process; otherwise does not return."""
    options = _parse(arguments)
    if options.json and os.path.isfile(options.json):
        os.unlink(options.json)  # a script that fails must not leave the result of an earlier one
    of_ranks = options.all_ranks or len(options.ranks or ()) > 1
    if options.part or (options.gpu and len(options.gpu) == 1 and not options.check and not of_ranks):
        asked = asked_of(options)
        if asked.ranks:
            _ranks.set_environment(asked.rank, asked.ranks, asked.per_node)
        return _run.start(options, asked)
    try:
        _run.check_target(options)
    except _run.Refused as refused:
        print(f"modscope: {refused}", file=sys.stderr)
        return refused.status
    if of_ranks:
        from modscope import _predict_ranks

        return _predict_ranks.predict(options)
    from modscope import _predict_table

    if options.check:
        from modscope import _predict_check

        return _predict_check.check(options)
    return _predict_table.predict(options)
