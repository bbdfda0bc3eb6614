"""``modscope predict --epoch``: run the script on the virtual GPU with batches of the shapes that decide, replay its
whole epoch, and say what comes of it."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

from modscope._predict.epoch.answer import EpochAnswer, EpochRun, why_no_epoch, why_unreadable
from modscope._predict.epoch.look_ahead import PROGRESS
from modscope._predict.epoch.report import EpochOnGpu, PredictEpoch
from modscope._predict.epoch.text import lines
from modscope._predict.options import records_of
from modscope._predict.process import for_part, start, wait
from modscope._predict.result import Predicted
from modscope._predict.several_gpus import kinds_of, nothing_to_predict, read_facts
from modscope._read.load import Capture, load
from modscope._show.terminal import StatusLine, as_lines, say
from modscope._virtual.gpus import GPUS, Gpu


def predict(arguments: argparse.Namespace, draw: Callable[[PredictEpoch, Capture], None] | None = None) -> Predicted:
    """``draw``: called with the figures of one GPU, and with the capture of the steps that were predicted."""
    began = time.monotonic()
    gpus: list[Gpu] = arguments.gpu or list(GPUS.values())
    script, prediction = records_of(arguments)
    status = 0
    found: dict[Gpu, EpochOnGpu] = {}
    with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
        for number, kind in enumerate(kinds_of(gpus)):
            part = os.path.join(folder, str(number))
            own, asked = for_part(script, prediction, part, gpus=[gpu.name for gpu in kind])
            line = _Line(part, script.program)
            ended = wait(start(own, asked, silent=number > 0), line.tick)
            line.clear()
            status = status or ended
            facts = read_facts(part)
            if facts is None or "nothing" in facts:
                return nothing_to_predict(script, prediction, facts, status)
            run = EpochRun.of_part(part)
            if run is None:
                say(why_no_epoch(facts))
                return Predicted(status or 1)
            if not run.read.batches:
                say(why_unreadable(run))
                return Predicted(status or 1)
            answer = EpochAnswer(run, facts, load(facts["capture"]))
            found |= {gpu: answer.on(gpu) for gpu in kind}
            about, notes, version = answer.about(), facts["notes"], facts["torch"]
            curve, distribution = answer.curve(), answer.distribution()
        figures: PredictEpoch = {
            **about,
            "seconds": round(time.monotonic() - began, 3),
            "gpus": [found[gpu] for gpu in gpus],
            "curve": curve,
            "distribution": distribution,
            "script_notes": notes,
            "torch": version,
        }
        if draw is not None:
            draw(figures, answer.capture)
    return Predicted(status, {**figures}, lambda screen: as_lines(lines(figures, script.target), screen))


class _Line(StatusLine):
    """Says in a terminal what the script's process says in a file."""

    def __init__(self, part: str, program: str) -> None:
        super().__init__()
        self._path, self._program = os.path.join(part, PROGRESS), program
        self._last = 0.0

    def tick(self) -> None:
        if not self.is_on or time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        try:
            with open(self._path, encoding="utf-8") as file:
                what = file.read()
        except OSError:
            what = ""
        self.show(f"[modscope] {what or f'predicting steps of {self._program}'}")
