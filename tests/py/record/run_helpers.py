"""Scripts run by `modscope run` and by Python alone, and what came of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import modscope
import warm_python

HOME = os.path.dirname(os.path.dirname(os.path.abspath(modscope.__file__)))
BY_PATH = HOME in map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep))  # else it is installed
RUN = [sys.executable, "-m", "modscope", "run"]
LINE = b"[modscope] "

# For a script that is recorded: wait until its capture, as far as it is written, is as `condition` says.
WAIT_FOR_CAPTURE = """
    def wait_for_capture(condition):
        import glob, time, modscope
        while not condition(modscope.load(glob.glob("*.msc")[0])):
            time.sleep(0.05)
"""

# torch's optimizers import torch._dynamo for two functions that do nothing in a script that compiles nothing. The
# import takes as long as that of torch.
WITHOUT_DYNAMO = """
    import sys, types
    sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
    sys.modules["torch._dynamo"].disable = lambda function, *args, **kwargs: function
    sys.modules["torch._dynamo"].graph_break = lambda: None
"""
TRAIN = """
    import sys
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(100, 1000), nn.Linear(1000, 1)
        def forward(self, x):
            return self.down(torch.relu(self.up(x)))

    torch.set_num_threads(1)
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    def step():
        net(torch.ones(10, 100)).sum().backward()
        opt.step()
        opt.zero_grad()
"""


class Ran(NamedTuple):
    status: int
    out: bytes
    err: bytes
    said: str
    """Our line, which is the last of stderr; "" if there is none."""


def write(folder: Path, text: str, name: str = "script.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


def training(folder: Path, text: str, name: str = "train.py", with_dynamo: bool = False) -> str:
    """A script that has a model and `step`, and then goes on with `text`."""
    begin = TRAIN if with_dynamo else WITHOUT_DYNAMO + TRAIN
    return write(folder, textwrap.dedent(begin) + textwrap.dedent(text), name)


def environment(**more: str | None) -> dict[str, str]:
    if BY_PATH:
        more = {"PYTHONPATH": HOME, **more}
    return {key: value for key, value in {**os.environ, **more}.items() if value is not None}


def split(status: int, out: bytes, err: bytes) -> Ran:
    head, line, said = err.rpartition(LINE)
    return Ran(status, out, head, said.decode()) if line else Ran(status, out, err, "")


def call(command: list[str], folder: Path, stdin: bytes = b"", **env: str | None) -> Ran:
    done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, timeout=600, env=environment(**env))
    return split(done.returncode, done.stdout, done.stderr)


def run(folder: Path, *words: str, stdin: bytes = b"", **env: str | None) -> Ran:
    return call([*RUN, *words], folder, stdin, **env)


def run_warm(folder: Path, *words: str) -> Ran:
    """In a process that has imported torch already."""
    done = warm_python.run(["-m", "modscope", "run", *words], folder)
    return split(done.returncode, done.stdout.encode(), done.stderr.encode())


def plainly(folder: Path, *words: str, stdin: bytes = b"", **env: str | None) -> Ran:
    return call([sys.executable, *words], folder, stdin, **env)


def start(folder: Path, *words: str, command: list[str] = RUN) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE

    def heed_ctrl_c() -> None:
        """A shell has what it runs in the background ignore it."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(
        [*command, *words], cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=heed_ctrl_c
    )


def start_warm(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return warm_python.start(["-m", "modscope", "run", *words], folder, text=False)


def kill_when_ready(process: subprocess.Popen[bytes], number: signal.Signals) -> Ran:
    """Send a signal when it has printed a line."""
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()
    return split(process.returncode, first + out, err)


def captures(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.msc"))


def only_capture(folder: Path) -> Any:
    (path,) = captures(folder)
    return modscope.load(path)
