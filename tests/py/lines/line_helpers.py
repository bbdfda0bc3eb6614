"""Programs of others under which code is run: `make extras` puts them into build/extras."""

import os
import pathlib
import subprocess
import sys

import pytest

EXTRAS = pathlib.Path(__file__).parents[3] / "build" / "extras"


def run_with_extra(package: str, source: str, *arguments: object) -> str:
    """Run a program in a process in which the package can be imported. Returns what it prints; skips without it."""
    if not (EXTRAS / package).is_dir():
        pytest.skip(f"{package} is not installed: make extras")
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(EXTRAS))))
    words = [sys.executable, "-c", source, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
