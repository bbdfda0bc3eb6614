"""The arguments of the commands that read captures."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from modscope._script_arguments import VALUED, add_options, batches_of

if TYPE_CHECKING:
    from modscope._virtual.gpus import Gpu

Subparsers = Callable[..., argparse.ArgumentParser]
"""``add_parser`` of argparse's subparsers."""

SCRIPT_OPTIONS = {
    "plan": (
        ("--gpu", "--budget", "-o", "--output", "--report", "--device", *VALUED),
        ("-f", "--force", "--greedy", "--json"),
    ),
    "batch": (("--gpu", "--batches", "--device", *VALUED), ("--json",)),
}
"""By command that takes a script: its options with and without a value, which may follow the script."""
_DEVICE = "default: the accelerator with the highest peak, else cpu"


# ---- values ----


def _moment(text: str) -> str:
    from modscope._load import parse_moment

    try:
        parse_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _number(text: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise argparse.ArgumentTypeError(f"must be a number, {least} or more, not {text!r}")
    return int(text)


def _positive(text: str) -> int:
    return _number(text, 1)


def _width(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 60 <= int(text) <= 400):
        raise argparse.ArgumentTypeError(f"must be a number from 60 to 400, not {text!r}")
    return int(text)


def _some_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _steps(text: str) -> tuple[int | None, int | None]:
    """The first and the last step of "3:7", "3:", ":7" or "3"."""
    low, colon, high = text.partition(":")
    wrong = argparse.ArgumentTypeError(f"must be A:B, A:, :B or A, such as 2:4, not {text!r}")
    try:
        first = _number(low) if low else None
        last = (_number(high) if high else None) if colon else first
    except argparse.ArgumentTypeError:
        raise wrong from None
    if first is None and last is None or first is not None and last is not None and first > last:
        raise wrong
    return first, last


def _format(text: str) -> str:
    from modscope._export import FORMATS

    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"There is no format {text!r}. The formats are: {', '.join(FORMATS)}")
    return text


def _bytes(text: str) -> int:
    from modscope._plan import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _gpu(text: str) -> Gpu:
    from modscope._virtual.gpus import find_gpu

    try:
        return find_gpu(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _gpus(text: str) -> list[Gpu]:
    from modscope._virtual.gpus import parse_gpus

    found = parse_gpus(text)
    if not found:
        raise argparse.ArgumentTypeError("it needs the name of a GPU, or all")
    return found


# ---- options that several commands have ----


def _add_capture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a capture")


def _add_moment(parser: argparse.ArgumentParser) -> None:
    moments = "peak (the default), oom, step:N or time:SECONDS; see modscope help moments"
    parser.add_argument("--at", type=_moment, default="peak", metavar="MOMENT", help=moments)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="D", help=f"a device, such as cuda:0; {_DEVICE}")


def _add_module(parser: argparse.ArgumentParser) -> None:
    only = "only this module and those in it, such as GPT.blocks.0; 'GPT.blocks.*.mlp' names several"
    parser.add_argument("--module", type=_some_text, metavar="M", help=only)


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=_number, default=20, metavar="N", help="how many rows; default: 20; 0 shows all")


def _add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON; see modscope help json")


def describe_unknown(known: argparse.Namespace, unknown: list[str]) -> str:
    """What to say of arguments that a command does not know: of captures, how many it reads and what to do."""
    captures = {"tree": 1, "flame": 1, "blocks": 1, "leaks": 1, "export": 1, "diff": 2}.get(known.command)
    if captures is None or any(word.startswith("-") for word in unknown):
        return f"unrecognized arguments: {' '.join(unknown)}"
    reads = "reads one capture" if captures == 1 else "compares two captures"
    often = "once for each of them" if captures == 1 else "for two of them"
    return f"{known.command} {reads}, not {captures + len(unknown)}: run it {often}. All ranks of a job are compared by:  modscope summary FILE FILE ..."


# ---- commands ----


def add_command(add_parser: Subparsers, name: str, about: str, *examples: str) -> argparse.ArgumentParser:
    """A command whose help begins with what it does, and ends with an example."""
    lines = ["Example:" if len(examples) == 1 else "Examples:", *(f"  modscope {example}" for example in examples)]
    parser = add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(error=parser.error)
    return parser


def add_commands(add_parser: Subparsers) -> None:
    for add in (_add_summary, _add_tree, _add_flame, _add_blocks, _add_diff, _add_leaks):
        _add_json(add(add_parser), "the exact figures")
    for add in (_add_report, _add_export):
        _add_json(add(add_parser), "what was written")
    _add_json(_add_batch(add_parser), "the exact figures")
    _add_json(_add_plan(add_parser), "the plan and its figures")


def _add_summary(add_parser: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(
        add_parser,
        "summary",
        "show a run on one screen: the peak, and which modules held the memory then",
        "summary run.msc",
        "summary rank0.msc rank1.msc",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a capture, or those of the ranks of one job")
    return parser


def _add_tree(add_parser: Subparsers) -> argparse.ArgumentParser:
    examples = "tree run.msc --at step:1", "tree run.msc --by category --depth 3"
    parser = add_command(add_parser, "tree", "show which modules hold the memory at a moment, as a tree", *examples)
    _add_capture(parser)
    _add_moment(parser)
    _add_device(parser)
    parser.add_argument(
        "--depth", type=_positive, metavar="N", help="how many levels; default: as many as fit 40 lines"
    )
    levels = "what the first level shows; default: module"
    parser.add_argument(
        "--by", choices=("module", "category", "kind", "line", "operator"), default="module", help=levels
    )
    _add_module(parser)
    parser.add_argument("--no-group", action="store_true", help="show equal modules one by one")
    every = "show every module: all levels, equal ones one by one, and those with less than 1%%"
    parser.add_argument("--all", action="store_true", help=every)
    return parser


def _add_flame(add_parser: Subparsers) -> argparse.ArgumentParser:
    examples = "flame run.msc --find attention", "flame run.msc --by line --folded"
    about = "draw the memory at a moment as a flame graph, by module and stack"
    parser = add_command(add_parser, "flame", about, *examples)
    _add_capture(parser)
    _add_moment(parser)
    _add_device(parser)
    order = "what the first rows show; default: module; layers: modules whose names differ only in numbers as one"
    parser.add_argument(
        "--by", choices=("module", "layers", "line", "operator", "category"), default="module", help=order
    )
    _add_module(parser)
    parser.add_argument(
        "--find",
        type=_some_text,
        metavar="TEXT",
        help="mark what has this text in its name, and say how many bytes it holds",
    )
    parser.add_argument("--depth", type=_positive, metavar="N", help="how many rows; default: all")
    parser.add_argument(
        "--width", type=_width, metavar="N", help="how many columns, 60 to 400; default: the terminal's"
    )
    parser.add_argument("--no-group", action="store_true", help="show equal modules one by one")
    parser.add_argument(
        "--folded", action="store_true", help="print each stack and its bytes on a line, as flamegraph.pl reads them"
    )
    return parser


def _add_blocks(add_parser: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(add_parser, "blocks", "show the largest blocks of memory at a moment", "blocks run.msc -n 50")
    _add_capture(parser)
    _add_moment(parser)
    _add_device(parser)
    _add_rows(parser)
    _add_module(parser)
    parser.add_argument("--no-group", action="store_true", help="show equal blocks one by one")
    return parser


def _add_diff(add_parser: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(add_parser, "diff", "show what grew between two captures", "diff before.msc after.msc")
    parser.add_argument("file", metavar="A", help="a capture")
    parser.add_argument("other", metavar="B", help="the capture to compare it with")
    _add_moment(parser)
    _add_device(parser)
    _add_rows(parser)
    parser.add_argument("--by", choices=("module", "line"), default="module", help="what is compared (default: module)")
    _add_module(parser)
    parser.add_argument("--no-group", action="store_true", help="show equal changes one by one")
    return parser


def _add_leaks(add_parser: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(add_parser, "leaks", "show which blocks survive step after step", "leaks run.msc")
    _add_capture(parser)
    parser.add_argument("--device", metavar="D", help="a device, such as cuda:0; default: all")
    return parser


def _add_report(add_parser: Subparsers) -> argparse.ArgumentParser:
    examples = "report run.msc -o run.html", "report rank0.msc rank1.msc --steps 2:4"
    parser = add_command(add_parser, "report", "write captures as a page for a browser", *examples)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a capture; those of the ranks of one job get a rank axis, others are side by side",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="the page; default: FILE's name with .html, in this folder"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the page if it exists")
    parser.add_argument(
        "--steps", type=_steps, metavar="A:B", help="only these steps, or A only; default: all that fit"
    )
    parser.add_argument(
        "--side-by-side",
        action="store_true",
        help="show every event of each rank, side by side, instead of a rank axis",
    )
    parser.add_argument("--no-source", action="store_true", help="put no source text of the program into the page")
    parser.add_argument(
        "--gpu", type=_gpu, metavar="GPU", help="also what would make it fit this GPU, as modscope fit says it"
    )
    return parser


def _add_export(add_parser: Subparsers) -> argparse.ArgumentParser:
    examples = "export run.msc -o run.pftrace", "export run.msc -o peak.csv --at peak"
    parser = add_command(add_parser, "export", "write a capture as a file that other programs open", *examples)
    formats = "perfetto, speedscope, torch-snapshot, csv or json; default: what OUT's extension stands for"
    extensions = ".pftrace, .perfetto-trace, .speedscope.json, .pickle, .csv, .json or .jsonl"
    _add_capture(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help=f"the file to write, with {extensions}; - is stdout"
    )
    parser.add_argument("--format", type=_format, metavar="F", help=formats)
    parser.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
    moments = "only this moment: peak, oom, step:N or time:SECONDS; not for perfetto"
    parser.add_argument("--at", type=_moment, metavar="MOMENT", help=moments)
    parser.add_argument("--device", metavar="D", help="a device, such as cuda:0; default: all")
    return parser


def _add_plan(add_parser: Subparsers) -> argparse.ArgumentParser:
    examples = (
        "plan run.msc --gpu rtx4090 -o plan.json",
        "plan run.msc --budget 22GiB",
        "plan train.py --gpu rtx4090 -- --batch 8",
    )
    parser = add_command(add_parser, "plan", "find which modules to checkpoint so that a run fits a budget", *examples)
    file = (
        "a capture; or a script, which is predicted, and predicted again with the plan; what follows -- is passed to it"
    )
    parser.add_argument("file", metavar="FILE", help=file)
    other = "of a run that died: a predicted capture of the same program, from which what is missing is taken"
    parser.add_argument("other", metavar="PREDICTED", nargs="?", help=other)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument(
        "--gpu", type=_gpu, metavar="GPU", help="a GPU by name, or its memory as 24GiB; its context is left free"
    )
    budget.add_argument("--budget", type=_bytes, metavar="BYTES", help="what may be reserved, such as 22GiB")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write the plan to this file, for --plan and modscope.apply"
    )
    parser.add_argument(
        "--report", metavar="PAGE", help="write a page for a browser that draws plans over the run's timeline"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the file, and the page, if they exist")
    parser.add_argument("--greedy", action="store_true", help="do not use HiGHS, even if it is installed")
    _add_device(parser)
    add_options(parser)
    return parser


def _add_batch(add_parser: Subparsers) -> argparse.ArgumentParser:
    examples = "batch small.msc large.msc --gpu rtx4090", "batch train.py --gpu rtx4090 -- --batch {}"
    parser = add_command(add_parser, "batch", "find the largest batch that fits a GPU", *examples)
    parser.add_argument(
        "file",
        metavar="SMALL",
        help="a capture; or a script, which is predicted with several batches: {} in its arguments is the batch",
    )
    parser.add_argument("other", metavar="LARGE", nargs="?", help="a capture of the same program with a larger batch")
    gpus = "a GPU by name, its memory as 24GiB, several with commas between them, or all (the default)"
    parser.add_argument("--gpu", type=_gpus, metavar="GPU", help=gpus)
    batches = "the batches of SMALL and LARGE, if their arguments do not tell them; of a script, those that are predicted first (default: 4,8)"
    parser.add_argument("--batches", type=batches_of, metavar="A,B", help=batches)
    _add_device(parser)
    add_options(parser)
    return parser
