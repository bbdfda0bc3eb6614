"""Captures of one to two MB that are made to be costly: no command needs much memory for them, or writes much."""

from __future__ import annotations

import os
import resource
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
    "deep_names": ["summary", "tree", "tree --json", "flame", "flame --json", "diff", "report", "export --format csv --at peak"],
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


def limit_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


@pytest.mark.parametrize("name", TRIED)
def test_a_small_file_is_cheap(tmp_path, name):
    file, out = tmp_path / "costly.msc", tmp_path / "out"
    file.write_bytes(costly_captures.COSTLY[name]())
    assert file.stat().st_size < 2 * MB
    for command, *options in map(str.split, TRIED[name]):
        files = [str(file)] * (2 if command == "diff" else 1)
        output = ["-o", "-"] if command in ("export", "report") else []
        line = [sys.executable, "-m", "modscope", command, *files, *options, *output]
        with out.open("wb") as stdout:
            process = subprocess.Popen(line, stdout=stdout, stderr=subprocess.PIPE, preexec_fn=limit_time)
            assert process.stderr is not None
            said = process.stderr.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert (process.returncode, said) == (0, b""), line
        assert used.ru_maxrss * 1024 < MEMORY, line
        assert 0 < out.stat().st_size < OUTPUT, line
