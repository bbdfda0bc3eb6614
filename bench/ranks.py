"""Predictions of virtual ranks beside what a real GPU takes as rank 0 of as many, with torch's fake process group.

    bench/ranks.py [--gpu h200] [--ranks 64] [--only NAME ...] [--keep FOLDER]

Without a GPU it prints the predictions alone. --keep leaves the captures of both runs in a folder.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ranks_job.py")
NAMES = ("float32", "mixed", "kept", "offloaded", "accumulated", "hybrid", "tensor")
MIB = 1 << 20


def started(words: list[str]) -> float:
    """Run modscope. Returns its processor time."""
    before = os.times()
    done = subprocess.run([sys.executable, "-m", "modscope", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def read(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return dict(json.load(file))


def capture_in(folder: str, name: str) -> str:
    found = [file for file in os.listdir(folder) if file.startswith(name) and file.endswith(".msc")]
    return os.path.join(folder, found[0])


def sizes(path: str) -> collections.Counter[int]:
    """How many blocks of each size the GPU allocated."""
    import modscope

    capture = modscope.load(path)
    return collections.Counter(event.bytes for event in capture.events("add") if event.device == "cuda:0")


def differences(real: str, predicted: str) -> str:
    left, right = sizes(real), sizes(predicted)
    found = [(size, left[size], right[size]) for size in left.keys() | right.keys() if left[size] != right[size]]
    found.sort(key=lambda row: -row[0] * abs(row[1] - row[2]))
    return "; ".join(f"{size} bytes: {a} real, {b} predicted" for size, a, b in found[:8])


def row(options: argparse.Namespace, name: str, folder: str, has_gpu: bool) -> str:
    """Predict a job, and run it where there is a GPU. Returns a row of the table, and a line where blocks differ."""
    path, began = os.path.join(folder, f"{name}.json"), time.monotonic()
    words = ["predict", "--gpu", options.gpu, "--ranks", str(options.ranks), "--json", path]
    processor = started([*words, "-f", "-o", os.path.join(folder, f"predicted-{name}.msc"), JOB, name])
    elapsed, predicted = time.monotonic() - began, read(path)
    cells, real, line = [], {}, ""
    if has_gpu:
        stats = os.path.join(folder, f"{name}-real.json")
        words = ["run", "-q", "-f", "-o", os.path.join(folder, f"real-{name}.msc")]
        started([*words, JOB, name, "--fake", str(options.ranks), "--stats", stats])
        real = read(stats)
        different = differences(capture_in(folder, f"real-{name}"), capture_in(folder, f"predicted-{name}"))
        line = f"\n  blocks of {name} that differ: {different}" if different else ""
    for key in ("allocated_peak", "reserved_peak"):
        cells.append(f"{predicted[key] / MIB:.1f}")
        cells += [f"{real[key] / MIB:.1f}", f"{100 * (predicted[key] / real[key] - 1):+.3f} %"] if real else ["", ""]
    return (
        "| "
        + " | ".join([name, *cells, f"{predicted['step_ms'] or 0:.0f}", f"{elapsed:.0f}", f"{processor:.0f}"])
        + " |"
        + line
    )


def tell(options: argparse.Namespace, name: str, folder: str, has_gpu: bool) -> bool:
    """False: a run failed, and its messages were printed."""
    try:
        print(row(options, name, folder, has_gpu), flush=True)
    except RuntimeError as error:
        print(f"  {name}: {error}", flush=True)
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=NAMES)
    parser.add_argument("--keep", default="")
    options = parser.parse_args()
    folder = options.keep or tempfile.mkdtemp(prefix="modscope-ranks-")
    os.makedirs(folder, exist_ok=True)
    has_gpu = torch.cuda.is_available()
    alone = "" if has_gpu else "; no GPU here: predictions only"
    print(f"rank 0 of {options.ranks} on {options.gpu}, torch {torch.__version__}; MiB{alone}")
    print(
        "| job | allocated | real | error | reserved | real | error | step, ms | seconds | processor |\n"
        + "|---" * 10
        + "|"
    )
    failed = [name for name in options.only if not tell(options, name, folder, has_gpu)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
