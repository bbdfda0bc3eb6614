"""speedscope's file: which modules hold the memory at a moment, as a profile of bytes for each device. A stack is a
module's dotted name, part by part, and then a category of the bytes that it holds itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from modscope import _capture
from modscope._branch import Branch
from modscope._export import Asked, Put
from modscope._export.common import devices_at, title
from modscope._load import Capture, Snapshot
from modscope._categories import CATEGORIES, TOTAL

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Frames:
    """The frames that all profiles share. A category is the same frame in every stack, so speedscope adds up its bytes."""

    def __init__(self) -> None:
        self.all: list[dict[str, str]] = [{"name": word} for word in CATEGORIES]
        self._modules: dict[str, int] = {}

    def of_module(self, fqn: str) -> int:
        if fqn not in self._modules:
            self._modules[fqn] = len(self.all)
            self.all.append({"name": fqn or '""'})
        return self._modules[fqn]


class _Samples:
    def __init__(self, frames: _Frames) -> None:
        self._frames = frames
        self.stacks: list[list[int]] = []
        self.weights: list[int] = []

    def add(self, branches: Iterable[Branch], around: list[int]) -> None:
        for branch in branches:
            stack = [*around, self._frames.of_module(branch.fqn)]
            for frame, word in enumerate(CATEGORIES):
                if branch.own[word]:
                    self.stacks.append([*stack, frame])
                    self.weights.append(branch.own[word])
            self.add(branch.children, stack)


def _name(device: str, snapshot: Snapshot, at: str) -> str:
    moment = "at its peak" if at == "peak" else f"at {at}"
    phase, module = snapshot.running
    total = snapshot.totals[device][TOTAL]
    held = f"at least {total}" if snapshot.is_lower_bound else str(total)
    return f"{device} {moment}: {held} bytes (step {snapshot.step}, {phase} of {module}, {snapshot.time:.3f} s)"


def _profile(device: str, snapshot: Snapshot, at: str, frames: _Frames) -> dict[str, Any]:
    samples = _Samples(frames)
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


def write(capture: Capture, format: str, put: Put, asked: Asked) -> None:
    at, frames = asked.at or "peak", _Frames()
    held = devices_at(capture, at, asked.device) if capture.peaks else [("", capture.snapshot(at))]
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
