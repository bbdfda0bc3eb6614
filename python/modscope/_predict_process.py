"""Start the script's processes and wait for them, for predictions that this process ends itself."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from modscope import _run
from modscope._predict_script import CAPTURE
from modscope._virtual.gpus import Gpu

_POLL = 0.05  # seconds


def command(options: argparse.Namespace, gpus: Sequence[Gpu], *more: str) -> list[str]:
    """``modscope predict`` of the same script on these GPUs."""
    words = [sys.executable, *_run.python_flags(), "-m", "modscope", "predict", *more]
    words += ["--steps", str(options.steps), "--seconds", str(options.seconds)]
    words += ["--selected", str(options.selected), "--stacks", str(options.stacks)]
    words += ["--gpu", ",".join(gpu.name for gpu in gpus)] if gpus else []
    words += ["--torch", options.torch] if options.torch else []
    words += ["--table", options.table] if options.table else []
    words += ["--plan", options.plan] if options.plan else []
    words += ["--ranks", ",".join(map(str, options.ranks))] if options.ranks else []
    words += ["--rank", str(options.rank)] if options.rank is not None else []
    words += ["--mail", options.mail] if options.mail else []
    words += ["--ranks-per-node", str(options.ranks_per_node)] if options.ranks_per_node else []
    words += ["--reshard", options.reshard] if options.reshard else []
    words += ["--shard-over", str(options.shard_over)] if options.shard_over else []
    return [*words, *["-m"] * options.module, "--", *options.target]


def run(options: argparse.Namespace, part: str, gpus: Sequence[Gpu], silent: bool) -> int:
    """Run the script for its part (_predict_script.Asked). Returns its status."""
    return wait(start(options, part, gpus, silent=silent))


def start(
    options: argparse.Namespace, part: str, gpus: Sequence[Gpu], *, silent: bool, errors: str = ""
) -> subprocess.Popen[Any]:
    """Start the script for its part, and do not wait. ``errors``: a file that gets what a silent one prints on stderr."""
    words = command(options, gpus, "--part", part, "-o", os.path.join(part, CAPTURE))
    if not silent:
        return subprocess.Popen(words)
    null = subprocess.DEVNULL
    with open(errors or os.devnull, "wb") as stderr:
        return subprocess.Popen(words, stdin=null, stdout=null, stderr=stderr)


def wait(process: subprocess.Popen[Any]) -> int:
    """Wait for the script's process. If a signal ended it, this process ends in the same way."""
    with signals_passed_on([process]):
        status = process.wait()
    return _end_alike(status)


def wait_for_any(processes: Sequence[subprocess.Popen[Any]], tick: Callable[[], None]) -> subprocess.Popen[Any]:
    """The first one that has ended. If a signal ended it, the others are ended too, and then this process in the same way. ``tick``
    is called several times a second meanwhile. Enter signals_passed_on before the processes are started."""
    while (ended := next((process for process in processes if process.poll() is not None), None)) is None:
        tick()
        time.sleep(_POLL)
    if ended.returncode < 0:
        others = [process for process in processes if process.poll() is None]
        for process in others:
            process.terminate()
        for process in others:
            process.wait()
    _end_alike(ended.returncode)
    return ended


@contextlib.contextmanager
def signals_passed_on(processes: Sequence[subprocess.Popen[Any]]) -> Iterator[None]:
    """Signals are passed on to the processes, which may become more or fewer meanwhile, but not Ctrl-C in a terminal, which reaches them
    from there."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    in_terminal = any(map(os.isatty, (0, 1, 2)))

    def pass_on(number: int, frame: object) -> None:
        if number == signal.SIGTERM or not in_terminal:
            for each in processes:
                each.send_signal(number)

    for number in before:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_alike(status: int) -> int:
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status
