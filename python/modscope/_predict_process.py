"""Start the script's process and wait for it, for predictions that this process ends itself."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from modscope import _run
from modscope._predict_script import CAPTURE
from modscope._virtual.gpus import Gpu


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
    return wait(start(options, part, gpus, silent))


def start(options: argparse.Namespace, part: str, gpus: Sequence[Gpu], silent: bool) -> subprocess.Popen[Any]:
    """Start the script for its part, and do not wait."""
    words = command(options, gpus, "--part", part, "-o", os.path.join(part, CAPTURE))
    null = subprocess.DEVNULL
    return subprocess.Popen(words, stdin=null, stdout=null, stderr=null) if silent else subprocess.Popen(words)


def wait(process: subprocess.Popen[Any], *others: subprocess.Popen[Any]) -> int:
    """Wait for the script's process. If a signal ended it, this process ends in the same way. Signals are passed on, but
    not Ctrl-C in a terminal, which reaches the script from there; ``others`` get them too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    in_terminal = any(map(os.isatty, (0, 1, 2)))

    def pass_on(number: int, frame: object) -> None:
        if number == signal.SIGTERM or not in_terminal:
            for each in (process, *others):
                each.send_signal(number)

    for number in before:
        signal.signal(number, pass_on)
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status
