"""Whoever waits in a terminal for predictions sees which one runs, how many steps it has taken, and for how long."""

from __future__ import annotations

import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest
import warm_python
from predict_helpers import needs_virtual_gpu, predict, training

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

UNTIL_SEEN = """
    import os, sys, time
    for _ in range(2):
        step()
    while not os.path.exists("seen"):
        time.sleep(0.01)
    print("loss:", 1.5)
    print("two\\nlines", file=sys.stderr)
    print("part", end="", flush=True)
    time.sleep(0.6)
    print(" of a line")
    assert sys.stdout.write("") == 0 and sys.stdout.write("last\\n") == 5
    step()
"""


def run_in_terminal(folder: pathlib.Path, words: list[str], expected: str) -> str:
    """What a command shows. Its script goes on when what is expected was shown."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "150", "TERM": "xterm"}
    process = warm_python.Popen(
        [sys.executable, "-m", "modscope", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = ""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the terminal has no other end any more
            break
        if not data:
            break
        shown += data.decode()
        if re.search(expected, shown):
            (folder / "seen").touch()
    os.close(ours)
    assert process.wait(600) == 0, shown
    return shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["predict", "--gpu", "h100"], r"predicting train\.py: 2 of 3 steps, \d"),
        (["predict", "--gpu", "h100,a100"], r"predicting train\.py on .*\(1 of 2\): 2 of 3 steps, \d"),
        (
            ["predict", "--gpu", "h100", "--ranks", "2", "--all-ranks"],
            r"train\.py as 2 ranks: \d of 6 steps, 0 of 2 ended, \d",
        ),
        (["fit", "--gpu", "h100"], r"predicting train\.py \(on H100 80GB HBM3\): 2 of 3 steps, \d"),
    ],
)
def test_a_terminal_shows_a_line(tmp_path: pathlib.Path, words: list[str], expected: str) -> None:
    script = training(tmp_path, UNTIL_SEEN)
    shown = run_in_terminal(tmp_path, [*words, script], expected)
    assert re.search(expected, shown), shown
    assert shown.count("\n") < 40, "each line replaces the one before"
    last = shown.rindex("predicting train.py")
    assert "\r\x1b[K" in shown[last:], "the line vanishes"
    lines = [line.rpartition("\r\x1b[K")[2].rstrip("\r") for line in shown.split("\n")]
    printed = ["loss: 1.5", "two", "lines", "part of a line", "last"]
    if words[0] == "predict" and len(words) == 3 and "," not in words[2]:  # others do not know of a line's first part
        assert lines[: len(printed)] == printed, shown
    printed.remove("part of a line")
    assert [line for line in lines if line in printed] == printed, shown


def test_a_pipe_gets_no_progress(tmp_path: pathlib.Path) -> None:
    script = training(tmp_path, "for _ in range(3): step()\nimport time\ntime.sleep(0.7)")
    ran = predict(tmp_path, "--gpu", "h100", "--ranks", "2", "--all-ranks", script)
    assert ran.status == 0 and "predicting" not in ran.err and "ended" not in ran.err
