"""A capture of a run that died half-way, beside a capture of the same program that did not: what is missing is taken from
the other one. Needs no torch."""

from __future__ import annotations

from modscope._fit_job import Job
from modscope._load import CaptureError
from modscope._text import describe_moment, size

_MOST = 0.05  # by which two runs of one program may differ until one of them dies


def join(first: Job, second: Job) -> tuple[Job, list[str]]:
    """The job to judge, and sentences about it. One of the two must have died. CaptureError says why they do not suit each
    other."""
    if first.died == second.died:
        what = "Both runs died" if first.died else "Neither run died"
        raise CaptureError(
            f"{what}: give the capture of a run that died, and one of the same program that has whole steps, such as a predicted one"
        )
    died, whole = (first, second) if first.died else (second, first)
    begin = f"{died.file} and {whole.file} are not of one program"
    if whole.device != died.device:
        raise CaptureError(f"{begin}: {died.device} and {whole.device} hold most of the memory")
    _check_calls(died, whole, begin)
    difference = _compare(died, whole)
    last = died.calls[-1]
    where = describe_moment(last.step, "forward", died.modules[last.path])
    step = died.steps[-1][1] if died.steps else 0
    whole.conf = died.conf or whole.conf
    whole.fraction = min(died.fraction, whole.fraction)
    return whole, [
        f"{died.file} ends in step {step}; its last call began {where}. Figures are those of {whole.file}; until then, both differ by {100 * difference:.1f} %."
    ]


def _check_calls(died: Job, whole: Job, begin: str) -> None:
    if not died.calls:
        raise CaptureError(
            f"{died.file} ends before the first call of a module: there is nothing to compare with {whole.file}"
        )
    for mine, other in zip(died.calls, whole.calls):
        names = died.modules[mine.path], whole.modules[other.path]
        if names[0] != names[1]:
            raise CaptureError(f"{begin}: in step {mine.step} they call {names[0]} in one and {names[1]} in the other")
    if len(whole.calls) < len(died.calls):
        extra = died.modules[died.calls[len(whole.calls)].path]
        raise CaptureError(
            f"{whole.file} ends before {died.file} does: it has no further call where the other calls {extra}. Record more steps of it"
        )


def _compare(died: Job, whole: Job) -> float:
    """By how much of it the bytes that both held at most until the last call differ."""
    last = len(died.calls) - 1
    held = [
        job.stream.replay(job.number, [("stop", job.calls[last].begin)], caching=False)["allocated_peak"]
        for job in (died, whole)
    ]
    difference = abs(held[1] - held[0]) / max(held[0], 1)
    if difference > _MOST:
        name = died.modules[died.calls[last].path]
        raise CaptureError(
            f"Until {name} is called in step {died.calls[last].step}, {died.file} holds {size(held[0])} at most and {whole.file} {size(held[1])}: "
            "give a capture of the same program with the same arguments. Of two batches, both runs must have whole steps"
        )
    return float(difference)
