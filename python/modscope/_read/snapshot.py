"""The bytes that were held at one moment of a capture, by device, module, line and category."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from modscope import _capture
from modscope._read.categories import CATEGORIES, TOTAL, Category, Kind, Raw, Sums, kinds_of, sums_of
from modscope._read.lines import Place, Places
from modscope._read.module_tree import Branch, grow, sum_by_name
from modscope._read.text import natural_key
from modscope._read.types import Block, Names, find_main_device, plain

_BUSIEST = ("recompute", "backward", "optimizer", "forward", "evaluation")


class Snapshot:
    """The bytes that were held at a moment, by device, module and category."""

    def __init__(self, names: Names, raw: _capture.RawSnapshot, places: Places | None = None) -> None:
        self._names = names
        self._places = places or Places([])
        self._raw = raw
        self.moment = raw.moment
        self.time = raw.time / 1e6
        self.step = raw.step
        self.optimizer_steps = raw.optimizer_steps
        """How many optimizer steps had ended."""
        self.is_lower_bound = raw.is_lower_bound
        """Whether an event before it was lost or is damaged, or of the peak whether any event was: every figure is then
        "at least"."""
        self.block_count = raw.count
        """How many blocks are held, on all devices."""

    def __repr__(self) -> str:
        return f"<Snapshot at {self.time:.3f} s, step {self.step}: {self.block_count} blocks>"

    def to_dict(self) -> dict[str, Any]:
        """The moment and all its figures by device, of plain JSON types. ``modules`` is ``by_module()``."""
        from modscope._read.summary import moment_of

        figures = {
            "is_lower_bound": self.is_lower_bound,
            "optimizer_steps": self.optimizer_steps,
            "block_count": self.block_count,
            "totals": self.totals,
            "kinds": self.kinds,
            "reserved": self.reserved,
            "outside": self.outside,
            "modules": self.by_module(),
        }
        found: dict[str, Any] = plain({**moment_of(self), **figures})
        return found

    def _repr_html_(self) -> str:
        from modscope._show import notebook

        return notebook.of_snapshot(self)

    @cached_property
    def totals(self) -> dict[str, Sums]:
        """Device to category to bytes, with "Total"."""
        return {device: sums_of(raw) for device, raw in zip(self._names.devices, self._raw.totals())}

    @cached_property
    def kinds(self) -> dict[str, Sums]:
        """Device to kind to bytes: what FSDP2 or DDP holds, within the categories. What holds nothing is left out."""
        found = {device: kinds_of(raw) for device, raw in zip(self._names.devices, self._raw.kinds())}
        return {device: kinds for device, kinds in found.items() if kinds}

    def kinds_by_module(self) -> dict[str, dict[str, Sums]]:
        """Device to module to kind to bytes: a module's own."""
        found: dict[str, dict[str, Sums]] = {}
        for number, path, raw in self._raw.module_kinds():
            kinds = found.setdefault(self._names.devices[number], {}).setdefault(self._names.module(path), {})
            for kind, value in kinds_of(raw).items():
                kinds[kind] = kinds.get(kind, 0) + value
        return found

    @cached_property
    def reserved(self) -> dict[str, int]:
        """What each device's allocator had reserved; 0 where it does not report that."""
        return dict(zip(self._names.devices, self._raw.reserved()))

    @cached_property
    def outside(self) -> dict[str, int]:
        """The part of each device's bytes that is not from torch's allocators: numpy, mmap, shared memory."""
        return dict(zip(self._names.devices, self._raw.outside()))

    @cached_property
    def running(self) -> tuple[str, str]:
        """The phase and the innermost module of the busiest thread."""
        threads = {phase: path for _, _, phase, path in reversed(self._raw.threads())}
        for phase in _BUSIEST:
            if phase in threads:
                return phase, self._names.module(threads[phase])
        return "idle", "Global"

    @cached_property
    def main_device(self) -> str:
        """The accelerator that holds most at this moment, or else the CPU."""
        return find_main_device({device: sums[TOTAL] for device, sums in self.totals.items()})

    def tree(self, device: str | None = None) -> tuple[Branch, ...]:
        """The modules that hold something on a device (by default the main one), largest first. "Global" owns
        what was allocated outside any module."""
        number = self._names.device_number(self.main_device if device is None else device)
        return grow(self._modules.get(number, ()))

    @cached_property
    def _modules(self) -> dict[int, list[tuple[str, Raw]]]:
        """The modules that hold something on a device, by the device's number."""
        found: dict[int, list[tuple[str, Raw]]] = {}
        for device, path, raw in self._raw.modules():
            found.setdefault(device, []).append((self._names.module(path), raw))
        return found

    def by_module(self, children: bool = False) -> dict[str, dict[str, Sums]]:
        """Device to module to category to bytes, with "Total": a module's own, or with ``children`` its subtree's.
        Largest first; with ``children`` a module is followed by those below it."""
        found: dict[str, dict[str, Sums]] = {}
        for number in sorted(self._modules):
            device = self._names.devices[number]
            modules = self._subtrees(device) if children else self._owners(number)
            if modules:
                found[device] = modules
        return found

    def own_bytes(self, device: str) -> dict[str, Raw]:
        """Module to its own bytes on a device by category, in the order of ``CATEGORIES``. In no particular order."""
        return sum_by_name(self._modules.get(self._names.device_number(device), ()))

    def _owners(self, number: int) -> dict[str, Sums]:
        owned = {fqn: sums_of(raw) for fqn, raw in sum_by_name(self._modules[number]).items() if any(raw)}
        return dict(sorted(owned.items(), key=lambda item: (-item[1][TOTAL], natural_key(item[0]))))

    def _subtrees(self, device: str) -> dict[str, Sums]:
        modules: dict[str, Sums] = {}
        below = list(reversed(self.tree(device)))
        while below:
            branch = below.pop()
            modules[branch.fqn] = branch.subtree
            below += reversed(branch.children)
        return modules

    def by_place(self, device: str | None = None) -> list[tuple[Place | None, Sums]]:
        """The lines and operators that made what is held on a device (by default the main one), and the bytes by
        category, with "Total". None: what has neither. A place may occur several times."""
        number = self._names.device_number(self.main_device if device is None else device)
        return [(self._places.find(stack), sums_of(raw)) for on, stack, raw in self._raw.stacks() if on == number]

    def by_module_and_place(self, device: str) -> list[tuple[str, Place | None, Raw]]:
        """Each module, and the lines and operators that made what it holds itself on a device, with the bytes by
        category in the order of ``CATEGORIES``. None: what has neither. The same two may occur several times."""
        number = self._names.device_number(device)
        found: dict[tuple[int, int], list[int]] = {}
        for on, path, stack, category, _, size in self._raw.alike():
            if on == number:
                found.setdefault((path, stack), [0] * len(CATEGORIES))[CATEGORIES.index(category)] += size
        return [
            (self._names.module(path), self._places.find(stack), tuple(raw)) for (path, stack), raw in found.items()
        ]

    def alike(self, device: str) -> Iterator[tuple[str, Place | None, Category, Kind | None, int]]:
        """What is held on a device: module, place, category and kind, and the bytes that have these."""
        number = self._names.device_number(device)
        for on, path, stack, category, kind, size in self._raw.alike():
            if on == number:
                yield (
                    self._names.module(path),
                    self._places.find(stack),
                    Category(category),
                    Kind(kind) if kind else None,
                    size,
                )

    def blocks(self, limit: int | None = None, device: str | None = None) -> Iterator[Block]:
        """The blocks that are held, largest first and oldest first among equals; at most ``limit``."""
        names = self._names
        number = None if device is None else names.device_number(device)
        places = map(self._places.find, self._raw.block_stacks(-1 if number is None else number))
        for (size, on, category, path, phase, step, made_at, outside, slot, word), place in zip(
            self._raw.blocks(limit, number), places
        ):
            module, at = names.module(path), made_at / 1e6
            kind = None if word is None else Kind(word)
            yield Block(
                size, names.devices[on], Category(category), module, phase, step, at, outside, slot, kind, place
            )
