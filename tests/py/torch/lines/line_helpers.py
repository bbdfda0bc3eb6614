"""What the tests of lines share: a comparison with Python's own stacks, and programs of others that `make extras` puts
into build/extras."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import traceback
from typing import Any

import modscope
import pytest
from modscope._trackers import mem_tracker

import torch

EXTRAS = pathlib.Path(__file__).parents[4] / "build" / "extras"


# ---- stacks ----

_STANDARD = os.path.realpath(sysconfig.get_paths()["stdlib"])


def is_own(file: str) -> bool:
    library = "site-packages" in file or file.startswith(
        ("<frozen", "<eval_with_key>", _STANDARD, sysconfig.get_paths()["stdlib"])
    )
    return not library


class Prober:
    """Makes blocks, and compares their stacks with Python's."""

    def __init__(self, tracker: modscope.MemTracker, depth: int = 64) -> None:
        self._ledger = mem_tracker.ledger_of(tracker)
        self._depth = depth
        self.limit: int | None = None  # how many frames are compared
        self.in_hook = False  # of backward: the innermost frame is the node
        self.probes = 0
        self.wrong: list[Any] = []

    def __call__(self, *ignored: Any) -> int:
        block, summary = torch.empty(300), traceback.extract_stack(limit=self.limit)  # both in this line
        expected = [(frame.filename, frame.lineno, frame.name) for frame in reversed(summary) if is_own(frame.filename)]
        self.compare(block, expected[: self._depth])
        return 1

    def compare(self, block: torch.Tensor, expected: list[tuple[str, int | None, str]]) -> None:
        stack = self._ledger.stack(block.data_ptr())
        read = [
            (file, line, function.rpartition(".")[2])
            for file, function, line, *_ in stack
            if file is not None or not self.in_hook
        ]
        self.probes += 1
        if (read[: len(expected)] if self.limit else read) != expected:
            self.wrong.append((read, expected))


# ---- programs of others ----


def need_extra(package: str) -> None:
    """Make the package importable here, or skip."""
    if not (EXTRAS / package).is_dir():
        pytest.skip(f"{package} is not installed: make extras")
    if str(EXTRAS) not in sys.path:
        sys.path.append(str(EXTRAS))


def run_with_extra(package: str, source: str, *arguments: object) -> str:
    """Run a program in a process in which the package can be imported. Returns what it prints; skips without it."""
    need_extra(package)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(EXTRAS))))
    words = [sys.executable, "-c", source, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
