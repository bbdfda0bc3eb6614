"""What ``modscope run`` says at the end, in one line."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from modscope._commands.terminal import size

if TYPE_CHECKING:
    from modscope._peak import Peak
    from modscope._record import Outcome


def _short(name: str) -> str:
    return name if len(name) <= 120 else f"{name[:50]}...{name[-67:]}"


def _where(peak: Peak) -> str:
    step = f"in step {peak.step}" if peak.step else "before the first step"
    if peak.phase == "optimizer":
        return f"{step}, in the optimizer's step"
    doing = "" if peak.phase == "idle" else f"{peak.phase} "
    return f"{step}, {doing}" + ("outside any module" if peak.module == "Global" else f"of {peak.module}")


def _peaks(peaks: dict[str, Peak]) -> str:
    """The device that matters most with when and where, then the others."""
    if not peaks:
        return "Nothing was allocated."
    first, *others = sorted(peaks, key=lambda device: (device == "cpu", -peaks[device].bytes))
    text = f"Peak {size(peaks[first].bytes)} on {first} {_where(peaks[first])}"
    return "; ".join([text, *(f"{size(peaks[device].bytes)} on {device}" for device in others)]) + "."


def _losses(outcome: Outcome) -> str:
    why = f" ({outcome.error})" if outcome.error else ""
    if outcome.lost:
        return f'{outcome.lost:,} events are not in it{why}: what it tells is "at least".'
    return f"Not all could be written{why}." if why else ""


def closing(name: str, outcome: Outcome, how: str) -> str:
    """``name``: the capture's; "" if none was asked for."""
    peaks = _peaks(outcome.peaks)
    if not name:
        return peaks
    if not outcome.bytes:
        return f"could not write {shlex.quote(name)}: {outcome.error or 'nothing of it was kept'}. {peaks}"
    name = shlex.quote(name)
    see = f"tree {name} --at oom" if how == "exception" and outcome.out_of_memory else f"summary {name}"
    parts = [f"wrote {name} ({size(outcome.bytes)}).", _losses(outcome), peaks, f"See it:  modscope {see}"]
    return " ".join(filter(None, parts))
