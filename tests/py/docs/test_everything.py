"""`make everything` runs all checks, whatever becomes of one of them, and says how each ended."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

PROJECT = pathlib.Path(__file__).parents[3]
CHECKS = """
.PHONY: good bad endless absent
good: ; @echo fine
bad: ; @echo "what is wrong"; exit 1
endless: ; @sleep 600
absent: ; @echo "== a tool: skipped, it is not installed"
"""


@pytest.mark.slow
def test_each_check_has_a_row_and_a_failure_stops_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "checks.mk").write_text(CHECKS)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    ran = subprocess.run(
        ["make", "everything", "CHECKS=bad endless absent good", "CHECK_SECONDS=3", f"LOGS={tmp_path}"],
        cwd=PROJECT,
        env={**environment, "MAKEFILES": str(tmp_path / "checks.mk")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    table = ran.stdout.split("\n\n")[-1].splitlines()
    rows = [line.rsplit(None, 1)[0].split(None, 1) for line in table]
    assert rows == [
        ["check", "result"],
        ["bad", "FAILED"],
        ["endless", "not done in 3 s"],
        ["absent", "ok, with skips"],
        ["good", "ok"],
    ]
    assert ran.returncode != 0 and "what is wrong" in ran.stdout
    assert (tmp_path / "everything" / "good.log").read_text() == "fine\n"
