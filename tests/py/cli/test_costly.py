"""Captures of one to two MB that are made to be costly: no command needs much memory for them, or writes much."""

from __future__ import annotations

import subprocess
import sys

import costly_captures
import pytest
from helpers import UNDER_ASAN

pytestmark = [pytest.mark.slow, pytest.mark.skipif(UNDER_ASAN, reason="memory under ASan is not the commands' own")]

MB = 1_000_000
MEMORY = 400 * MB
OUTPUT = 300 * MB
CPU_SECONDS = 120  # ends a command that would never end

TRIED = {
    "deep_names": [
        "summary",
        "tree",
        "tree --json",
        "flame",
        "flame --json",
        "diff",
        "report",
        "export --format csv --at peak",
    ],
    "branching_names": ["tree", "tree --json", "flame"],
    "numbered_names": ["tree", "blocks"],
    "many_names": ["tree", "flame", "report"],
    "long_chain": ["export --format torch-snapshot", "export --format perfetto"],
    "long_names": ["tree", "flame", "summary", "export --format json"],
    "long_name_positions": ["export --format csv", "report"],
    "jumping_thread": ["export --format perfetto"],
    "changing_phases": ["export --format perfetto"],
    "many_steps": ["leaks", "report"],
    "many_threads": ["export --format perfetto"],
    "many_blocks": ["blocks"],
    "many_key_frames": ["export --format perfetto"],
    "many_failures": ["export --format perfetto"],
}


def test_every_costly_capture_is_tried():
    assert TRIED.keys() == costly_captures.COSTLY.keys()


# Runs the command, and prints the most memory that it had. What wait4() tells includes the memory of the process that
# started it.
MEASURED = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
from modscope.__main__ import main
status = main(sys.argv[1:])
with open("/proc/self/status") as file:
    print(next(line for line in file if line.startswith("VmHWM")).split()[1], file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("name", TRIED)
def test_a_small_file_is_cheap(tmp_path, name):
    file, out = tmp_path / "costly.msc", tmp_path / "out"
    file.write_bytes(costly_captures.COSTLY[name]())
    assert file.stat().st_size < 2 * MB
    for command, *options in map(str.split, TRIED[name]):
        files = [str(file)] * (2 if command == "diff" else 1)
        output = ["-o", "-"] if command in ("export", "report") else []
        line = [sys.executable, "-c", MEASURED, command, *files, *options, *output]
        with out.open("wb") as stdout:
            ran = subprocess.run(line, stdout=stdout, stderr=subprocess.PIPE)
        assert ran.returncode == 0 and ran.stderr.strip().isdigit(), (line, ran.stderr)
        assert int(ran.stderr) * 1024 < MEMORY, line
        assert 0 < out.stat().st_size < OUTPUT, line
