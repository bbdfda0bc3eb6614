"""Start the script's processes and wait for them, for predictions that this process ends itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from modscope._predict.in_script import CAPTURE
from modscope._predict.options import PredictOptions, with_environment
from modscope._record import run as _run
from modscope._record.options import ScriptOptions

_POLL = 0.05  # seconds
Output = int | IO[bytes] | None
"""Where a process prints, as subprocess has it; None: where this one does."""


def for_part(
    script: ScriptOptions, prediction: PredictOptions, part: str, **more: Any
) -> tuple[ScriptOptions, PredictOptions]:
    """The script as it runs for a part (PredictOptions.part). ``more`` of the prediction is different."""
    os.makedirs(part, exist_ok=True)
    own = script._replace(output=os.path.join(part, CAPTURE), force=False, json="")
    return own, prediction._replace(part=os.path.abspath(part), **more)


def start(
    script: ScriptOptions,
    prediction: PredictOptions,
    *,
    silent: bool = False,
    out: Output = None,
    errors: Output = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[Any]:
    """Start the script's process, and do not wait. ``silent``: it reads and prints nothing, but what goes to
    ``errors``."""
    words = _run.command(with_environment(script, prediction), prediction)
    null = subprocess.DEVNULL
    if silent:
        return subprocess.Popen(words, stdin=null, stdout=null, stderr=errors or null, env=environment)
    return subprocess.Popen(words, stdout=out, stderr=errors, env=environment)


def wait(process: subprocess.Popen[Any], tick: Callable[[], None] = lambda: None) -> int:
    """Wait for the script's process, as wait_for_any does. Returns its status."""
    with signals_passed_on([process]):
        wait_for_any([process], tick)
    return int(process.returncode)


def wait_for_any(
    processes: Sequence[subprocess.Popen[Any]], tick: Callable[[], None], is_free: Callable[[], bool] | None = None
) -> subprocess.Popen[Any] | None:
    """The first one that has ended. If a signal ended it, the others are ended too, and then this process in the same
    way. ``tick`` is called several times a second meanwhile. None: ``is_free`` said that another one can be started.
    Enter signals_passed_on before the processes are started."""
    while (ended := next((process for process in processes if process.poll() is not None), None)) is None:
        if is_free is not None and is_free():
            return None
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
    """Signals are passed on to the processes, which may become more or fewer meanwhile, but not Ctrl-C in a terminal,
    which reaches them from there."""
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


def _end_alike(status: int) -> None:
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
