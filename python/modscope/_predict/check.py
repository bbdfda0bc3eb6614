"""``modscope predict --check``: run the predicted steps on this machine's GPU too, and print the error of the
prediction."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

from modscope._predict import process as _predict_process
from modscope._predict import share
from modscope._predict.in_script import FACTS
from modscope._predict.options import PredictOptions, records_of
from modscope._predict.result import Predicted
from modscope._predict.text import step_time
from modscope._read.own_files import ROW
from modscope._read.text import size
from modscope._read.types import Refused
from modscope._show import output_file
from modscope._show.terminal import as_lines
from modscope._virtual.gpus import GPUS, Gpu, find_gpu

if TYPE_CHECKING:
    from modscope._record.settings import Settings

_PROBE = """
import json, torch
if torch.cuda.is_available():
    gpu = torch.cuda.get_device_properties(0)
    print(json.dumps([gpu.name, gpu.total_memory]))
"""
_FIGURES = {
    "allocated": ("allocated_peak", size),
    "reserved": ("reserved_peak", size),
    "a step": ("step_ms", step_time),
}


# ---- the process that compares ----


def check(arguments: argparse.Namespace) -> Predicted:
    """Refused if there is nothing to compare with. OSError if the row of --share cannot be written."""
    if arguments.share:
        output_file.check(arguments.share, ROW, arguments.force)
    real_gpu = find_real_gpu()
    if real_gpu is None:
        raise Refused("--check needs a GPU that torch can use, and finds none here. Leave it out to predict only")
    title, memory = real_gpu
    gpu = arguments.gpu[0] if arguments.gpu else _gpu_of(title, memory)
    script, prediction = records_of(arguments)
    with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
        path = os.path.join(folder, "predicted.json")
        of_gpu = prediction._replace(gpus=[gpu.name])
        status = _predict_process.wait(_predict_process.start(script._replace(json=path), of_gpu))
        predicted = _read(path)
        if predicted is None:
            return Predicted(status or 1)
        script = script._replace(steps=max(predicted["steps"], 1))
        again = _predict_process.for_part(script, prediction, folder, real=True, seconds=0.0)
        real_status = _predict_process.wait(_predict_process.start(*again, out=subprocess.DEVNULL))
        real = _read(os.path.join(folder, FACTS))
    if real is None:
        not_checked = "not checked: the script's process on the real GPU ended without figures."
        if arguments.share:
            not_checked += f" {arguments.share} was not written."
        return Predicted(status or real_status or 1, predicted, lambda screen: as_lines([not_checked], screen))
    comparison = compare(predicted, real)
    told = {key: real[key] for key in ("allocated_peak", "reserved_peak", "steps", "step_ms", "error")}
    row = share.row_of(predicted, real, comparison)
    figures = {**predicted, "check": {"title": title, **told, "errors": comparison, "row": row}}
    sentences = [describe(title, predicted, real, comparison)]
    if arguments.share:
        sentences.append(share.write(arguments.share, row, arguments.force))
    return Predicted(status, figures, lambda screen: as_lines(sentences, screen))


def find_real_gpu() -> tuple[str, int] | None:
    """Asked in another process, because this one has no torch."""
    asked = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True)
    with contextlib.suppress(ValueError):
        name, memory = json.loads(asked.stdout)
        return name, memory
    return None


def _gpu_of(title: str, memory: int) -> Gpu:
    known = [gpu for gpu in GPUS.values() if gpu.title == title]
    return known[0] if known else find_gpu(str(memory))


def _read(path: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        figures: dict[str, Any] = json.load(file)
        return figures
    return None


def compare(predicted: dict[str, Any], real: dict[str, Any]) -> dict[str, float]:
    """The error of each figure that both have, as a part of the real one."""
    keys = [key for key, _ in _FIGURES.values() if predicted.get(key) and real.get(key)]
    return {key: predicted[key] / real[key] - 1 for key in keys}


def describe(title: str, predicted: dict[str, Any], real: dict[str, Any], errors: dict[str, float]) -> str:
    parts = []
    for word, (key, text) in _FIGURES.items():
        if key in errors:
            parts.append(f"{word} {text(real[key])} (predicted {text(predicted[key])}, {100 * errors[key]:+.2f} %)")
    why = f" The script ended by an exception there: {real['error'].splitlines()[0][:200]}." if real["error"] else ""
    return f"checked on {title}: {', '.join(parts) or 'nothing was allocated'}.{why}"


# ---- the script's process on the real GPU ----


class RealRun:
    """Notes torch's own figures, and stops the script after its steps."""

    def __init__(self, settings: Settings, asked: PredictOptions) -> None:
        self._steps, self._plan = settings.options.steps, settings.options.plan
        self._folder = asked.part
        self._ends: list[float] = []
        self._peaks = {"allocated_peak": 0, "reserved_peak": 0}
        self._pid = os.getpid()
        self._written = False

    def enter(self) -> None:
        from modscope._record.torch_import import TorchFinder

        if "torch" in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, TorchFinder(self._begin))

    def _begin(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        import torch

        register_optimizer_step_post_hook(self._step_ended)
        if self._plan:
            from modscope._plan import in_script

            in_script.install(self._plan, lambda sentence: None)  # the prediction has told it already
        reset = torch.cuda.reset_peak_memory_stats

        def reset_peak_memory_stats(*args: Any, **options: Any) -> None:
            self._note_peaks()
            reset(*args, **options)

        torch.cuda.reset_peak_memory_stats = reset_peak_memory_stats
        atexit.register(self._write)

    def _note_peaks(self) -> None:
        import torch

        if torch.cuda.is_initialized():
            now = {
                "allocated_peak": torch.cuda.max_memory_allocated(),
                "reserved_peak": torch.cuda.max_memory_reserved(),
            }
            self._peaks = {key: max(value, now[key]) for key, value in self._peaks.items()}

    def _step_ended(self, *unused: object) -> None:
        import torch

        if os.getpid() != self._pid:
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._ends.append(time.perf_counter())
        if len(self._ends) < self._steps:
            return
        self._write()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        os._exit(0)

    def _write(self) -> None:
        if self._written or os.getpid() != self._pid:
            return
        self._written = True
        self._note_peaks()
        from modscope._read.step_time import median_between

        step = median_between(self._ends)
        error = getattr(sys, "last_value", None)
        facts = {
            **self._peaks,
            "steps": len(self._ends),
            "step_ms": None if step is None else 1e3 * step,
            "error": "" if error is None else f"{type(error).__name__}: {error}",
            "machine": share.machine(),
            "job": share.job(),
        }
        with open(os.path.join(self._folder, FACTS), "w", encoding="utf-8") as file:
            json.dump(facts, file)
