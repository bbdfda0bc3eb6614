"""A job of which every batch of an epoch counts: its replays, and those of levers, are of the whole epoch. Needs no
torch."""

from __future__ import annotations

import array
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from modscope._fit.job import Edit, Job, Moment, Outcome
from modscope._fit.levers.registry import Cost, Lever, Tried
from modscope._predict.capture_of_script import PredictedScript, epoch_of
from modscope._predict.epoch.answer import EpochAnswer
from modscope._predict.epoch.report import EpochOnGpu
from modscope._predict.epoch.steps_of_shapes import ShapedSteps
from modscope._predict.epoch.text import sentences
from modscope._read.categories import PHASES
from modscope._read.load import CaptureError

_OPERATOR_BITS, _PHASE_BITS = 32, 3
"""Of the operators that a log of a capture has: the module's number, the phase, and the operator (ms_replay_log)."""


class EpochJob(Job):
    """What is edited are the steps that were predicted; steps of the other batches follow from them, as in
    ``modscope predict --epoch``."""

    def __init__(self, name: str, epoch: EpochAnswer) -> None:
        epoch.capture.stream = epoch.capture.whole_stream()
        super().__init__(name, capture=epoch.capture)
        self._epoch = epoch
        marks = range(len(epoch.run.sampled.marks) - 1)  # the end of the last step cannot be told from the script's
        self._adds = array.array("Q", map(epoch.steps.requests_before, marks))
        self._operators = epoch.steps.operators(self._adds[-1])
        self._latest: tuple[list[Edit], ShapedSteps] | None = None

    @property
    def epoch(self) -> EpochAnswer:
        return self._epoch

    def replay(self, edits: Sequence[Edit] = (), conf: str = "", capacity: int | None = None) -> Outcome:
        """As that of a job, of the whole epoch."""
        steps = self._edited([*self.base, *edits])
        free = self._replay(steps, conf)
        reserved, within, failed, retries = free["reserved_peak"], None, None, 0
        fits = capacity is None or reserved <= capacity
        if capacity is not None and not fits:
            tight = self._replay(steps, conf, capacity=capacity)
            fits, retries = tight["first_failure"] is None, tight["retries"]
            within = tight["reserved_peak"] if fits else None
            failed = None if fits else tight
        return Outcome(
            reserved,
            free["allocated_peak"],
            self._at_batch(steps, free["reserved_at"], 0),
            fits,
            retries,
            self._at_batch(steps, failed["first_failure"], failed["operator"]) if failed else None,
            failed["requested"] if failed else 0,
            within,
        )

    def retries_of_a_step(self, capacity: int) -> int | None:
        """Of the whole epoch, not of one step: that is not known."""
        return None

    def _replay(self, steps: ShapedSteps, conf: str, **how: Any) -> Any:
        settings = ",".join(filter(None, (self.conf, conf))) or None
        version = self.capture.info.get("rules") or self.capture.info.get("torch")
        return steps.replay(self.epoch.batches, version=version, conf=settings, **how)

    def _edited(self, edits: list[Edit]) -> ShapedSteps:
        """The steps with these edits, of which the latest are kept: a lever is replayed for several capacities."""
        if self._latest is None or self._latest[0] != edits:
            log, marks = self.stream.log(self.number, self._adds, self._operators, edits or None)
            self._latest = edits, self.epoch.steps.with_log(log, [*array.array("Q", marks)])
        return self._latest[1]

    def _at_batch(self, steps: ShapedSteps, at: int, operator: int) -> Moment:
        step = steps.computed(at) // self.epoch.run.sampled.period + 1
        if not operator:
            return Moment(step, self._peak.phase, self._peak.module)
        owner = operator >> _OPERATOR_BITS
        phase, path = owner % (1 << _PHASE_BITS), owner >> _PHASE_BITS
        return Moment(step, PHASES[phase], self.modules[path] if path < len(self.modules) else "?")

    @cached_property
    def _peak(self) -> Moment:
        """Where the steps that were predicted reserve most."""
        return self._moment(self.capture.replay(self.device, self.base, conf=self.conf)["reserved_at"])


# ---- a predicted script ----


def job_of(script: PredictedScript, path: str) -> Job:
    """The script as it was predicted: with --epoch, all batches of its epoch."""
    job = EpochJob(path, epoch_of(path)) if script.reads_epoch else Job(path)
    if job.device == "cpu":
        raise CaptureError(f'{script.name} used no GPU: it uses one where its device is "cuda"')
    job.file = script.name
    return job


# ---- what is said beside the levers ----


def what_was_read(epoch: EpochAnswer, row: EpochOnGpu) -> list[str]:
    """``row``: what the epoch comes to on the GPU."""
    return sentences(epoch.about(), row)


def cap_of(epoch: EpochAnswer, row: EpochOnGpu) -> list[Tried]:
    """Shorter batches, as a lever: the largest length with which every batch fits."""
    cap = row["cap"]
    if cap is None:
        return []
    many = "1 batch" if cap["cut"] == 1 else f"{cap['cut']:,} batches"
    name = f"lengths of at most {cap['value']:,} instead of {cap['was']:,}"
    moment = Moment(row["reserved_at"]["step"], "idle", "Global")
    outcome = Outcome(cap["reserved_peak"], cap["allocated_peak"], moment, True, 0, None, 0)
    return [Tried(Lever(("cap",), name, [], (Cost(f"samples of {many} are cut"),)), outcome)]
