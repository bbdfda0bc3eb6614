"""What a ``MemTracker`` answers: snapshots of bytes by device, module and category, what was held around each module's
calls, the peaks over all ledgers that it counted with, and the text of each."""

from __future__ import annotations

import copy
import dataclasses
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from torch.utils.weak import WeakIdKeyDictionary

import torch
from modscope import _native
from modscope._read import text
from modscope._read.categories import CATEGORIES, TOTAL, Raw, State, Sums, sums_of
from modscope._read.text import bytes_per, size_in
from modscope._read.types import Peak
from modscope._torch.devices import devices

SumsByDevice = dict[torch.device, Sums]
ModuleSnapshot = dict[torch.device, dict[str, Sums]]
RawModules = list[tuple[int, str, Raw]]  # the device's number, fqn, bytes by category


@dataclasses.dataclass(frozen=True)
class ModuleStats:
    """What the program held around a module's calls, in the latest call of its root module."""

    mod_fqn: str
    parameter_mem: int
    buffer_mem: int
    input_mem: int
    output_mem: int
    local_peak: dict[torch.device, int]
    snapshots: dict[State, list[SumsByDevice]]

    def copy(self) -> ModuleStats:
        """A deep copy, which the caller may change."""
        return copy.deepcopy(self)


def snapshot_of(raw: list[Raw]) -> SumsByDevice:
    """The bytes of each device. ``raw`` is in the order of the devices' numbers. A device that holds nothing is left
    out, except the CPU."""
    return {device: sums_of(sums) for device, sums in zip(devices(), raw) if any(sums) or device.type == "cpu"}


def by_module(raw: RawModules, children: bool) -> ModuleSnapshot:
    """The bytes of each module. ``children``: add what a module owns to all modules around it too, by their dotted
    names."""
    numbered = devices()
    found: dict[torch.device, dict[str, list[int]]] = {}
    for number, fqn, sums in raw:
        modules = found.setdefault(numbered[number], {})
        names = [fqn]
        while children and "." in names[-1]:
            names.append(names[-1].rpartition(".")[0])
        for name in names:
            row = modules.setdefault(name, [0] * len(CATEGORIES))
            for i, value in enumerate(sums):
                row[i] += value
    return {
        device: {
            fqn: sums_of(tuple(row)) for fqn, row in sorted(modules.items(), key=lambda item: text.natural_key(item[0]))
        }
        for device, modules in found.items()
    }


# ---- around the calls of each module, read from the ledger on demand ----

# By the module's id: a reference to the module, and a function that returns its stats.
StatsByModule = dict[int, tuple["weakref.ref[torch.nn.Module]", Callable[[], ModuleStats]]]


class StatsView(Mapping[torch.nn.Module, ModuleStats]):
    """A live view of the stats of each module that was called. It keeps no module alive."""

    def __init__(self, read: Callable[[], StatsByModule], clear: Callable[[], None]) -> None:
        self._read, self._clear = read, clear

    def __getitem__(self, module: torch.nn.Module) -> ModuleStats:
        ref, stats = self._read().get(id(module), (None, None))
        if ref is None or stats is None or ref() is not module:
            raise KeyError(module)
        return stats()

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter([module for ref, _ in self._read().values() if (module := ref()) is not None])

    def __len__(self) -> int:
        return sum(ref() is not None for ref, _ in self._read().values())

    def __contains__(self, module: object) -> bool:
        ref, _ = self._read().get(id(module), (None, None))
        return ref is not None and ref() is module

    def __deepcopy__(self, memo: dict[int, Any]) -> MutableMapping[Any, Any]:
        """The stats as they are now, for the same modules. The copy keeps no module alive either."""
        copied = WeakIdKeyDictionary()
        for module, stats in self.items():
            copied[module] = copy.deepcopy(stats, memo)
        return copied

    def clear(self) -> None:
        self._clear()

    def __repr__(self) -> str:
        return f"<memory of {len(self)} modules>"


class LazyStats:
    """A module's stats, computed when they are first asked for."""

    def __init__(self, ledger: _native.Ledger, module: weakref.ref[torch.nn.Module], calls: list[Any]) -> None:
        self._ledger, self._module, self._calls = ledger, module, calls
        self._stats: ModuleStats | None = None

    def __call__(self) -> ModuleStats:
        if self._stats is None:
            self._stats = self._compute()
        return self._stats

    def _compute(self) -> ModuleStats:
        fqn, _, input_mem, output_mem = max(self._calls, key=lambda call: max(snapshot[1] for snapshot in call[1]))
        by_state: dict[State, list[tuple[int, SumsByDevice]]] = {}
        for _, call_snapshots, _, _ in self._calls:
            for state, time, raw in call_snapshots:
                by_state.setdefault(State(state), []).append((time, snapshot_of(raw)))
        snapshots = {
            state: [snapshot for _, snapshot in sorted(taken, key=lambda item: item[0])]
            for state, taken in by_state.items()
        }
        peaks = snapshots.get(State.PEAK_BW) or snapshots.get(State.PEAK_FW) or [{}]
        module = self._module()
        return ModuleStats(
            mod_fqn=fqn,
            parameter_mem=self._ledger.held(list(module.parameters())) if module is not None else 0,
            buffer_mem=self._ledger.held(list(module.buffers())) if module is not None else 0,
            input_mem=input_mem,
            output_mem=output_mem,
            local_peak={device: sums[TOTAL] for device, sums in peaks[-1].items()},
            snapshots=snapshots,
        )


# ---- peaks ----


class PeakFigures(NamedTuple):
    raw: Raw
    """The bytes at the peak, by category."""
    peak: Peak
    kinds: Raw
    """The bytes at the peak, by kind. The first number stands for bytes without a kind, and is 0."""


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
        """What each module held by kind at its device's peak."""
        return self._rows(self._current.module_kinds() if self._current else [], lambda past: past.kinds)

    def _rows(self, current: RawModules, of_past: Callable[[_Past], RawModules]) -> RawModules:
        """The rows at each device's peak, of the ledger that is counting or of what was kept."""
        numbers = {device: number for number, device in enumerate(devices())}
        rows: RawModules = []
        for device, figures in self.by_device().items():
            past = self._past.get(device)
            source = of_past(past) if past and past.figures is figures else current
            rows += [row for row in source if row[0] == numbers[device]]
        return rows


# ---- as text ----


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An aligned table, with its figures aligned to the right."""
    lines = [tuple(headers), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    rule = "  ".join("=" * width for width in widths)

    def text(line: Sequence[str], heading: bool = False) -> str:
        cells = (
            cell.rjust(width) if re.match(r"-?\d", cell) and not heading else cell.ljust(width)
            for cell, width in zip(line, widths)
        )
        return "  ".join(cells)

    return "\n".join([rule, text(lines[0], True), rule, *(text(line) for line in lines[1:]), rule])


def _shown(snapshot: SumsByDevice) -> list[tuple[str, Sums]]:
    return [(str(device), sums) for device, sums in snapshot.items() if sums["Total"] > 0]


def lines_of(snapshot: SumsByDevice, units: str) -> str:
    return "\n".join(
        "\n".join([f"Device: {device}", *(f"\t{key}: {size_in(value, units)}" for key, value in sums.items())])
        for device, sums in _shown(snapshot)
    )


def table_of(snapshot: SumsByDevice, units: str) -> str:
    shown = _shown(snapshot)
    headers = ["Device", *map(str, shown[0][1])]
    return table(headers, ([device, *(size_in(v, units) for v in sums.values())] for device, sums in shown))


def snapshot_text(snapshot: SumsByDevice, units: str, tabulate: bool) -> str:
    bytes_per(units)
    if not _shown(snapshot):
        return "No memory tracked."
    return table_of(snapshot, units) if tabulate else lines_of(snapshot, units)


def states_text(snapshots: Mapping[Any, Sequence[SumsByDevice]], units: str, tabulate: bool) -> str:
    """The call snapshots of a module, by state."""
    bytes_per(units)
    if not tabulate:
        parts = []
        for state, taken in snapshots.items():
            parts.append(str(state))
            for i, snapshot in enumerate(taken):
                parts += [f"# {i + 1}:", lines_of(snapshot, units)]
        return "\n".join(parts) + "\n"
    rows: list[list[str]] = []
    words: list[str] = []
    for state, taken in snapshots.items():
        for i, snapshot in enumerate(taken):
            for n, (device, sums) in enumerate(_shown(snapshot)):
                words = list(map(str, sums))
                call = f"{state} # {i + 1}" if n == 0 else ""
                rows.append([call, device, *(size_in(v, units) for v in sums.values())])
    return table(["State & Call", "Device", *words], rows)
