"""The peaks of one ``MemTracker``, over all the ledgers that it has counted with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from modscope import _native
from modscope._categories import Raw
from modscope._devices import devices
from modscope._peak import Peak
from modscope._snapshots import RawModules


class PeakFigures(NamedTuple):
    raw: Raw
    """Bytes by category."""
    peak: Peak
    kinds: Raw
    """Bytes by kind; the first are those without one: 0."""


def _read_peaks(peak_tracker: _native.PeakTracker) -> dict[torch.device, PeakFigures]:
    peaks = {}
    for device, (raw, step, phase, module, owner), kinds in zip(devices(), peak_tracker.peaks(), peak_tracker.kinds()):
        peaks[device] = PeakFigures(raw, Peak(sum(raw), step, phase, module, owner), kinds)
    return peaks


class _Past(NamedTuple):
    """A peak of a ledger that is not followed any more."""

    figures: PeakFigures
    modules: RawModules
    kinds: RawModules


class PeakHistory:
    """The highest peak of each device: of the ledger that is counting, and of those that were used before it."""

    def __init__(self) -> None:
        self._current: _native.PeakTracker | None = None
        self._past: dict[torch.device, _Past] = {}

    def begin(self, ledger: _native.Ledger, by_module: bool) -> bool:
        """Follow the peak of this ledger from now on. False if one is being followed already."""
        if self._current is not None:
            return False
        self._current = _native.PeakTracker(ledger, by_module)
        return True

    def end(self) -> None:
        """Keep the peaks as they are now, and follow the ledger no longer. May be called again."""
        if self._current is None:
            return
        modules, kinds = self._current.modules(), self._current.module_kinds()
        for device, figures in _read_peaks(self._current).items():
            if device not in self._past or figures.peak.bytes > self._past[device].figures.peak.bytes:
                self._past[device] = _Past(figures, modules, kinds)
        self._current = None

    def reset(self) -> None:
        """Forget all peaks, and begin a new one with what is held now."""
        self._past.clear()
        if self._current is not None:
            self._current.reset()

    def by_device(self) -> dict[torch.device, PeakFigures]:
        peaks = _read_peaks(self._current) if self._current else {}
        for device, past in self._past.items():
            if device not in peaks or past.figures.peak.bytes > peaks[device].peak.bytes:
                peaks[device] = past.figures
        return peaks

    def modules(self) -> RawModules:
        """What each module held at its device's peak."""
        return self._rows(self._current.modules() if self._current else [], lambda past: past.modules)

    def module_kinds(self) -> RawModules:
        """The same by kind."""
        return self._rows(self._current.module_kinds() if self._current else [], lambda past: past.kinds)

    def _rows(self, current: RawModules, of_past: Callable[[_Past], RawModules]) -> RawModules:
        """At each device's peak: of the ledger that is counting, or of what was kept."""
        numbers = {device: number for number, device in enumerate(devices())}
        rows: RawModules = []
        for device, figures in self.by_device().items():
            past = self._past.get(device)
            source = of_past(past) if past and past.figures is figures else current
            rows += [row for row in source if row[0] == numbers[device]]
        return rows
