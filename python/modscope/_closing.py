"""The line that ``modscope run`` prints at the end."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from modscope._text import describe_moment, size

if TYPE_CHECKING:
    from modscope._peak import Peak
    from modscope._record import Outcome


def _describe_peaks(peaks: dict[str, Peak]) -> str:
    """The main device's peak with its moment, then the other devices' peaks."""
    if not peaks:
        return "Nothing was allocated."
    main, *others = sorted(peaks, key=lambda device: (device == "cpu", -peaks[device].bytes))
    peak = peaks[main]
    text = f"Peak {size(peak.bytes)} on {main} {describe_moment(peak.step, peak.phase, peak.module)}"
    return "; ".join([text, *(f"{size(peaks[device].bytes)} on {device}" for device in others)]) + "."


def _describe_losses(outcome: Outcome) -> str:
    why = f" ({outcome.error})" if outcome.error else ""
    if outcome.lost:
        return f'{outcome.lost:,} events are not in it{why}: every figure is "at least".'
    return f"It is not complete{why}." if why else ""


def closing(name: str, outcome: Outcome, how: str, loss: str | None = None) -> str:
    """``name``: the capture's file; "" if none was asked for. ``how`` the program ended, as the capture says it.
    ``loss``: what happened to the file, if it is no longer under its name."""
    peaks = _describe_peaks(outcome.peaks)
    if not name:
        return peaks
    if not outcome.bytes:
        return f"could not write {shlex.quote(name)}: {outcome.error or 'nothing was written'}. {peaks}"
    name = shlex.quote(name)
    if loss:
        return f"the capture {name} {loss} during the run. {peaks}"
    see = f"tree {name} --at oom" if how == "exception" and outcome.out_of_memory else f"summary {name}"
    parts = [f"wrote {name} ({size(outcome.bytes)}).", _describe_losses(outcome), peaks, f"See it:  modscope {see}"]
    return " ".join(filter(None, parts))
