"""``modscope predict --fail-unless-fits`` and ``--fail-above``: whether a prediction lets a job through. Needs no
torch."""

from __future__ import annotations

from collections.abc import Sequence

from modscope._predict.options import PredictOptions
from modscope._predict.result import Result, failed_early
from modscope._read.text import rough_size, size
from modscope._virtual.gpus import find_gpu

STATUS = 3
"""The exit status of a job that is not let through."""


def why_stopped(asked: PredictOptions, results: Sequence[Result]) -> str | None:
    """Why the job is not let through, in a sentence; None: it is, or nothing was asked. It must pass on every GPU and
    rank. A script that failed before its first optimizer step has its own status."""
    if not asked.fail_unless_fits and not asked.fail_above or any(map(failed_early, results)):
        return None
    return next((why for result in results if (why := _why(asked, result)) is not None), None if results else _NOTHING)


_NOTHING = "Status 3: nothing could be predicted, so that it is not known what the job needs."


def _why(asked: PredictOptions, result: Result) -> str | None:
    gpu = find_gpu(result["gpu"]).label
    if not result["fits"]:
        return f"Status 3: the job does not fit the {gpu}."
    if not result["reserved_peak"]:
        return _NOTHING
    if asked.fail_above and result["reserved_peak"] > asked.fail_above:
        limit = rough_size(asked.fail_above)
        return f"Status 3: the job reserves {size(result['reserved_peak'])} of the {gpu}, more than {limit}."
    return None
