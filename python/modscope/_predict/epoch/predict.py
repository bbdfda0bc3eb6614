"""``modscope predict --epoch``: run the script on the virtual GPU with batches of the shapes that decide, replay its
whole epoch, and say what comes of it."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

from modscope._predict.epoch.answer import EpochRun, answers
from modscope._predict.epoch.look_ahead import EPOCH, PROGRESS
from modscope._predict.epoch.text import lines
from modscope._predict.in_script import LOG
from modscope._predict.options import records_of
from modscope._predict.process import for_part, start, wait
from modscope._predict.result import Facts, Predicted, Result
from modscope._predict.several_gpus import kinds_of, nothing_to_predict, read_facts
from modscope._predict.text import describe_error
from modscope._read.load import load
from modscope._show.terminal import StatusLine, as_lines, say
from modscope._virtual.gpus import GPUS, Gpu


def predict(arguments: argparse.Namespace) -> Predicted:
    began = time.monotonic()
    gpus: list[Gpu] = arguments.gpu or list(GPUS.values())
    script, prediction = records_of(arguments)
    status = 0
    found: dict[Gpu, Result] = {}
    whole: Result = {}
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
            run = _run_of(part)
            if run is None:
                return _without_epoch(facts, status)
            if not run.read.batches:
                say(f"the DataLoader at {run.place} could not be read ahead: {run.read.error or 'it has no batches'}.")
                return Predicted(status or 1)
            whole = answers(run, facts, load(facts["capture"]), kind)
            whole = {**whole, "torch": facts["torch"], "script_notes": facts["notes"]}
            found |= dict(zip(kind, whole["gpus"]))
    figures = {**whole, "seconds": round(time.monotonic() - began, 3), "gpus": [found[gpu] for gpu in gpus]}
    return Predicted(status, figures, lambda screen: as_lines(lines(figures, script.target), screen))


def _run_of(part: str) -> EpochRun | None:
    """None: no training loader was found."""
    try:
        with open(os.path.join(part, EPOCH), encoding="utf-8") as file:
            document = json.load(file)
        with open(os.path.join(part, LOG), "rb") as log:
            return EpochRun.of_json(document, log.read())
    except (OSError, ValueError):
        return None


def _without_epoch(facts: Facts, status: int) -> Predicted:
    if facts["ended"] == "exception":
        why = f"the script failed before steps of all shapes were predicted: {describe_error({**facts})}."
    else:
        why = (
            "no two training steps took batches of one torch.utils.data.DataLoader, so there is no epoch to read. "
            "Predict the script's own steps instead, with --steps and without --epoch."
        )
    say(why)
    return Predicted(status or 1)


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
