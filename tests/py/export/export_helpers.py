"""Captures to export, of real runs and written by hand, and what they hold at a moment by `load` and `tree --json`."""

from __future__ import annotations

import json
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from capture_helpers import EVENTS, Capture, mixed, payloads, train
from modscope import load, record
from modscope.__main__ import main
from odd_captures import damaged, hostile, huge, lossy, out_of_memory
from real_runs import checkpointed, mlp, transformer
from real_runs import train as train_real

import torch
from torch import nn

READERS = pathlib.Path(__file__).parents[3] / "build" / "readers"
"""Where `make readers` puts other people's programs."""

# ---- captures of real runs ----


def _threads() -> None:
    workers = [threading.Thread(target=train_real, args=(make,)) for make in (mlp, checkpointed, mlp)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _dies() -> None:
    train_real(mlp)
    torch.empty(1 << 50, dtype=torch.uint8)


class _Busy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for size in range(2_000):
            torch.empty(16 + size % 64)
        return self.inner(x)


def _many() -> None:
    """So many events that there is a second key frame."""
    model = _Busy()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(50):
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _recorded(path: pathlib.Path, run: Callable[[], None]) -> None:
    try:
        with record(path):
            run()
    except RuntimeError as error:
        assert "alloc" in str(error)


def _with_a_loss(path: pathlib.Path) -> None:
    """A real capture of which a part before a key frame cannot be read."""
    _recorded(path, _many)
    data = bytearray(path.read_bytes())
    events = [place for place in payloads(data) if data[place.start - 44] == EVENTS]
    data[events[2].start] ^= 0xFF
    path.write_bytes(data)


REAL: dict[str, Callable[[pathlib.Path], None]] = {
    "mlp": lambda path: _recorded(path, lambda: train_real(mlp)),
    "checkpointed": lambda path: _recorded(path, lambda: train_real(checkpointed)),
    "transformer": lambda path: _recorded(path, lambda: train_real(transformer)),
    "threads": lambda path: _recorded(path, _threads),
    "oom": lambda path: _recorded(path, _dies),
    "losses": _with_a_loss,
}


# ---- captures written by hand ----


def lost_in_the_middle() -> Capture:
    """Events are missing between two key frames, and what was there then is not what is there after."""
    c = train(3)
    c.lost = 40
    slots = sorted(c.held)
    del c.held[slots[2]]
    c.free.append(slots[2])
    c.held[slots[3]][0] += 512  # another block in its slot
    c.threads[1][1:] = [1, c.module("GPT.h.0.mlp")]
    c.wait(100)
    c.frame()
    c.add(12345, 1)
    c.step()
    c.drop(slots[3])
    return c


BY_HAND: dict[str, Callable[[], bytes]] = {
    "train": lambda: train(4).end(how="finished"),
    "mixed": lambda: mixed().end(how="finished"),
    "out of memory": lambda: out_of_memory().end(how="exception"),
    "lossy": lambda: lossy().end(how="finished"),
    "lost": lambda: lost_in_the_middle().end(how="finished"),
    "damaged": damaged,
    "cut": lambda: train(9).killed()[:-100],
    "hostile": lambda: hostile().end(how="\x1b[2J"),
    "huge": lambda: huge().end(how="stopped"),
}


def make_captures(folder: pathlib.Path) -> None:
    for name, make in REAL.items():
        make(folder / f"{name}.msc")
    for name, by_hand in BY_HAND.items():
        (folder / f"{name}.msc").write_bytes(by_hand())


# ---- exports, and what they must say ----


def export(capture: pathlib.Path, format: str, *words: str) -> pathlib.Path:
    """The file that the command makes."""
    out = capture.with_suffix(f".{'-'.join((format, *words)).replace(':', '_')}")
    if not out.exists():
        assert main(["export", str(capture), "--format", format, "-o", str(out), *words]) == 0
    return out


def tree(capture: pathlib.Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What `modscope tree --json` says."""
    capsys.readouterr()
    assert main(["tree", str(capture), "--json", *words]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


Held = dict[tuple[str, str, str], int]
"""Device, module and category to bytes."""


def held(snapshot: Any) -> Held:
    """What holds something."""
    return {
        (device, module, str(category)): value
        for device, modules in snapshot.by_module().items()
        for module, sums in modules.items()
        for category, value in sums.items()
        if value and category != "Total"
    }


def held_by_tree(nodes: list[dict[str, Any]], device: str) -> Held:
    found: Held = {}
    for node in nodes:
        own = {(device, node["fqn"], word): value for word, value in node["own"].items() if value and word != "Total"}
        found |= own | held_by_tree(node["children"], device)
    return found


def moments(capture: Any, most: int = 12) -> list[int]:
    """Some that can be known: spread over the run, the peaks, the last."""
    count = capture.event_count
    wanted = {count, *(peak.moment for peak in capture.peaks.values()), *range(0, count + 1, max(1, count // most))}
    return sorted({capture.snapshot(moment).moment for moment in wanted})


def need_reader(module: str) -> Any:
    """A package of `make readers`, or a skip that says so."""
    if str(READERS) not in sys.path and READERS.is_dir():
        sys.path.append(str(READERS))
    return pytest.importorskip(module, reason=f"{module} is not installed: make readers")


__all__ = ["BY_HAND", "READERS", "REAL", "export", "held", "held_by_tree", "load", "make_captures", "moments"]
__all__ += ["need_reader", "tree"]
