"""What reading the captures of a thousand ranks costs: seconds and memory of ``modscope summary`` and ``modscope
report``, and the size of the page.

    python bench/ranks_reading.py [--ranks N] [--steps S] [--keep FOLDER]

A few real trainings are recorded, which reduce each gradient over torch's fake process group. Each rank's capture is
one of them, with another rank in its info."""

from __future__ import annotations

import argparse
import contextlib
import os
import struct
import subprocess
import sys
import tempfile

import modscope
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import torch
from export import Block
from torch import nn

# Runs the command in a process of its own, and prints its seconds, those of its threads together, and its peak memory.
MEASURED = """
import sys, time
from modscope.__main__ import main
begin = time.perf_counter()
status = main(sys.argv[1:])
seconds = time.perf_counter() - begin
with open("/proc/self/status") as file:
    peak = next(line for line in file if line.startswith("VmHWM"))
print(seconds, time.process_time(), int(peak.split()[1]) / 1024, file=sys.stderr)
sys.exit(status)
"""
VARIANTS = 5  # of the training, by the size of its batch


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def string(text: str) -> bytes:
    data, out = text.encode(), bytearray()
    length = len(data)
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes([*out, length]) + data


def with_place(capture: bytes, info: dict[str, str], end: dict[str, str]) -> bytes:
    """The capture with other chunks of info, 1, and of the end, 6 (docs/capture-format.md)."""
    out, at = bytearray(capture[:16]), 16
    while at < len(capture):
        kind, size = struct.unpack_from("<II", capture, at + 4)
        payload = capture[at + 48 : at + 48 + size]
        head = capture[at : at + 44]
        if kind in (1, 6):
            payload = b"".join(string(key) + string(value) for key, value in (info if kind == 1 else end).items())
            head = head[:8] + struct.pack("<II", len(payload), crc32c(payload)) + head[16:]
        out += head + struct.pack("<I", crc32c(head)) + payload
        at += 48 + size
    return bytes(out)


def record_training(path: str, batch: int, steps: int) -> modscope.Capture:
    model = nn.Sequential(*(Block(16) for _ in range(32)))
    optimizer = torch.optim.Adam(model.parameters())
    with modscope.record(path, overwrite=True):
        for _ in range(steps):
            model(torch.ones(batch, 16)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
    return modscope.load(path)


def make_captures(folder: str, ranks: int, steps: int) -> int:
    """The number of events in all captures."""
    made = []
    for variant in range(VARIANTS):
        path = os.path.join(folder, "training")
        capture = record_training(path, 16 + 4 * (variant == 0) + variant, steps)
        with open(path, "rb") as file:
            made.append((file.read(), dict(capture.info), dict(capture.end or {}), capture.event_count))
        os.unlink(path)
    events = 0
    for rank in range(ranks):
        data, info, end, count = made[rank % VARIANTS]
        place = {
            "rank": str(rank),
            "world": str(ranks),
            "local_rank": str(rank % 8),
            "node": str(rank // 8),
            "host": f"host{rank // 8}",
        }
        with open(os.path.join(folder, f"x.rank{rank}.msc"), "wb") as file:
            file.write(with_place(data, {**info, **place, "began": f"{1.7e9 + rank / 1000:.3f}"}, {**end, **place}))
        events += count
    return events


def main() -> None:
    parser = argparse.ArgumentParser(description="what reading the captures of many ranks costs")
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--keep", metavar="FOLDER", help="leave the captures and the page in this folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=arguments.ranks)
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(folder, exist_ok=True)
        events = make_captures(folder, arguments.ranks, arguments.steps)
        dist.destroy_process_group()
        files = [os.path.join(folder, f"x.rank{rank}.msc") for rank in range(arguments.ranks)]
        size = sum(map(os.path.getsize, files))
        print(f"{arguments.ranks} captures, {events} events, {size / 1e6:.1f} MB\n")
        print("| command | seconds | of processor time | memory, MiB | page, MB |\n|---|---|---|---|---|")
        page = os.path.join(folder, "ranks.html")
        for words in (["summary", *files], ["report", *files, "-f", "-o", page]):
            command = [sys.executable, "-c", MEASURED, *words]
            done = subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            seconds, processor, memory = map(float, done.stderr.split()[-3:])
            written = f"{os.path.getsize(page) / 1e6:.1f}" if words[0] == "report" else ""
            print(f"| {words[0]} | {seconds:.2f} | {processor:.2f} | {memory:.0f} | {written} |", flush=True)


if __name__ == "__main__":
    main()
