"""``modscope run``: run a script as Python does, and record its memory.

This process replaces itself with ``python script.py`` (execve), so modscope has no frame on the script's stack, and
Python itself handles exceptions and the exit status. Before the script, Python imports _start/sitecustomize.py, which
starts the recording (_run_recording.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from modscope import _files, _started
from modscope._run_recording import Settings


class Refused(Exception):
    """The script cannot be run: a sentence for the user, and the exit status."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps: give 1 or more")
    return int(text)


def frames(text: str) -> int:
    if not text.isdecimal() or int(text) > 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of frames: give 0 to 64")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="modscope run",
        usage="modscope run [options] script.py [arguments]\n       modscope run [options] -m module [arguments]",
        description="Run a script as Python does, and record what happens to its PyTorch memory.",
        epilog="Everything after the script or the module is passed to it.\n\nExample:\n  modscope run -o run.msc train.py --epochs 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the capture's path (default: modscope-<script>.<pid>.msc in this folder; of a rank: modscope-<script>.rank<N>.msc)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite the capture if it exists")
    parser.add_argument(
        "--steps", type=count, metavar="N", help="stop the script after N optimizer steps, with exit status 0"
    )
    parser.add_argument(
        "--plan", metavar="PLAN", help="checkpoint the modules that a plan names; see modscope help plan"
    )
    parser.add_argument(
        "--stacks",
        type=frames,
        default=1,
        metavar="N",
        help="keep N of the script's own Python frames for each block (default: 1, its line; 0: none)",
    )
    parser.add_argument("--no-capture", action="store_true", help="write no capture, only print the peak")
    parser.add_argument("--follow-fork", action="store_true", help="write a capture for each forked child too")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing at the end unless there was an error")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("target", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse_with_target(parser: argparse.ArgumentParser, arguments: list[str], command: str) -> argparse.Namespace:
    """Options, then in ``target`` the script or module and its arguments, which must be given."""
    options = parser.parse_args(arguments)
    if options.target[:1] == ["--"]:
        del options.target[0]
    if not options.target:
        parser.error(f"no script is given. Use: modscope {command} script.py, or modscope {command} -m module")
    return options


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = parse_with_target(parser, arguments, "run")
    if options.no_capture and (options.output or options.force or options.follow_fork):
        parser.error("--no-capture writes no file, so it cannot be combined with -o, -f or --follow-fork")
    if options.output == "":
        parser.error("-o needs the name of a file")
    check_plan(parser, options.plan)
    return options


def check_plan(parser: argparse.ArgumentParser, path: str | None) -> None:
    """Report a plan that cannot be read before the script is run."""
    if path is None:
        return
    from modscope._plan_file import PlanError, load_plan

    try:
        load_plan(path)
    except PlanError as error:
        parser.error(f"--plan: {error}")
    except OSError as error:
        parser.error(f"--plan {path}: {error.strerror}")


# ---- the script ----


def check_target(options: argparse.Namespace) -> None:
    """Raise Refused where Python could not run the script."""
    if not options.module and options.target[0] != "-":
        _check_script(options.target[0])


def _check_script(path: str) -> None:
    """Raise Refused, with Python's own exit status, where Python could not run the script."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            if not any(os.path.exists(os.path.join(path, f"__main__.{suffix}")) for suffix in ("py", "pyc")):
                raise Refused(f"{path} is a folder without a __main__.py, so it cannot be run", 1)
        elif stat.S_ISREG(mode):
            with open(path, "rb") as file:
                if not _may_be_python(path, file.read(4096)):
                    raise Refused(f"{path} is not a Python script", 1)
    except FileNotFoundError:
        raise Refused(f"There is no script {path}", 2) from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read: {getattr(error, 'strerror', error)}", 2) from None


def _may_be_python(path: str, head: bytes) -> bool:
    if b"\0" not in head or head.startswith(importlib.util.MAGIC_NUMBER) or path.endswith(".pyc"):
        return True
    import zipfile

    return zipfile.is_zipfile(path)


def stem(options: argparse.Namespace) -> str:
    target: str = options.target[0]
    if options.module:
        return target
    return "stdin" if target == "-" else os.path.splitext(os.path.basename(os.path.abspath(target)))[0]


# ---- replacing this process ----


def python_flags() -> list[str]:
    """Python's options before ``-m modscope``. They apply to the script."""
    head = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    return head[:-2] if head[-2:] == ["-m", "modscope"] else []


def _check_python(flags: list[str]) -> None:
    if not sys.executable:
        raise Refused(
            "The path of the Python interpreter is unknown (sys.executable is empty), so the script cannot be run", 1
        )
    if flags and (sys.flags.ignore_environment or sys.flags.no_site):
        raise Refused("modscope cannot record a script under python -I, -E or -S. Run it without these options", 2)
    if os.pathsep in _started.START:
        raise Refused(
            f"modscope is installed in {_started.START}. Python cannot import from a path with a {os.pathsep!r}: install it elsewhere",
            1,
        )


def _settings(options: argparse.Namespace, prediction: Sequence[Any]) -> Settings:
    """Creates the capture's file. OSError if it cannot be created: the script is not run then."""
    name = _files.name_for(options.output, stem(options))
    shown, file = "", None
    if not options.no_capture:
        shown, file = _files.prepare_for_run(name, bool(options.output), options.force, "-f")
        file = file.with_absolute_names()
    captures = _started.new_list()
    return Settings(
        program=options.target[0],
        arguments=len(options.target) - 1,
        shown=shown,
        file=list(file) if file else [],
        children=[os.path.abspath(name.root), name.suffix] if options.follow_fork else [],
        steps=options.steps or 0,
        quiet=options.quiet,
        pythonpath=os.environ.get("PYTHONPATH"),
        started=[os.getcwd(), options.output or "", stem(options)] if shown else [],
        force=options.force,
        began=time.time(),
        captures=list(captures) if captures else [],
        prediction=list(prediction),
        plan=os.path.abspath(options.plan) if options.plan else "",
        stacks=options.stacks,
    )


def _replace_process(command: list[str], settings: Settings) -> NoReturn:
    path = os.pathsep.join(filter(None, [_started.START, settings.pythonpath]))
    file = settings.new_file()
    for fd in settings.descriptors():
        os.set_inheritable(fd, True)
    try:
        os.execve(
            sys.executable, [sys.executable, *command], {**os.environ, **settings.to_environment(), "PYTHONPATH": path}
        )
    except OSError as error:
        if file:
            file.discard()
        raise Refused(f"Python cannot be started: {error.strerror}", 1) from None


def start(options: argparse.Namespace, prediction: Sequence[Any] = ()) -> int:
    """Run the script. Returns an exit status if it cannot be run; otherwise does not return. ``prediction``: what
    ``modscope predict`` was asked, as _predict_script.Asked has it."""
    try:
        flags = python_flags()
        _check_python(flags)
        check_target(options)
        _replace_process([*flags, *["-m"] * options.module, *options.target], _settings(options, prediction))
    except Refused as refused:
        print(f"modscope: {refused}", file=sys.stderr)
        return refused.status
    except OSError as error:
        print(f"modscope: {error}", file=sys.stderr)
        return 1


def main(arguments: list[str]) -> int:
    """Returns an exit status if the script cannot be run; otherwise does not return."""
    return start(_parse(arguments))
