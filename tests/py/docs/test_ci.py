"""The programs and commands that docs/ci.md prints, run as they stand there. Only `pip install` is left out."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import warm_python
from helpers import INTERCEPTION

import torch

PAGE = (pathlib.Path(__file__).parents[3] / "docs/ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.M | re.S)
MODEL = """
from torch import nn

def Model(width=1024):
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 1024))
"""
TRAIN = """
import torch
from model import Model

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WIDER = MODEL.replace("width=1024", "width=4096").replace("Linear(width, width)", "Linear(1024, width)")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")]


def block(language: str, with_text: str) -> str:
    (found,) = [text for kind, text in BLOCKS if kind == language and with_text in text]
    return found


def git(folder: pathlib.Path, *words: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def change(tmp_path):
    """A clone of a repository, with a commit that makes the model larger."""
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "model.py").write_text(MODEL)
    (origin / "train.py").write_text(TRAIN)
    git(origin, "init", "--quiet")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "before")
    git(tmp_path, "clone", "--quiet", str(origin), "clone")
    (tmp_path / "clone/model.py").write_text(WIDER)
    git(tmp_path / "clone", "commit", "--quiet", "-am", "after")
    return tmp_path / "clone"


def run(folder: pathlib.Path, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
    lines = "\n".join(line for line in commands.splitlines() if "pip install" not in line)
    assert "modscope" in lines
    with warm_python.command(folder.parent / "bin") as commands:
        path = f"{commands}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-e", "-c", lines],
            cwd=folder,
            env={**os.environ, "PATH": path, **environment},
            capture_output=True,
            text=True,
        )


def test_the_test_passes_and_fails_when_the_model_grows(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "test_memory.py").write_text(block("python", "gpu_memory"))
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = warm_python.run(words, tmp_path)
    assert ran.returncode == 0, ran.stdout
    (tmp_path / "model.py").write_text(WIDER.replace("4096", "8192"))
    ran = warm_python.run(words, tmp_path)
    assert ran.returncode == 1
    if torch.__version__.startswith("2.13."):
        (printed,) = re.findall(r"^```\n(The test reserves .*?)^```", PAGE, re.M | re.S)
        without_time = [re.sub(r"at \S+ s:", "", " ".join(text.split())) for text in (printed, ran.stdout)]
        assert without_time[0] in without_time[1]


def test_the_commands_of_a_guard(change):
    ran = run(change, block("sh", "--fail-unless-fits"))
    assert ran.returncode == 0 and "submit the job" in ran.stdout, ran.stderr


def test_the_commands_that_compare(change):
    ran = run(change, block("sh", "git worktree"), BASE="origin/main")
    assert ran.returncode == 0, ran.stderr
    assert "`Sequential.0`" in (change / "memory.md").read_text()


def test_the_github_action_compares_also_where_the_job_does_not_fit(change):
    (script,) = re.findall(r"run: \|\n((?: {8}.*\n)+)", block("yaml", "composite"))
    (change / "model.py").write_text(WIDER.replace("4096", "16384"))
    inputs = {"GPU": "1GiB", "SCRIPT": "train.py"}
    ran = run(change, script, GITHUB_BASE_REF="main", GITHUB_STEP_SUMMARY=str(change / "summary.md"), **inputs)
    assert ran.returncode == 3 and "Status 3: the job does not fit the GPU of 1GiB." in ran.stderr, ran.stderr
    assert (change / "summary.md").read_text().startswith("### +")


def test_the_gitlab_job(change):
    script = "\n".join(re.findall(r"^    - (.*)$", block("yaml", "CI_MERGE_REQUEST_ID"), re.M))
    ran = run(change, script, CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main")
    assert ran.returncode == 0, ran.stderr
    assert (change / "memory.md").read_text().startswith("### +")
