"""The suite passes wherever it is cloned: in a folder called modscope, with spaces and letters that are not ASCII."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parents[1]

# These look at paths in tracebacks, in names of files, in command lines that are printed, and in lines of captures.
FILES = ("record/test_run_ends.py", "record/test_run_line.py", "torch/lines/test_cells.py")


@pytest.mark.slow
def test_the_suite_passes_in_a_folder_with_odd_letters(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "modscope größe (1)"
    shutil.copytree(TESTS, root / "tests" / "py", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS.parents[1] / "pyproject.toml", root)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow")
    files = [f"tests/py/{name}" for name in FILES]
    ran = subprocess.run([sys.executable, *words, *files], cwd=root, env=os.environ, capture_output=True, text=True)
    assert ran.returncode == 0 and " passed" in ran.stdout, ran.stdout + ran.stderr
