"""Where modscope is built without what tracks programs (_native, on all systems but Linux), captures are read."""

import pathlib
import shutil
import subprocess
import sys

import modscope

RUN = pathlib.Path(__file__).parents[2] / "corpus" / "runs" / "gpt-0.1.0.msc"

PROGRAM = """
import sys
import modscope
from modscope.__main__ import main

run = sys.argv[1]
for words in (
    ["summary", run], ["tree", run], ["blocks", run], ["leaks", run], ["flame", run], ["diff", run, run],
    ["report", run, "-o", "page.html"], ["export", run, "--format", "csv", "-o", "run.csv"],
    ["fit", run, "--gpu", "t4"], ["plan", run, "--budget", "100MiB", "-o", "plan.json"],
):
    assert main(words) == 0, words
assert "torch" not in sys.modules
print("read", modscope.load(run).optimizer_steps)
assert main(["doctor"]) == 1
try:
    modscope.MemTracker
except ImportError as error:
    print(error)
"""


def test_every_command_that_reads_a_capture_works_without_the_tracker(tmp_path):
    package = pathlib.Path(modscope.__file__).parent
    shutil.copytree(package, tmp_path / "modscope", ignore=shutil.ignore_patterns("_native*", "__pycache__"))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, RUN], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": "."}
    )
    assert ran.returncode == 0, ran.stderr
    *_, read, said = ran.stdout.splitlines()
    assert read == f"read {modscope.load(RUN).optimizer_steps}"
    assert said.startswith("modscope only reads captures on ") and said.endswith("copy the captures here")
    assert ran.stderr == f"modscope: {said}\n"
