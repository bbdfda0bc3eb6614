"""Snapshots: bytes by device and category, and by device, module and category."""

from __future__ import annotations

import copy
import dataclasses

import torch

from modscope import _text
from modscope._categories import CATEGORIES, Raw, State, Sums, sums_of
from modscope._devices import devices

Snapshot = dict[torch.device, Sums]
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
    snapshots: dict[State, list[Snapshot]]

    def copy(self) -> ModuleStats:
        """A deep copy, which the caller may change."""
        return copy.deepcopy(self)


def snapshot_of(raw: list[Raw]) -> Snapshot:
    """``raw`` is in the order of the devices' numbers. A device that holds nothing is left out, except the CPU."""
    return {device: sums_of(sums) for device, sums in zip(devices(), raw) if any(sums) or device.type == "cpu"}


def by_module(raw: RawModules, children: bool) -> ModuleSnapshot:
    """``children``: add what a module owns to all modules around it too, by their dotted names."""
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
            fqn: sums_of(tuple(row))
            for fqn, row in sorted(modules.items(), key=lambda item: _text.natural_key(item[0]))
        }
        for device, modules in found.items()
    }
