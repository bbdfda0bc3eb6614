"""Operators' memory as it was measured on an H200: ``../shared/truth/h200/*.ops.json``."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import torch

FOLDER = pathlib.Path(__file__).resolve().parents[4] / "shared" / "truth" / "h200"
needs_truth = pytest.mark.skipif(not FOLDER.exists(), reason="the measurements of real jobs are not here")


def _argument(spec: Any) -> Any:
    """A tensor of the meta device for ``[dtype, shape, strides]``."""
    if isinstance(spec, list) and len(spec) == 3 and isinstance(spec[0], str):
        return torch.empty_strided(spec[1], spec[2], dtype=getattr(torch, spec[0]), device="meta")
    return [_argument(item) for item in spec] if isinstance(spec, list) else spec


def entries(operator: str) -> Iterator[tuple[list[Any], dict[str, Any], list[list[Any]]]]:
    """The arguments (the first eight), keywords and events of each measured call of an operator."""
    for path in sorted(FOLDER.glob("*.ops.json")):
        for name, args, kwargs, events, *_ in json.loads(path.read_text()):
            if name == operator:
                yield [_argument(arg) for arg in args], kwargs, events


def measured_temporaries(events: Any) -> list[int]:
    return [bytes for what, bytes in events if what == "tmp" and bytes > 0]


def temporaries(events: Any) -> list[int]:
    """What a rule says, rounded as the allocator rounds."""
    return [-(-bytes // 512) * 512 for what, bytes in events or () if what == "temporary" and bytes > 0]


def fits(rule: list[int], measured: list[int]) -> bool:
    """A block can be larger than what was asked for, by up to 1 MiB."""
    return len(rule) == len(measured) and all(
        asked <= block <= asked + (1 << 20) for asked, block in zip(rule, measured, strict=True)
    )
