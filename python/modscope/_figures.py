"""The figures of memory: snapshots by device and by module."""

from __future__ import annotations

import copy
import dataclasses

import torch

from modscope import _native, _text
from modscope._categories import CATEGORIES, Raw, State, Sums, sums_of

Snapshot = dict[torch.device, Sums]
ModuleSnapshot = dict[torch.device, dict[str, Sums]]
RawModules = list[tuple[int, str, Raw]]  # device, fqn, bytes


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
        """The same stats, that may be changed."""
        return copy.deepcopy(self)


# ---- devices ----

# torch's own numbers of its device types, as its allocators report them.
_TYPES = {"cpu": 0, "cuda": 1, "hip": 6, "xpu": 12, "mps": 13, "meta": 14, "privateuseone": 20}
_names = {number: name for name, number in _TYPES.items()}


def number_device(device: torch.device) -> int:
    """The ledger's number of a device that an operator returned a tensor of."""
    if device.type == "cuda" and not torch.backends.cuda.is_built() and not torch.version.hip:
        raise RuntimeError(
            "modscope: this torch is built without CUDA, and autograd aborts the process for fake 'cuda' tensors. "
            "Use device='cpu' for the fake model, or a CUDA build of torch (no GPU is needed)"
        )
    kind = _TYPES.setdefault(device.type, 40 + len(_TYPES))
    _names[kind] = device.type
    return _native.device_number(kind, -1 if device.index is None else device.index)


def devices() -> list[torch.device]:
    """By the ledger's numbers."""
    return [
        torch.device(_names.get(kind, "privateuseone")) if index < 0 else torch.device(_names[kind], index)
        for kind, index in _native.devices()
    ]


def snapshot_of(raw: list[Raw]) -> Snapshot:
    return {device: sums_of(sums) for device, sums in zip(devices(), raw) if any(sums) or device.type == "cpu"}


def by_module(raw: RawModules, children: bool) -> ModuleSnapshot:
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
        device: {fqn: sums_of(tuple(row)) for fqn, row in sorted(modules.items(), key=lambda item: _text.natural_key(item[0]))}
        for device, modules in found.items()
    }
