"""What exporting a capture of a million events costs: seconds, the file's size, and the process's memory.

python bench/export.py [--events N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

import modscope

import torch
from torch import nn

FORMATS = ("perfetto", "speedscope", "torch-snapshot", "csv", "json")
# Runs the command in a process of its own, and prints its seconds and its peak memory.
MEASURED = """
import sys, time
from modscope.__main__ import main
begin = time.perf_counter()
status = main(sys.argv[1:])
seconds = time.perf_counter() - begin
with open("/proc/self/status") as file:
    peak = next(line for line in file if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 1024, file=sys.stderr)
sys.exit(status)
"""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def make_capture(path: str, events: int) -> modscope.Capture:
    """Record a training with about so many events."""
    model = nn.Sequential(*(Block(16) for _ in range(24)))
    optimizer = torch.optim.Adam(model.parameters())

    def train(steps: int) -> modscope.Capture:
        with modscope.record(path, overwrite=True):
            for _ in range(steps):
                model(torch.ones(4, 16)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return modscope.load(path)

    train(2)
    return train(20 * events // train(20).event_count + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="what exports cost")
    parser.add_argument("--events", type=int, default=1_000_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "run.msc"), os.path.join(folder, "out")
        capture = make_capture(path, arguments.events)
        print(f"A capture of {capture.event_count} events, {capture.bytes / 1e6:.1f} MB\n")
        print("| format | seconds | MB | memory, MiB |\n|---|---|---|---|")
        for format in FORMATS:
            words = [sys.executable, "-c", MEASURED, "export", path, "--format", format, "-o", out, "-f"]
            done = subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            seconds, memory = map(float, done.stderr.split())
            print(f"| {format} | {seconds:.2f} | {os.path.getsize(out) / 1e6:.1f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
