"""examples/fits.c gives the answers of modscope fit, because both replay a capture with the C library."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
from fit_runs import predict
from modscope._fit.job import Job
from modscope._read.text import size

ROOT = pathlib.Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program, built from the sources of the C library that it needs."""
    program = str(tmp_path_factory.mktemp("c") / "fits")
    sources = [str(path) for room in ("base", "core", "replay") for path in (ROOT / "src" / room).rglob("*.c")]
    folders = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}"]
    subprocess.run(
        ["cc", "-std=c11", *folders, "-pthread", ROOT / "examples/fits.c", *sources, "-o", program], check=True
    )
    return program


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True)


def test_its_answers_are_those_of_fit(fits: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.msc"
    predict(path)
    job = Job(str(path))
    blocks = [call for call in job.calls if re.fullmatch(r"Net\.h\.\d+", job.modules[call.path])]
    checkpointed = [("checkpoint", call.number) for call in blocks]
    capacity = job.replay().allocated - 1
    outcomes = [
        job.replay(edits, conf, capacity) for edits in ([], checkpointed) for conf in ("", "expandable_segments:True")
    ]
    wanted = [(size(found.reserved), "fits" if found.fits else "does not fit") for found in outcomes]
    ran = run(fits, str(path), str(capacity / 2**30))
    rows = [re.split(r"  +", line) for line in ran.stdout.splitlines()]
    names = ["as it ran", "with expandable segments", "with checkpointed blocks", "with both"]
    assert [tuple(row[1:]) for row in rows] == wanted and [row[0] for row in rows] == names
    assert len(blocks) == 18 and wanted[0][1] == "does not fit" and wanted[2][1] == "fits"
    assert (ran.returncode, ran.stderr) == (0, "")


def test_it_says_what_is_wrong(fits: str, tmp_path: pathlib.Path) -> None:
    corpus = ROOT / "tests/corpus"
    for arguments, wanted in [
        ([], "usage: fits CAPTURE GIB"),
        (["run.msc", "much"], "usage: fits CAPTURE GIB"),
        (["absent.msc", "24"], "absent.msc: No such file or directory"),
        ([__file__, "24"], "the file is not a capture"),
        ([str(corpus / "capture/empty.msc"), "24"], "has no memory in it"),
        ([str(corpus / "capture/newer_major_version.msc"), "24"], "was written by a newer version"),
    ]:
        ran = run(fits, *arguments)
        assert (ran.returncode, ran.stdout) == (2, "") and wanted in ran.stderr
    assert run(fits, str(corpus / "runs/gpt-0.1.0.msc"), "0.01").returncode == 1
