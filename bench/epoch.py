"""``modscope predict --epoch`` beside exhaustive predictions, in which every batch runs on the virtual GPU.

    python bench/epoch.py [KIND ...] [--batches N] [--part 0.97]

Each job of epoch_job.py is predicted on a GPU with much memory, where the reserved peaks are compared, and on one with
a part of what is allocated at most, where the first step that runs out of memory is compared. Prints for each job what
both said, the steps that were taken, and the processor seconds."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
KINDS = ("gpt", "packed", "seq2seq", "cnn", "moe", "trainer")
MIB = 1 << 20
_PLENTY = "200GiB"


class Found(NamedTuple):
    reserved: int
    allocated: int
    context: int
    failed_step: int | None
    seconds: float
    """Of the processor, with those of the processes that were started."""
    steps: int


def predict(kind: str, gpu: str, options: list[str], batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        words = [sys.executable, "-m", "modscope", "predict", "--gpu", gpu, "-q", f"--json={path}", *options]
        environment = {**os.environ, "EPOCH_BATCHES": str(batches), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        words += [str(HERE / "epoch_job.py"), kind]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not path.exists():
            raise SystemExit(f"{kind}: {ran.stderr[-2000:]}")
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {**json.loads(path.read_text()), "used": used}


def by_epoch(kind: str, gpu: str, batches: int) -> Found:
    found = predict(kind, gpu, ["--epoch", "--seconds", "0"], batches)
    (row,) = found["gpus"]
    step = row["failure"]["step"] if row["failure"] else None
    return Found(
        row["reserved_peak"], row["allocated_peak"], row["context"], step, found["used"], found["predicted_shapes"]
    )


def exhaustive(kind: str, gpu: str, batches: int) -> Found:
    found = predict(kind, gpu, ["--steps", "100000", "--seconds", "0"], batches)
    failed = found["out_of_memory"]
    return Found(
        found["reserved_peak"],
        found["allocated_peak"],
        found["context"],
        failed and failed["step"],
        found["used"],
        found["steps"],
    )


class Compared(NamedTuple):
    kind: str
    epoch: Found
    whole: Found
    epoch_fails: Found
    whole_fails: Found

    @property
    def error(self) -> float:
        return 100 * (self.epoch.reserved / self.whole.reserved - 1)

    def row(self) -> str:
        steps = f"{self.epoch_fails.failed_step} {self.whole_fails.failed_step}"
        seconds = f"{self.epoch.seconds:.1f} {self.whole.seconds:.1f}"
        peaks = f"{self.epoch.reserved / MIB:.0f} {self.whole.reserved / MIB:.0f}"
        return (
            f"{self.kind:10} {peaks:>14} {self.error:+7.2f} % {steps:>10}   {self.epoch.steps:3} of {self.whole.steps}"
            f"   {seconds:>11}"
        )


def compare(kind: str, batches: int, part: float) -> Compared:
    epoch, whole = by_epoch(kind, _PLENTY, batches), exhaustive(kind, _PLENTY, batches)
    less = f"{int((part * whole.allocated + whole.context) / MIB)}MiB"
    return Compared(kind, epoch, whole, by_epoch(kind, less, batches), exhaustive(kind, less, batches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=KINDS, help=", ".join(KINDS))
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument(
        "--part", type=float, default=0.97, help="of what is allocated at most, which the GPU may reserve"
    )
    options = parser.parse_args()
    print("job          reserved MiB    error   first failing   shapes of steps   processor s   (epoch, exhaustive)")
    for kind in options.kinds:
        print(compare(kind, options.batches, options.part).row(), flush=True)


if __name__ == "__main__":
    main()
