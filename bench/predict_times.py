"""What time a step of the reference jobs is predicted to take, beside what it took on an H200.

    predict_times.py JOBS_FOLDER [NAME...]       # a folder with jobs.py and truth.json

Each job runs in a process of its own. Prints a line for each: predicted and real milliseconds a step, their ratio, and
the same for the sum of its kernels."""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any


def predict_step(job: Any, gpu: str = "h200", version: str = "2.11") -> tuple[float, float]:
    """Milliseconds of the third step of a job: by the clock, and of its kernels alone."""
    from modscope._virtual.device.device import VirtualDevice
    from modscope._virtual.gpus import find_gpu
    from modscope._virtual.operators import operators
    from modscope._virtual.time import times

    import torch

    device = VirtualDevice(find_gpu(gpu), version)
    device.install()
    kernels = 0.0
    rules = operators.costs
    advance = rules.advance

    def counted(seconds: float) -> None:
        nonlocal kernels
        kernels += seconds
        advance(seconds)

    rules.advance = counted  # type: ignore[method-assign]
    try:
        with torch.device("cuda"):
            model = job.make()
        optimizer, batch = job.optimizer(model), job.batch("cuda")
        for _ in range(3):
            times.wait()
            began, kernels = times.now(), 0.0
            job.step(model, optimizer, batch)
        return (times.now() - began) * 1e3, kernels * 1e3
    finally:
        device.remove()


def _run_one(folder: str, name: str) -> None:
    sys.path.insert(0, folder)
    import jobs  # type: ignore[import-not-found]

    print(json.dumps(predict_step(jobs.JOBS[name]())))


def main(folder: str, names: list[str]) -> None:
    truth = json.loads((pathlib.Path(folder) / "truth.json").read_text())
    ratios = []
    print(f"{'job':28} {'step ms':>9} {'real':>9} {'ratio':>6}  {'kernels':>9} {'real':>9} {'ratio':>6}")
    for name in names or [name for name, job in truth.items() if "step_ms" in job]:
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--one", folder, name],
            capture_output=True,
            text=True,
            timeout=600,
        )
        if ran.returncode:
            print(f"{name:28} failed: {ran.stderr.strip().splitlines()[-1:]}")
            continue
        step, kernels = json.loads(ran.stdout.splitlines()[-1])
        real = truth[name]
        ratios.append(step / real["step_ms"])
        print(
            f"{name:28} {step:9.1f} {real['step_ms']:9.1f} {ratios[-1]:6.2f}  "
            f"{kernels:9.1f} {real['kernel_ms']:9.1f} {kernels / real['kernel_ms']:6.2f}",
            flush=True,
        )
    errors = [abs(ratio - 1) for ratio in ratios]
    print(
        f"{len(ratios)} jobs: median error {statistics.median(errors):.0%}, within 25 %: "
        f"{sum(e <= 0.25 for e in errors)}, "
        f"within a factor of 2: {sum(0.5 <= r <= 2 for r in ratios)}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _run_one(sys.argv[2], sys.argv[3])
    elif len(sys.argv) > 1:
        main(sys.argv[1], sys.argv[2:])
    else:
        print(__doc__)
        sys.exit(2)
