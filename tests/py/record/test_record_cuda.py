"""Captures of a GPU: the allocator's own figures, reserved memory, and out of memory."""

import subprocess
import sys
import textwrap

import pytest
from helpers import needs_interception
from modscope import _capture, load, record

import torch
from torch import nn

pytestmark = [needs_interception, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()


def test_the_peak_is_the_allocators(tmp_path):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with record(tmp_path / "x.msc"):
        net = model()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            net(torch.randn(64, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        peak = torch.cuda.max_memory_allocated() - before
        reserved = torch.cuda.memory_reserved()
    capture = load(tmp_path / "x.msc")
    name = f"cuda:{torch.cuda.current_device()}"
    assert capture.peaks[name].bytes == peak
    assert capture.reserved[name] == reserved
    held = capture.snapshot("peak").by_module()[name]
    assert held["Sequential.0"]["Parameter"] == 512 * 2048 * 4 + 2048 * 4
    assert held["Sequential.0"]["Optstate"] >= 2 * (512 * 2048 * 4 + 2048 * 4)
    assert capture.main_device == name


def test_requests_and_streams_are_noted(tmp_path):
    side = torch.cuda.Stream()
    with record(tmp_path / "x.msc"):
        kept = [
            torch.empty(12345, dtype=torch.uint8, device="cuda"),
            torch.empty(3 * 2**20 + 7, dtype=torch.uint8, device="cuda"),
        ]
        with torch.cuda.stream(side):
            kept.append(torch.empty(1000, dtype=torch.uint8, device="cuda"))
        kept.append(torch.empty(77, dtype=torch.uint8, device="cuda"))
    with open(tmp_path / "x.msc", "rb") as opened:
        notes = [(kind, value) for _, kind, _, value in _capture.Reader(opened.fileno()).notes()]
    assert [value for kind, value in notes if kind == "requested"][-4:] == [12345, 3 * 2**20 + 7, 1000, 77]
    assert [value for kind, value in notes if kind == "stream"] == [side.stream_id, 0]


def test_modules_have_the_gpus_times(tmp_path):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with record(tmp_path / "x.msc"):
        for _ in range(4):
            net(torch.randn(4096, 512, device="cuda")).sum().backward()
            optimizer.step()
            torch.cuda.synchronize()
    times = load(tmp_path / "x.msc").gpu_times()
    assert set(times) == {"Sequential", "Sequential.0", "Sequential.1", "Sequential.2"}
    assert 0 < sum(times[f"Sequential.{i}"] for i in range(3)) <= 1.01 * times["Sequential"]


def run(folder, text: str) -> subprocess.CompletedProcess:
    (folder / "train.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "-m", "modscope", "run", "-o", "x.msc", "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )


HUNGRY = """
    import torch
    from torch import nn
    torch.cuda.set_per_process_memory_fraction(2 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    net = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda()
    kept = []
    while True:
        kept.append(net(torch.randn(4096, 1024, device="cuda")))
"""


def test_the_oom_report_is_on_stderr_and_in_the_capture(tmp_path):
    ran = run(tmp_path, HUNGRY)
    assert ran.returncode == 1
    assert "[modscope] out of memory: " in ran.stderr and "on cuda:0 failed" in ran.stderr
    assert "forward of Sequential" in ran.stderr and "reserved by the allocator" in ran.stderr
    assert "OutOfMemoryError" in ran.stderr and "--at oom" in ran.stderr
    capture = load(tmp_path / "x.msc")
    event = capture.last_oom
    assert event.device == "cuda:0" and event.phase == "forward" and event.bytes > 0
    snapshot = capture.snapshot("oom")
    assert snapshot.totals["cuda:0"]["Total"] == event.allocated
    assert snapshot.reserved["cuda:0"] == event.reserved
    assert snapshot.by_module()["cuda:0"]["Sequential.0"]["Parameter"] == (1024 * 8192 + 8192) * 4


def test_in_backward_the_device_thread_reports_it(tmp_path):
    ran = run(
        tmp_path,
        """
        import torch
        from torch import nn

        class Wide(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()
            @staticmethod
            def backward(ctx, grad):
                return torch.empty(1 << 50, device="cuda", dtype=torch.uint8)

        class Odd(nn.Module):
            def forward(self, x):
                return Wide.apply(x)

        net = nn.Sequential(nn.Linear(8, 8), Odd()).cuda()
        net(torch.ones(2, 8, device="cuda")).sum().backward()
        """,
    )
    assert ran.returncode == 1
    assert "backward of Sequential.1" in ran.stderr
    assert load(tmp_path / "x.msc").last_oom.phase == "backward"


def test_a_program_that_catches_it_goes_on(tmp_path):
    ran = run(
        tmp_path,
        """
        import torch
        for n in (1 << 50, 10):
            try:
                x = torch.empty(n, device="cuda", dtype=torch.uint8)
                break
            except torch.OutOfMemoryError:
                print("smaller")
        """,
    )
    assert ran.returncode == 0 and ran.stdout == "smaller\n"
    assert load(tmp_path / "x.msc").oom_count == 1
