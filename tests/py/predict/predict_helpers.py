"""Scripts run by `modscope predict`, and what came of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import warm_python
from helpers import INTERCEPTION

PREDICT = [sys.executable, "-m", "modscope", "predict"]
needs_virtual_gpu = pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")

TRAIN = """
    import sys
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(1024, 4096), nn.Linear(4096, 1024)
        def forward(self, x):
            return self.down(torch.relu(self.up(x)))

    net = Net().cuda()
    opt = torch.optim.Adam(net.parameters())
    def step(batch=1024):
        net(torch.ones(batch, 1024, device="cuda")).sum().backward()
        opt.step()
        opt.zero_grad()
"""


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """Our lines at the end, without what precedes each."""
        lines = self.err.splitlines()
        last = max((i for i, line in enumerate(lines) if line.startswith("[modscope] ")), default=len(lines))
        return [line.removeprefix("[modscope] ").strip() for line in lines[last:]]


def write(folder: Path, text: str, name: str = "script.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


def training(folder: Path, text: str, name: str = "train.py") -> str:
    """A script that has a model and `step` on the GPU, and then goes on with `text`."""
    return write(folder, textwrap.dedent(TRAIN) + textwrap.dedent(text), name)


def predict(folder: Path, *words: str, **env: str) -> Ran:
    """In a process that has imported torch already."""
    done = warm_python.run(["-m", "modscope", "predict", *words], folder, **env)
    return Ran(done.returncode, done.stdout, done.stderr)


def predict_apart(folder: Path, *words: str) -> Ran:
    """In a process of its own, where the script imports torch."""
    done = subprocess.run(
        [*PREDICT, *words], cwd=folder, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def predict_json(folder: Path, *words: str, **env: str) -> dict[str, Any]:
    ran = predict(folder, "--json", "result.json", *words, **env)
    assert ran.status == 0, ran.err
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def interrupt_when_ready(folder: Path, *words: str) -> Ran:
    """Press Ctrl-C when the script has printed a line."""
    process = subprocess.Popen(
        [*PREDICT, *words],
        cwd=folder,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()
    return Ran(process.returncode, first + out, err)


def run_python(program: str) -> list[str]:
    """The lines that a program prints, in a process of its own."""
    ran = warm_python.run(["-W", "ignore", "-c", textwrap.dedent(program)])
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()
