"""speedscope's file: what holds the memory at a moment, as a profile of bytes for each device. A stack is a module's
dotted name, part by part, then the program's lines that made the bytes, the operator, the kind, and the category."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import TypedDict

from modscope import _capture
from modscope._export import ExportPart, Put
from modscope._export.common import devices_at, title
from modscope._read.categories import CATEGORIES, KINDS, TOTAL, Category, Kind
from modscope._read.lines import Frame, Place
from modscope._read.load import Capture, Snapshot
from modscope._read.module_tree import Branch

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_Held = tuple[Place | None, Category, Kind | None, int]


class _Frames:
    """The frames that all profiles share. A category, a kind, an operator and a line are each the same frame in every
    stack, so speedscope adds up their bytes."""

    def __init__(self) -> None:
        self.all: list[dict[str, str | int]] = []
        self._numbers: dict[object, int] = {}
        for word in CATEGORIES:
            self._of(word, {"name": word})

    def _of(self, key: object, frame: dict[str, str | int]) -> int:
        number = self._numbers.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(frame)
        return number

    def of_word(self, word: Category | Kind) -> int:
        return self._of(word, {"name": word})

    def of_module(self, fqn: str) -> int:
        return self._of(("module", fqn), {"name": fqn or '""'})

    def of_operator(self, name: str) -> int:
        return self._of(("operator", name), {"name": name})

    def of_line(self, frame: Frame) -> int:
        """The name has the line, too: speedscope shows the file and the line of a selected frame only."""
        name = f"{frame.function} ({os.path.basename(frame.file)}:{frame.line or '?'})"
        line = {"line": frame.line} if frame.line else {}
        return self._of(("line", frame.file, frame.line, frame.function), {"name": name, "file": frame.file, **line})


class _Samples:
    def __init__(self, frames: _Frames, held: dict[str, list[_Held]]) -> None:
        self._frames = frames
        self._held = held
        self.stacks: list[list[int]] = []
        self.weights: list[int] = []

    def add(self, branches: Iterable[Branch], around: list[int]) -> None:
        for branch in branches:
            stack = [*around, self._frames.of_module(branch.fqn)]
            for inner, weight in self._own(self._held.get(branch.fqn, [])).items():
                self.stacks.append([*stack, *inner])
                self.weights.append(weight)
            self.add(branch.children, stack)

    def _own(self, held: list[_Held]) -> dict[tuple[int, ...], int]:
        """The part of each stack below the module, and its bytes."""
        found: dict[tuple[int, ...], int] = {}
        for place, category, kind, size in held:
            inner = (
                *self._of_place(place),
                *([self._frames.of_word(kind)] if kind else ()),
                self._frames.of_word(category),
            )
            found[inner] = found.get(inner, 0) + size
        return {inner: size for inner, size in found.items() if size}

    def _of_place(self, place: Place | None) -> Iterator[int]:
        if place is None:
            return
        for frame in reversed(place.stack):
            yield self._frames.of_line(frame)
        if place.operator:
            yield self._frames.of_operator(place.operator)


def _held_by_module(snapshot: Snapshot, device: str) -> dict[str, list[_Held]]:
    found: dict[str, list[_Held]] = {}
    for module, place, category, kind, size in snapshot.alike(device):
        found.setdefault(module, []).append((place, category, kind, size))
    order = {word: number for number, word in enumerate([*CATEGORIES, None, *KINDS])}
    for rows in found.values():
        rows.sort(key=lambda row: (order[row[1]], order[row[2]]))
    return found


def _name(device: str, snapshot: Snapshot, at: str) -> str:
    moment = "at its peak" if at == "peak" else f"at {at}"
    phase, module = snapshot.running
    total = snapshot.totals[device][TOTAL]
    held = f"at least {total}" if snapshot.is_lower_bound else str(total)
    return f"{device} {moment}: {held} bytes (step {snapshot.step}, {phase} of {module}, {snapshot.time:.3f} s)"


class _Profile(TypedDict):
    """A profile as speedscope's schema has it."""

    type: str
    name: str
    unit: str
    startValue: int
    endValue: int
    samples: list[list[int]]
    weights: list[int]


def _profile(device: str, snapshot: Snapshot, at: str, frames: _Frames) -> _Profile:
    samples = _Samples(frames, _held_by_module(snapshot, device) if device else {})
    samples.add(snapshot.tree(device), [])
    return {
        "type": "sampled",
        "name": _name(device, snapshot, at),
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(samples.weights),
        "samples": samples.stacks,
        "weights": samples.weights,
    }


def write(capture: Capture, format: str, put: Put, part: ExportPart) -> None:
    at, frames = part.at or "peak", _Frames()
    held = devices_at(capture, at, part.device) if capture.peaks else [("", capture.snapshot(at))]
    profiles = [_profile(device, snapshot, at, frames) for device, snapshot in held]
    document = {
        "$schema": _SCHEMA,
        "exporter": f"modscope@{_capture.version}",
        "name": title(capture),
        "activeProfileIndex": 0,
        "shared": {"frames": frames.all},
        "profiles": profiles,
    }
    put(json.dumps(document, separators=(",", ":")).encode())
