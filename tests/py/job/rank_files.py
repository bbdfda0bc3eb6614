"""Captures of the ranks of a job, written by hand."""

from __future__ import annotations

import pathlib
from typing import Any

from capture_helpers import Capture

MIB = 1 << 20


def rank_capture(
    rank: int, world: int, *, steps: int = 2, extra: int = 0, layers: int = 3, slow: float = 1.0, **info: str
) -> Capture:
    """A rank that trains a few layers on its own GPU. ``extra`` bytes more are activations of its first layer."""
    said = {
        "program": "train.py",
        "arguments": "--lr\n3",
        "rank": str(rank),
        "world": str(world),
        "local_rank": str(rank % 4),
        "node": str(rank // 4),
        "host": f"host{rank // 4}",
        "attempt": "0",
        "job": "j1",
        "began": f"{1e9 + 0.01 * rank:.3f}",
        **info,
    }
    c = Capture(("cpu", f"cuda:{rank % 4}"), **said)
    names = [f"GPT.blocks.{i}.mlp" for i in range(layers)]
    for name in names:
        c.claim(c.add(8 * MIB, 1), "Parameter", c.module(name))
    for _ in range(steps):
        c.wait(int(10_000 * slow))
        c.step()
        made = []
        for name in names:
            c.where("forward", c.module(name))
            made.append(c.add(16 * MIB + extra * (name == names[0]), 1))
            c.wait(int(20_000 * slow))
        for name in reversed(names):
            c.where("backward", c.module(name))
            gradient = c.add(8 * MIB, 1)
            c.claim(gradient, "Gradient", c.module(name))
            c.wait(int(30_000 * slow))
            c.drop(made.pop(), gradient)
        c.where("optimizer")
        c.optimizer_step()
        c.where()
        c.flush()
    return c


def write_job(
    folder: pathlib.Path, world: int, ends: dict[int, dict[str, str] | None] | None = None, **each: Any
) -> list[str]:
    """The captures of all ranks. ``ends``: how a rank ended; None: it was killed. ``each``: a function of the rank, or
    a value, for an argument of ``rank_capture``."""
    names = []
    for rank in range(world):
        more = {word: value(rank) if callable(value) else value for word, value in each.items()}
        capture = rank_capture(rank, world, **more)
        end = (ends or {}).get(rank, {"how": "finished"})
        name = f"x.rank{rank}.msc"
        (folder / name).write_bytes(capture.killed() if end is None else capture.end(**end))
        names.append(name)
    return names
