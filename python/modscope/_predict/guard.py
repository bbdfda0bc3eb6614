"""``modscope predict --fail-unless-fits`` and ``--fail-above``: whether a prediction lets a job through. Needs no
torch."""

from __future__ import annotations

from collections.abc import Sequence

from modscope._predict.options import PredictOptions
from modscope._predict.result import Result, failed_early, verdict_of
from modscope._read.text import rough_size, size
from modscope._virtual.certainty import NOT, OPEN
from modscope._virtual.gpus import find_gpu

STATUS = 3
"""The exit status of a job that is not let through, also where that is because nothing is known: 2 is that of wrong
options, and 1 that of many scripts which fail."""


def why_stopped(asked: PredictOptions, results: Sequence[Result]) -> str | None:
    """Why the job is not let through, in a sentence; None: it is, or nothing was asked. It must pass on every GPU and
    rank. A script that failed before its first optimizer step has its own status."""
    if not asked.fail_unless_fits and not asked.fail_above or any(map(failed_early, results)):
        return None
    return next((why for result in results if (why := _why(asked, result)) is not None), None if results else _NOTHING)


_NOTHING = "Status 3: nothing could be predicted, so that it is not known what the job needs."


def _why(asked: PredictOptions, result: Result) -> str | None:
    gpu, verdict = find_gpu(result["gpu"]).label, verdict_of(result)
    if verdict.answer == OPEN and (asked.fail_unless_fits or not result["fits"]):
        return f"Status 3: it is too close to tell whether the job fits the {gpu}."
    if verdict.answer == NOT:
        return f"Status 3: the job does not fit the {gpu}."
    if not result["reserved_peak"]:
        return _NOTHING
    if result["timed_out"] and not result["steps"]:
        return "Status 3: the script was stopped before its first step ended, so that it is not known what it needs."
    if asked.fail_above and result["reserved_peak"] > asked.fail_above:
        limit = rough_size(asked.fail_above)
        return f"Status 3: the job reserves {size(result['reserved_peak'])} of the {gpu}, more than {limit}."
    return None
