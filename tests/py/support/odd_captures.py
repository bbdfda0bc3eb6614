"""Unusual captures: hostile names, lost and damaged events, huge numbers."""

from __future__ import annotations

import struct

from capture_helpers import DEVICES, Capture, payloads, train

MIB = 1 << 20
HOSTILE = [
    "Evil\x1b[2J\x1b]0;owned\x07\r\n\tName",
    "Evil.\u202egnitide\u202c.\u2066x",
    "\u05d0\u05d1\u05d2.\u0627\u0628",
    "\u6a21\u578b.\u5c42.\u6ce8\u610f\u529b" * 30,
    "e\u0301\u0302\u0303\u0304\u0305" * 40,
    "\U0001f525\ufe0f.\ud800x\x85\x9b31m",
    "very." * 3000 + "long",
    "L" * 200_000,
    "layers.\u00b2." + "9" * 10_000,
    "",
    ".",
]


def hostile() -> Capture:
    c = Capture(("cpu", "cu\x1bda:0"), program="tr\x1b[31main\n.py", arguments="\u202e" * 50)
    for i, name in enumerate(HOSTILE):
        c.where("forward", c.module(name))
        c.add((10 + i) * MIB, 1)
    return c


def out_of_memory() -> Capture:
    c = train(4, leak=4000)
    c.step()
    c.where("forward", c.module("GPT.h.3.mlp"))
    c.oom(2 << 30, 100 << 20, 256 << 20, 1)
    return c


def lossy() -> Capture:
    c = train(4, leak=4000)
    c.lost = 12
    c.frame()
    for _ in range(2):
        c.step()
        c.where("forward", c.module("GPT.h.3.mlp"))
        c.add(999 * MIB, 1)
    return c


def damaged() -> bytes:
    """One byte is wrong in the last chunk before a key frame."""
    c = train(9)
    c.flush()
    wrong = len(c.out) - 5
    c.frame()
    c.add(300 * MIB, 1)
    data = bytearray(c.end(how="finished"))
    data[wrong] ^= 0xFF
    return bytes(data)


def damaged_to_the_end() -> bytes:
    """From the fourth step on nothing can be read: a byte is wrong, and no key frame follows. The run took two
    seconds."""
    c = train(3)
    c.flush()
    wrong = len(c.out) + 60
    for _ in range(3):
        c.step()
        c.where("forward", c.module("GPT.h.3.mlp"))
        for _ in range(40):
            c.wait(15_000)
            c.add(MIB, 1)
    data = bytearray(c.end(how="finished"))
    data[wrong] ^= 0xFF
    return bytes(data)


def nameless_devices() -> bytes:
    """One bit is wrong in the chunk that names the devices."""
    data = bytearray(train(6).end(how="finished"))
    (names,) = (place for place in payloads(data) if struct.unpack_from("<I", data, place.start - 44) == (DEVICES,))
    data[names.start + 3] ^= 1
    return bytes(data)


def long_names() -> Capture:
    c = Capture()
    for i in range(60):
        c.where("forward", c.module(f"VeryLongModelName.transformer.encoder.layers.{i}.attention.projection"))
        c.add((i + 1) * MIB)
    return c


def huge() -> Capture:
    c = Capture(("cpu", *(f"cuda:{i}" for i in range(9))))
    for device in range(10):
        c.reserve(2**61, device)
        c.add(2**60 - device, device)
        c.wait(10**12)
    return c
