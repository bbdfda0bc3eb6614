"""What the tests of the reading commands share: their captures, and running a command in a process of its own."""

import os
import subprocess
import sys
import unicodedata

from capture_helpers import Capture, train
from odd_captures import damaged, damaged_to_the_end, hostile, huge, long_names, lossy, nameless_devices, out_of_memory

CAPTURES = {
    "train": lambda: train(6).end(how="finished", status="0"),
    "leaky": lambda: train(6, blocks=12, leak=1_000_000).end(how="exception", error="ValueError: no\nmore", status="1"),
    "oom": lambda: out_of_memory().end(how="exception", error="OutOfMemoryError: " + "long " * 90, status="1"),
    "killed": lambda: train(2, device="cpu").killed(),
    "cut": lambda: train(9).killed()[:-100],
    "damaged": lambda: damaged(),
    "damaged_end": lambda: damaged_to_the_end(),
    "nameless": lambda: nameless_devices(),
    "lossy": lambda: lossy().end(how="finished"),
    "hostile": lambda: hostile().end(how="\x1b[2J", error="\x1b[2J\u202e"),
    "names": lambda: long_names().end(how="interrupted"),
    "empty": lambda: Capture().end(how="finished"),
    "huge": lambda: huge().end(how="stopped"),
}


def apart(*args: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "modscope", *args],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **env},
    )


def columns_of(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


COMMANDS = [
    "summary {}",
    "tree {}",
    "flame {}",
    "tree {} --by category --all --depth 9",
    "blocks {}",
    "leaks {}",
    "diff {} train.msc",
]
