"""A script that is predicted on virtual GPUs, each time in a process of its own: as it is, with a plan, with other
settings of the allocator, or with other arguments. For ``modscope fit``, ``plan`` and ``batch``. Needs no torch
itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from modscope._capture import Allocator
from modscope._plan.file import Plan
from modscope._predict.epoch.answer import EpochAnswer, EpochRun, why_no_epoch, why_unreadable
from modscope._predict.in_script import FACTS
from modscope._predict.options import PredictOptions, ShardingChange
from modscope._predict.process import for_part, start, wait
from modscope._predict.progress import Progress
from modscope._predict.result import Facts, ShardingFacts, failed_early
from modscope._predict.text import describe_error, hints
from modscope._read.load import CaptureError, load
from modscope._record.options import ScriptOptions
from modscope._record.run import check_target
from modscope._virtual.device.environment import allocator_settings
from modscope._virtual.gpus import Gpu


def _facts(path: str) -> Facts:
    """What is known of a prediction beside its capture; empty if the script's process ended without it."""
    try:
        with open(os.path.join(os.path.dirname(path), FACTS), encoding="utf-8") as file:
            found: Facts = json.load(file)
            return found
    except (OSError, ValueError):
        return {}


def sharding_of(path: str) -> ShardingFacts | None:
    """How a script whose prediction is at ``path`` uses fully_shard; None: it does not."""
    ranks = _facts(path).get("ranks")
    return ranks["fully_shard"] if ranks else None


def is_compiled(path: str) -> bool:
    """Whether Inductor compiled something of a script whose prediction is at ``path``, with a backward or without."""
    compiled = _facts(path).get("compiled")
    return bool(compiled and compiled["graphs"] > compiled["uncompiled_graphs"])


def epoch_of(path: str) -> EpochAnswer:
    """What a prediction at ``path`` says of the whole epoch. CaptureError if it read none."""
    facts, run = _facts(path), EpochRun.of_part(os.path.dirname(path))
    if run is None:
        raise CaptureError(why_no_epoch(facts))
    if not run.read.batches:
        raise CaptureError(why_unreadable(run))
    return EpochAnswer(run, facts, load(path))


_CONF = "PYTORCH_CUDA_ALLOC_CONF"


class PredictedScript:
    """A script with the captures of its predictions, which are deleted with it."""

    def __init__(self, script: ScriptOptions, prediction: PredictOptions) -> None:
        """Refused or CaptureError if the script cannot be run, or the allocator's settings are not known."""
        self._script, self._prediction = script, prediction
        try:
            Allocator(prediction.torch or None, allocator_settings())
        except ValueError as error:
            raise CaptureError(str(error)) from None
        check_target(script.target)
        self.target, self.name = script.target, script.program
        self.ranks, self.per_node = prediction.ranks, prediction.ranks_per_node
        """The script is one of so many ranks; 0: it is alone."""
        self.reads_epoch = prediction.epoch
        self._folder = tempfile.TemporaryDirectory(prefix="modscope-")
        self._count = 0

    def __enter__(self) -> PredictedScript:
        return self

    def __exit__(self, *unused: object) -> None:
        self._folder.cleanup()

    def predict(
        self,
        gpus: Sequence[Gpu],
        what: str = "",
        *,
        plan: Plan | None = None,
        conf: str = "",
        target: Sequence[str] | None = None,
        sharding: ShardingChange | None = None,
        activation_budget: float | None = None,
    ) -> str:
        """The path of a capture, made with unlimited memory. ``conf`` is added to the allocator's settings; ``target``
        replaces the script's; ``sharding``: more ranks, and what fully_shard gets; ``activation_budget``: of what is
        compiled. The first prediction shows on stderr
        what the script prints, the others do not. ``what`` says to somebody who waits what is different this time.
        CaptureError: the script did not get far enough."""
        self._count += 1
        part = os.path.join(self._folder.name, str(self._count))
        own, prediction = for_part(self._script, self._prediction, part, gpus=[gpu.name for gpu in gpus])
        if prediction.epoch and target is None and self._count > 1:
            prediction = prediction._replace(read_before=os.path.join(self._folder.name, "1"))
        if plan is not None:
            own = own._replace(plan=os.path.join(part, "plan.json"))
            plan.write(own.plan)
        if target is not None:
            own = own._replace(target=list(target))
        if sharding is not None:
            ranks = sharding.ranks or prediction.ranks
            prediction = prediction._replace(ranks=ranks, reshard=sharding.reshard, shard_over=sharding.over)
        prediction = prediction._replace(activation_budget=activation_budget)
        status = self._run(own, prediction, what, conf)
        facts = _facts(own.output)
        path = facts.get("capture") or own.output  # that of a rank has its number in the name
        self._check_steps(facts)
        if not os.path.isfile(path):
            raise CaptureError(
                f"{self.name} ended with status {status}{f' ({what})' if what else ''}, and nothing could be predicted"
            )
        return path

    def _check_steps(self, facts: Facts) -> None:
        """CaptureError if the script failed before its first optimizer step."""
        result = {"steps": 0, **facts, "fits": True}  # memory is unlimited
        if facts and failed_early(result):
            why = (
                f"{self.name} failed before its first optimizer step ({describe_error(result)}), so what it "
                f"needs is not known"
            )
            raise CaptureError(". ".join([why, *(hint.removesuffix(".") for hint in hints(result))]))

    def _run(self, script: ScriptOptions, prediction: PredictOptions, what: str, conf: str) -> int:
        settings = ",".join(filter(None, (allocator_settings(), conf)))
        environment = {**os.environ, _CONF: settings} if conf else None
        silent = self._count > 1
        out = subprocess.DEVNULL if sys.stderr is None else 2
        again = f" again, prediction {self._count}" if silent else ""
        progress = Progress(f"{self.name}{again}{f' ({what})' if what else ''}", script.steps, [prediction.part])
        progress.show(0)
        try:
            errors = None if silent else out
            process = start(script, prediction, silent=silent, out=out, errors=errors, environment=environment)
            return wait(process, progress.tick)
        finally:
            progress.done()
