"""``modscope calibrate``: measure on this machine's GPU what operators take, and write a table for ``modscope predict``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modscope._calibrate_measure import Measuring, Meter
    from modscope._calibrate_sweep import Case

__all__ = ["main"]

_ROUNDS = 4
_SWEEP_SECONDS = 600.0
_SECONDS_BETWEEN_SAVES = 30.0


class _Enough(BaseException):
    """The script has run as many steps as are measured, or as long as it may."""


class _Refused(Exception):
    """Nothing can be measured: a sentence for the user."""


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: give 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="modscope calibrate",
        usage="modscope calibrate [options] [script.py [arguments]]",
        description="Measure on this machine's GPU what memory and time operators take, and write\n"
        "a table for modscope predict --table. Without a script, common operators are\nmeasured, in a few minutes.",
        epilog="Everything after the script is passed to it.\n\nExamples:\n  modscope calibrate -o h200.json.gz\n"
        "  modscope calibrate -o train.json.gz --steps 3 train.py --batch 8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    output = "the table's path; with .gz it is compressed (default: modscope-table.json.gz)"
    parser.add_argument("-o", "--output", metavar="FILE", default="modscope-table.json.gz", help=output)
    parser.add_argument("-f", "--force", action="store_true", help="overwrite the table if it exists")
    parser.add_argument(
        "--steps", type=_positive, default=3, metavar="N", help="stop the script after N optimizer steps; default: 3"
    )
    parser.add_argument(
        "--seconds", type=_positive, metavar="N", help="stop after N seconds, and write what was measured"
    )
    parser.add_argument("target", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


# ---- measuring ----


def _say(sentence: str) -> None:
    print(f"[modscope] {sentence}", file=sys.stderr, flush=True)


def sweep(
    measuring: Measuring, cases: Iterable[Case], until: float, after_case: Callable[[], None] = lambda: None
) -> tuple[int, int, bool]:
    """Measure the cases until the time ``until``. Returns how many ran, how many failed, and whether none was left out."""
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
        except (
            RuntimeError,
            NotImplementedError,
            ValueError,
        ) as error:  # out of memory, or a type that the GPU has no kernel for
            failed += 1
            _say(f"{case.name} could not run: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        after_case()
    return ran, failed, True


def run_script(measuring: Measuring, target: list[str], steps: int) -> int:
    """Run a script in this process, and measure it until it has made ``steps`` optimizer steps. Returns how many it made."""
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
            raise _Refused(f"{target[0]} ended with exit status {ended.code}, so no table is written") from None
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


# ---- the command ----


def _check(options: argparse.Namespace) -> None:
    if os.path.exists(options.output) and not options.force:
        raise _Refused(f"{options.output} exists already. Give another name with -o, or -f to overwrite it")
    folder = os.path.dirname(os.path.abspath(options.output))
    if not os.path.isdir(folder):
        raise _Refused(f"There is no folder {folder} to write the table in")
    if options.target and not os.path.isfile(options.target[0]):
        raise _Refused(f"There is no script {options.target[0]}")
    from modscope._torch_version import check_torch

    check_torch()
    import torch

    if not torch.cuda.is_available():
        raise _Refused(
            "calibrate measures operators on a CUDA GPU, and torch finds none here. Run it on the machine whose GPU is to be predicted"
        )


def _measure(options: argparse.Namespace, meter: Meter) -> Measuring:
    from modscope._calibrate_measure import Measuring
    from modscope._virtual import table

    began = time.monotonic()
    if not options.target:
        from modscope._calibrate_sweep import cases

        measuring = Measuring(meter)
        saved = began

        def save() -> None:
            """Write what was measured so far from time to time, so that it is not lost if a kernel never ends."""
            nonlocal saved
            if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                rows = measuring.rows()
                table.write(options.output, _about(), rows)
                _say(f"{len(rows)} operators measured in {time.monotonic() - began:.0f} s; the sweep goes on")
                saved = time.monotonic()

        ran, failed, complete = sweep(measuring, cases(), began + (options.seconds or _SWEEP_SECONDS), save)
        _say(
            f"measured {ran} cases; {failed} could not run"
            + ("" if complete else "; the time was over before the rest")
        )
        return measuring

    def check_time() -> None:
        is_over = options.seconds and time.monotonic() - began > options.seconds
        if is_over and threading.current_thread() is threading.main_thread():
            raise _Enough

    measuring = Measuring(meter, check_time)
    steps = run_script(measuring, options.target, options.steps)
    _say(f"measured {steps} optimizer steps of {options.target[0]}")
    return measuring


def _calibrate(options: argparse.Namespace) -> None:
    _check(options)
    os.environ.setdefault(
        "TORCHDYNAMO_DISABLE", "1"
    )  # compiled functions are not made of the operators that are predicted
    from modscope._calibrate_measure import CudaMeter
    from modscope._virtual import table

    began = time.monotonic()
    meter = CudaMeter()
    try:
        rows = _measure(options, meter).rows()
    finally:
        meter.close()
    about = _about()
    size = table.write(options.output, about, rows)
    _say(
        f"wrote {options.output}: {len(rows)} operators of the {about['gpu']} in {time.monotonic() - began:.0f} s, {size / 1024:.0f} KiB. "
        f"Use it:  modscope predict --table {options.output} train.py"
    )


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.target[:1] == ["--"]:
        del options.target[0]
    try:
        _calibrate(options)
    except (_Refused, ImportError, OSError) as error:
        print(f"modscope: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
