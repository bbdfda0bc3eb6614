"""modscope top: a capture that is being written, in a terminal and elsewhere."""

import contextlib
import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modscope
import pytest
from modscope._read.live import LiveCapture, captures_of_process
from modscope._show.live import View, frame, plain_line
from modscope._show.terminal import Screen

import torch

TOP = [sys.executable, "-m", "modscope", "top"]


class Program:
    """A program that trains and keeps a tensor in each step."""

    def __init__(self) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        self.optimizer = torch.optim.SGD(self.net.parameters(), momentum=0.9)
        self.kept: list[torch.Tensor] = []

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.net(torch.ones(256, 64)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.kept.append(torch.zeros(1000))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("top") / "run.msc"
    with modscope.record(file):
        program = Program()
        program.step(12)
    return file


# ---- what it reads ----


def _check_equal(live: LiveCapture, file: Path) -> None:
    capture = modscope.load(file)
    [device] = live.devices()
    now, peak = capture.snapshot("step:12"), capture.snapshot("peak")
    assert (device.now, device.peak) == (now.totals["cpu"]["Total"], capture.peaks["cpu"].bytes)
    assert device.peak_step == capture.peaks["cpu"].step and live.status.step == 12
    held: dict[tuple[str, str], list[int]] = {}
    assert live._live is not None
    for module, category, *figures, _ in live._live.modules(device.number):
        held[module, category] = [a + b for a, b in zip(held.get((module, category), [0, 0]), figures, strict=True)]
    for at, snapshot in enumerate((now, peak)):
        expected = {
            (module, str(category)): value
            for module, sums in snapshot.by_module()["cpu"].items()
            for category, value in sums.items()
            if value and category != "Total"
        }
        assert {key: figures[at] for key, figures in held.items() if figures[at]} == expected
    lines = live.rows(device, "line")
    assert sum(row.now for row in lines) == device.now and sum(row.peak for row in lines) == device.peak


def test_a_capture_that_grows_piece_by_piece_reads_as_the_whole_one(recorded, tmp_path):
    whole, growing = recorded.read_bytes(), tmp_path / "growing.msc"
    for seed in range(3):
        choose = random.Random(seed)
        cuts = sorted({0, len(whole), *(choose.randrange(len(whole)) for _ in range(40))})
        growing.write_bytes(b"")
        live = LiveCapture(str(growing))
        for begin, end in zip(cuts, cuts[1:], strict=False):
            with open(growing, "ab") as file:
                file.write(whole[begin:end])
            assert not live.refresh()
        _check_equal(live, recorded)
        assert live.ended() == "it has ended"
        live.close()


def test_growth_and_the_time_of_steps_are_means_of_the_last_steps(recorded):
    live = LiveCapture(str(recorded))
    [device] = live.devices()
    assert device.growth_steps == 8
    growing = [row for row in live.rows(device, "line") if row.growth]
    assert [(row.growth, row.name.rpartition(" in ")[2]) for row in growing] == [(4000, "Program.step")]
    begins = [step.begin for step in modscope.load(recorded).step_times() if step.number]
    assert live.status.step_time == pytest.approx((begins[-1] - begins[-9]) * 1e6 / 8, rel=0.01)
    live.close()


def test_a_run_that_was_cut_or_wrote_nothing_is_said(recorded, tmp_path):
    file = tmp_path / "run.msc"
    file.write_bytes(b"")
    live = LiveCapture(str(file))
    assert "it has written nothing yet" in plain_line(live)
    whole = recorded.read_bytes()
    file.write_bytes(whole[:-300])  # without its end
    live.refresh()
    assert live.ended() is None  # this process runs
    os.truncate(file, len(whole) // 2)
    live.refresh()
    assert live.ended() == "the file became shorter: it was cut, or written anew"
    live.close()


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_every_line_fits_the_screen(recorded, size):
    captures = [LiveCapture(str(recorded)) for _ in range(10)]
    for by in ("module", "category", "line"):
        lines = frame(captures, View(by=by, rank=9), Screen(size[0]), size[1])
        assert len(lines) == size[1] and max(map(len, lines)) <= size[0]
        assert lines[-1].startswith("q quit")
    for capture in captures:
        capture.close()


# ---- in a terminal ----


class Terminal:
    """A program in a pseudo-terminal of 80 columns and 24 lines."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._master, self._slave = os.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self._slave)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": ""}
        ignored = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a suite in the background ignores Ctrl-C
        try:
            self.process = subprocess.Popen(
                words, stdin=self._slave, stdout=self._slave, stderr=self._slave, env=environment, cwd=folder
            )
        finally:
            signal.signal(signal.SIGINT, ignored)
        self.text = ""

    def read_until(self, text: str) -> None:
        begin, until = len(self.text), time.monotonic() + 120
        while text not in self.text[begin:]:
            assert time.monotonic() < until, self.text[begin:]
            self._read(1.0)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if ready:
            self.text += os.read(self._master, 65536).decode(errors="replace")
        return bool(ready)

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def end(self) -> int:
        """The exit status. The terminal is as it was before."""
        until = time.monotonic() + 120
        while self.process.poll() is None:
            assert time.monotonic() < until, self.text
            self._read(0.2)
        while self._read(0.1):
            pass
        assert termios.tcgetattr(self._slave) == self.before
        assert self.text.count("\x1b[?1049h") == self.text.count("\x1b[?1049l") == 1
        assert self.text.count("\x1b[?25l") == self.text.count("\x1b[?25h") == 1
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[[list[str]], Terminal]]:
    with contextlib.ExitStack() as opened:

        def start(words: list[str]) -> Terminal:
            made = Terminal(words, tmp_path)
            opened.callback(made.close)
            return made

        yield start


@pytest.mark.slow
def test_a_recording_is_followed_and_the_terminal_given_back(terminal, tmp_path):
    file, program = tmp_path / "run.msc", Program()
    with modscope.record(file):
        program.step(3)
        assert captures_of_process(os.getpid()) == [str(file)]
        shown = terminal([*TOP, str(file)])
        shown.read_until("Sequential.* (2 alike)")
        program.step(2)
        shown.read_until("step 5")
        shown.press("l")
        shown.read_until("in Program.step")
        shown.press("c")
        shown.read_until("Parameter")
        shown.press("q")
        assert shown.end() == 0
        assert "running, step 5" in shown.text.rpartition("\x1b[?1049l")[2]
        for number, status in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)):
            shown = terminal([*TOP, str(file)])
            shown.read_until("q quit")
            shown.process.send_signal(number)
            assert shown.end() == status
        last = terminal([*TOP, str(os.getpid())])
        last.read_until("q quit")
        lines = subprocess.Popen([*TOP, str(file)], stdout=subprocess.PIPE, text=True)
        assert lines.stdout is not None and "running, step 5" in lines.stdout.readline()
        program.step(1)
    assert last.end() == 0
    assert "it has ended, step 6" in last.text.rpartition("\x1b[?1049l")[2]
    printed, _ = lines.communicate(timeout=120)
    assert lines.returncode == 0 and "it has ended, step 6" in printed and "\x1b" not in printed


_FAILS = """\
import sys, torch
net = torch.nn.Linear(64, 64)
for _ in range(5):
    net(torch.ones(8, 64)).sum().backward()
print("printed")
raise SystemExit(3)
"""


_DIES = """\
import os, torch
net = torch.nn.Linear(64, 64)
for _ in range(5):
    net(torch.ones(8, 64)).sum().backward()
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_run_that_died_is_said_where_there_is_no_terminal(tmp_path):
    (tmp_path / "train.py").write_text(_DIES)
    words = [sys.executable, "-m", "modscope", "run", "--top", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 128 + signal.SIGKILL
    assert "is gone, and the capture has no end" in done.stderr
    [capture] = tmp_path.glob("*.msc")
    assert f"modscope summary {capture.name}" in done.stderr.replace(f"{tmp_path}/", "")
    live = LiveCapture(str(capture))
    assert "it died, or runs elsewhere" in (live.ended() or "")
    live.close()


@pytest.mark.slow
def test_run_top_starts_the_script_and_has_its_status(terminal, tmp_path):
    (tmp_path / "train.py").write_text(_FAILS)
    shown = terminal([sys.executable, "-m", "modscope", "run", "--top", "-o", "run.msc", "train.py"])
    assert shown.end() == 3
    after = " ".join(shown.text.rpartition("\x1b[?1049l")[2].split())
    assert "The script ended with status 3. What it printed is in run.log" in after
    assert "printed" in (tmp_path / "run.log").read_text()
    assert modscope.load(tmp_path / "run.msc").end


def test_a_process_that_records_nothing_is_said(capsys):
    from modscope.__main__ import main

    child: Any = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert main(["top", str(child.pid)]) == 1
    assert "writes no capture" in capsys.readouterr().err
    child.communicate(b"\n")
