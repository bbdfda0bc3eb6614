"""``modscope calibrate``: measure on this machine's GPU what operators take, and write a table for ``modscope
predict``."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from modscope._cli.command import Command, Load, Parser, Report
from modscope._cli.options import add_force, add_output, add_steps, number
from modscope._read.own_files import TABLE
from modscope._read.types import Refused
from modscope._record.run import check_target
from modscope._show.output_file import check, create
from modscope._show.terminal import Screen, as_lines, say

if TYPE_CHECKING:
    from modscope._predict.calibrate_measure import Measuring, Meter
    from modscope._predict.calibrate_sweep import SweepCase
    from modscope._virtual.time.table import MeasuredOperator

_TABLE = "modscope-table.json.gz"
_ROUNDS = 4
_SWEEP_SECONDS = 600.0
_SECONDS_BETWEEN_SAVES = 30.0


class _Enough(BaseException):
    """The script has run as many steps as are measured, or as long as it may."""


def add_options(parser: Parser) -> None:
    output = f"the table's path; with .gz it is compressed (default: {_TABLE})"
    add_output(parser, output, "FILE", default=_TABLE)
    add_force(parser, "the table")
    add_steps(parser, 3)
    seconds = "stop after N seconds, and write what was measured"
    parser.add_argument("--seconds", type=number(1), metavar="N", help=seconds)


# ---- measuring ----


def sweep(
    measuring: Measuring, cases: Iterable[SweepCase], until: float, after_case: Callable[[], None] = lambda: None
) -> tuple[int, int, bool]:
    """Measure the cases until the time ``until``. Returns how many ran, how many failed, and whether none was left
    out."""
    ran = failed = 0
    for case in cases:
        if time.monotonic() > until:
            return ran, failed, False
        try:
            run = case.make()
            with measuring:
                for _ in range(_ROUNDS):
                    run()
            del run
            ran += 1
        # out of memory, or a type that the GPU has no kernel for
        except (RuntimeError, NotImplementedError, ValueError) as error:
            failed += 1
            say(f"{case.name} could not run: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        after_case()
    return ran, failed, True


def run_script(measuring: Measuring, target: list[str], steps: int) -> int:
    """Run a script in this process, and measure it until it has made ``steps`` optimizer steps. Returns how many it
    made."""
    import runpy

    from torch.optim.optimizer import register_optimizer_step_post_hook

    made = 0

    def count(*unused: Any) -> None:
        nonlocal made
        made += 1
        if made >= steps:
            raise _Enough

    handle = register_optimizer_step_post_hook(count)
    try:
        with _as_main(target), measuring:
            runpy.run_path(target[0], run_name="__main__")
    except _Enough:
        pass
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise Refused(f"{target[0]} ended with exit status {ended.code}, so no table is written") from None
    finally:
        handle.remove()
    return made


@contextlib.contextmanager
def _as_main(target: list[str]) -> Iterator[None]:
    argv, path = sys.argv, sys.path[:]
    sys.argv = list(target)
    sys.path.insert(0, os.path.dirname(os.path.abspath(target[0])))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _about() -> dict[str, Any]:
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


# ---- what is measured ----


def _check(arguments: Namespace) -> None:
    check(arguments.output, TABLE, arguments.force)
    if arguments.target:
        check_target(arguments.target)
    from modscope._torch import check_torch

    check_torch()
    import torch

    if not torch.cuda.is_available():
        raise Refused(
            "calibrate measures operators on a CUDA GPU, and torch finds none here. Run it on the machine whose "
            "GPU is to be predicted"
        )


def _write(arguments: Namespace, rows: list[MeasuredOperator]) -> tuple[dict[str, Any], int]:
    """Write a table, which replaces the one that was written before it. What it says of the GPU, and its bytes."""
    from modscope._virtual.time import table

    about = _about()
    data = table.encode(arguments.output, about, rows)
    with create(arguments.output, TABLE, arguments.force) as file:
        file.write(data)
    arguments.force = True
    return about, len(data)


def _measure(arguments: Namespace, meter: Meter) -> Measuring:
    from modscope._predict.calibrate_measure import Measuring

    began = time.monotonic()
    if not arguments.target:
        from modscope._predict.calibrate_sweep import cases

        measuring = Measuring(meter)
        saved = began

        def save() -> None:
            """Write what was measured so far from time to time, so that it is not lost if a kernel never ends."""
            nonlocal saved
            if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                rows = measuring.rows()
                _write(arguments, rows)
                say(f"{len(rows)} operators measured in {time.monotonic() - began:.0f} s; the sweep goes on")
                saved = time.monotonic()

        ran, failed, complete = sweep(measuring, cases(), began + (arguments.seconds or _SWEEP_SECONDS), save)
        say(
            f"measured {ran} cases; {failed} could not run"
            + ("" if complete else "; the time was over before the rest")
        )
        return measuring

    def check_time() -> None:
        is_over = arguments.seconds and time.monotonic() - began > arguments.seconds
        if is_over and threading.current_thread() is threading.main_thread():
            raise _Enough

    measuring = Measuring(meter, check_time)
    steps = run_script(measuring, arguments.target, arguments.steps)
    say(f"measured {steps} optimizer steps of {arguments.target[0]}")
    return measuring


# ---- the command ----


def report(arguments: Namespace, load: Load) -> Report:
    _check(arguments)
    # compiled functions are not made of the operators that are predicted
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    from modscope._predict.calibrate_measure import CudaMeter

    began = time.monotonic()
    meter = CudaMeter()
    try:
        rows = _measure(arguments, meter).rows()
    finally:
        meter.close()
    about, size = _write(arguments, rows)
    seconds = round(time.monotonic() - began, 3)
    return {**about, "output": arguments.output, "operators": len(rows), "seconds": seconds, "bytes": size}


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    wrote = (
        f"wrote {result['output']}: {result['operators']} operators of the {result['gpu']} in {result['seconds']:.0f} "
        f"s, {result['bytes'] / 1024:.0f} KiB. Use it:  modscope predict --table {shlex.quote(result['output'])} "
        f"train.py"
    )
    return as_lines([wrote], screen)


COMMAND = Command(
    ("calibrate -o h200.json.gz", "calibrate -o train.json.gz --steps 3 train.py --batch 8"),
    add_options,
    report,
    text,
    figures="what was written",
    takes="script or nothing",
    usage=("[options] [script.py [arguments]]",),
    about="It writes a table for modscope predict --table. Without a script, common operators are measured, in a few "
    "minutes. Everything after the script is passed to it.",
)
