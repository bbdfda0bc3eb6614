"""Captures that are written by hand, for pages to look at."""

from __future__ import annotations

from collections.abc import Callable

from capture_helpers import Capture, mixed, train
from odd_captures import damaged, damaged_to_the_end, huge, lossy, out_of_memory

MIB = 1 << 20


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><svg onload=alert(3)>&lt;b&gt;&amp;",
    "Evil.\u202egnitide\u202c.\u2066x",
    "\u05d0\u05d1\u05d2.\u0627\u0628",
    "Control\x00\x07\x1b[2J\r\n\tName\x85",
    "L" * 10_000,
    "deep." * 2_000 + "end",
    "javascript:alert(4)",
    "{script}{data}${alert(5)}`",
    "<!--",
    "__proto__.constructor",
    "\ud800lone",
    "",
    ".",
    "\U0001f525.\u6a21\u578b",
]


def hostile() -> bytes:
    evil = "</script><script>alert(6)</script><img src=x onerror=alert(7)>"
    c = Capture((evil, "cu\x1bda\u202e:0"), program=f"{evil}\u202e.py", arguments=f"{evil}\n\"'&", torch=evil)
    for device in (0, 1):
        c.step()
        for i, name in enumerate(HOSTILE):
            c.wait(1_000)
            c.where("forward", c.module(name))
            c.add((10 + i) * MIB, device)
    c.oom(1 << 40, 1, 1 << 30, 0)
    return c.end(how=evil, error=evil, status=evil)


def lost_in_the_middle() -> bytes:
    """Events are missing between two key frames; after them there is less."""
    c = train(3)
    c.lost = 40
    for slot in sorted(c.held)[-4:]:
        del c.held[slot]
        c.free.append(slot)
    c.wait(30_000)
    c.frame()
    c.step()
    c.where("forward", c.module("GPT.h.0.mlp"))
    slots = [c.add(9_000_000, 1) for _ in range(4)]
    c.wait(20_000)
    c.drop(*slots)
    return c.end(how="finished")


def wide() -> bytes:
    """Five hundred modules side by side."""
    c = Capture()
    for i in range(500):
        c.where("forward", c.module(f"Wide.{i}"))
        c.add(1000 + i)
    return c.end(how="finished")


def one_event() -> bytes:
    c = Capture()
    c.add(1)
    return c.end(how="finished")


def same_peak_twice() -> bytes:
    c = Capture()
    for _ in range(2):
        slot = c.add(1000)
        c.wait(10)
        c.drop(slot)
    return c.end(how="finished")


SECOND = 1_000_000


def started(before: float, during: float = 2.0, peak_before: bool = False, steps: int = 4) -> Capture:
    """A run that takes ``before`` seconds to build its model, and ``during`` seconds for its steps."""
    c = Capture(("cuda:0",), program="train.py")
    c.wait(round(before * SECOND / 2))
    c.claim(c.add(64 * MIB), "Parameter", c.module("Net.layer"))
    if peak_before:
        c.drop(c.add(512 * MIB))
    c.wait(round(before * SECOND / 2))
    for _ in range(steps):
        c.step()
        for phase in ("forward", "backward"):
            c.where(phase, c.module("Net.layer"))
            slot = c.add(32 * MIB)
            c.wait(round(during * SECOND / steps / 2))
            c.drop(slot)
        c.where()
    return c


def out_at_the_peak() -> Capture:
    """The peak, a failed allocation and the line of reserved memory are all in the upper right corner."""
    c = started(0.01, steps=3)
    c.step()
    c.where("forward", c.module("Net.layer"))
    c.add(300 * MIB)
    c.reserve(380 * MIB)
    c.oom(1 << 30, 364 * MIB, 380 * MIB)
    return c


def peak_in(part: float, reserved: int = 0, ooms: int = 0) -> Capture:
    """The peak is in this part of the run's time, below a line of reserved memory; then allocations fail."""
    c = Capture(("cuda:0",))
    c.where("forward", c.module("Net.layer"))
    c.add(100 * MIB)
    c.reserve(reserved * MIB)
    for _ in range(10):
        c.step()
        c.wait(round(part * SECOND / 10))
    slot = c.add(200 * MIB)
    c.wait(1)
    c.drop(slot)
    for _ in range(ooms):
        c.wait(1_000)
        c.oom(24 * MIB, 100 * MIB, reserved * MIB)
    c.wait(round((1 - part) * SECOND))
    return c


def gaps() -> Capture:
    """A segment with two gaps, a block of two lifetimes beside them, and a segment for one block; in the end the run
    has more reserved than torch's allocator would."""
    c = Capture(("cuda:0", "cpu"))
    c.where("forward", c.module("Net.layer"))
    first, second = c.add(8 * MIB - 100), c.add(8 * MIB)
    c.claim(c.add(30 * MIB), "Parameter", c.module("Net"))
    c.reserve(50 * MIB)
    c.drop(first)
    c.claim(second, "Gradient", c.module("Net.layer"))
    c.add(5 * MIB, 1)
    c.reserve(60 * MIB)
    return c


def deep_names() -> Capture:
    """A model as deep as real ones, a chain of one child each besides, and something outside any module."""
    c = Capture()
    c.add(3 * MIB)
    for i in (0, 11):
        for part in ("attention.qkv", "attention.out", "mlp.up", "mlp.down", "norm1", "norm2"):
            c.where("forward", c.module(f"GPT.blocks.{i}.{part}"))
            c.add((i + 1) * 100_000)
    c.where("forward", c.module("GPT.position_embedding"))
    c.add(500_000)
    return c


BY_HAND: dict[str, Callable[[], bytes]] = {
    "cuda": lambda: train(6, leak=1_000_000).end(how="finished", status="0"),
    "cuda-oom": lambda: out_of_memory().end(how="exception", error="OutOfMemoryError", status="1"),
    "mixed": lambda: mixed(oom=False).end(how="finished"),
    "lossy": lambda: lossy().end(how="finished"),
    "lost": lost_in_the_middle,
    "damaged": damaged,
    "damaged_end": damaged_to_the_end,
    "hostile": hostile,
    "huge": lambda: huge().end(how="stopped"),
    "wide": wide,
    "one": one_event,
    "twice": same_peak_twice,
    "empty": lambda: Capture().end(how="finished"),
    "slow-start": lambda: started(8.2).end(how="finished"),
    "quick-start": lambda: started(0.1).end(how="finished"),
    "early-peak": lambda: started(8.2, peak_before=True).end(how="finished"),
    "no-step": lambda: started(8.2, steps=0).end(how="finished"),
    "out-at-the-peak": lambda: out_at_the_peak().end(how="exception"),
    "peak-at-the-end": lambda: peak_in(1.0, reserved=304).end(how="finished"),
    "peak-at-the-start": lambda: peak_in(0.001, reserved=304).end(how="finished"),
    "peak-in-the-middle": lambda: peak_in(0.5, reserved=330).end(how="finished"),
    "many-failures": lambda: peak_in(0.9, reserved=301, ooms=12).end(how="finished"),
    "gaps": lambda: gaps().end(how="finished"),
    "deep": lambda: deep_names().end(how="finished"),
}
