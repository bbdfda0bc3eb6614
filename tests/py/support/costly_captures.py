"""Captures of one to two MB that are as costly to read as a file of that size can be: each is extreme in one
respect."""

from __future__ import annotations

from collections.abc import Callable

from capture_helpers import DEVICES, END, EVENTS, FRAME, INFO, NAMES, NONE, chunk, header, string, varint, zigzag


def crafted(paths: list[tuple[int, bytes]], events: bytes, count: int, lowest: int = NONE, *more: bytes) -> bytes:
    """A capture with these paths (each a parent and a name) after Global and unknown, and these ``count`` events."""
    named = b"".join(
        varint(parent) + b"\0" + string(name) for parent, name in [(0, b"Global"), (0, b"unknown"), *paths]
    )
    parts = [
        header(),
        chunk(INFO, string("program") + string("costly.py")),
        chunk(DEVICES, b"\0" + string("cpu")),
        chunk(NAMES, b"\0" + named),
        chunk(FRAME, bytes(6)),
        chunk(EVENTS, events, lowest=lowest, count=count),
        *more,
        chunk(END, b"", first=count, time=count),
    ]
    return b"".join(parts)


def _adds(paths: int) -> bytes:
    """An explicit add of a block for each path, from path 2 on: 1 to 127 bytes, Activation."""
    out = bytearray()
    for i in range(paths):
        out += b"\x20" + zigzag(1 if i else 0) + bytes([1 + i % 127]) + b"\x03" + zigzag(1 if i else 2)
    return bytes(out)


def deep_names(names: int = 10_000, parts: int = 64) -> bytes:
    """Every name has many parts, of which it shares none with the others."""
    return crafted([(0, b".".join([b"%05d" % i, *[b"a"] * (parts - 1)])) for i in range(names)], _adds(names), names)


def branching_names(names: int = 10_000, parts: int = 64) -> bytes:
    """Names whose parts are alike in pairs, in fours, in eights, ...: no tree of them has long chains of only
    children."""
    paths = [(0, ".".join(str(i >> k & 1) for k in reversed(range(parts))).encode()) for i in range(names)]
    return crafted(paths, _adds(names), names)


def numbered_names(names: int = 10_000, parts: int = 64) -> bytes:
    """Names of numbers only, which are alike but for the numbers."""
    return crafted(
        [(0, b".".join([b"%d" % (i % 10)] * (parts - 1) + [b"%d" % i])) for i in range(names)], _adds(names), names
    )


def many_names(names: int = 140_000) -> bytes:
    return crafted([(0, b"%x" % i) for i in range(names)], _adds(names), names)


def long_chain(paths: int = 100_000) -> bytes:
    """Each path is called by the one before it."""
    return crafted([(1 + i if i else 0, b"m") for i in range(paths)], _adds(paths), paths)


def long_names(names: int = 24, size: int = 64 << 10) -> bytes:
    """Names of one part, and of as many parts as they have room for; blocks of them come and go."""
    paths = [(0, b"%02d" % i + (b".a" if i % 2 else b"a") * (size // 2)) for i in range(names)]
    out = bytearray(_adds(names))
    for i in range(40_000):
        out += b"\x01" + zigzag(-1 if i else 0) + b"\x00" + zigzag(0) + b"\x01" if i == 0 else b"\x01\x00\x00\x00\x01"
    return crafted(paths, bytes(out), names + 80_000)


def long_name_positions(positions: int = 500_000, size: int = 64 << 10) -> bytes:
    """A thread that enters and leaves a module with a long name."""
    events = _adds(1) + b"\x04\x01" + (b"\x13" + zigzag(0) + b"\x23" + zigzag(0)) * (positions // 2)
    return crafted([(0, b"L" * size)], events, positions + 2)


def jumping_thread(positions: int = 90_000, depth: int = 512) -> bytes:
    """A thread that moves between two modules with many calls around each."""
    chains = [(0 if not i else 2 + i - 1, b"a") for i in range(depth)] + [
        (0 if not i else 2 + depth + i - 1, b"b") for i in range(depth)
    ]
    there, back = zigzag(depth), zigzag(-depth)
    events = _adds(1) + b"\x04\x01" + b"\x13" + zigzag(depth - 1)
    events += (b"\x13" + there + b"\x13" + back) * (positions // 2)
    return crafted(chains, events, 3 + positions // 2 * 2)


def changing_phases(positions: int = 90_000, depth: int = 512) -> bytes:
    """A thread that changes its phase again and again, with many calls open."""
    chain = [(0 if not i else 2 + i - 1, b"a") for i in range(depth)]
    events = _adds(1) + b"\x04\x01" + b"\x13" + zigzag(depth - 1) + b"\x33\x00\x13\x00" * (positions // 2)
    return crafted(chain, events, 3 + positions // 2 * 2)


def many_steps(steps: int = 400_000) -> bytes:
    """Steps of one block each, which is kept."""
    out = bytearray(b"\x04\x01")
    for i in range(steps):
        out += b"\x05" + varint(i + 1)
        if i < 100_000:
            out += b"\x00" + (b"\x02" if i else b"\x00") + b"\x01"
    return crafted([], bytes(out), 1 + steps + min(steps, 100_000))


def many_threads(threads: int = 200_000) -> bytes:
    """Threads that are in a module each."""
    out = bytearray(_adds(1))
    for i in range(1, threads + 1):
        out += b"\x14" + varint(i) + varint(i) + b"\x13" + (zigzag(2) if i == 1 else b"\x00")
    return crafted([(0, b"Net")], bytes(out), 1 + 2 * threads)


def many_blocks(blocks: int = 400_000) -> bytes:
    return crafted(
        [(0, b"Net")], b"\x04\x01\x13" + zigzag(2) + b"\x00\x00\x01" + b"\x00\x02\x01" * (blocks - 1), blocks + 2
    )


def many_key_frames(frames: int = 20_000) -> bytes:
    """Key frames after lost events, each with one block, and many threads in the first."""
    threads = 20_000
    first = b"\0\0\0" + varint(threads) + b"".join(varint(i) * 2 + b"\1\2" for i in range(1, threads + 1)) + b"\0\0"
    more = [chunk(FRAME, first, first=10)]
    for i in range(frames):
        frame = b"\0\0" + varint(i + 1) + b"\0\0\1" + b"\0" + b"\1" + b"\0" + b"\x13" + b"\2" + b"\0\0\0"
        more.append(chunk(FRAME, frame, first=20 + 2 * i))
    return crafted([(0, b"Net")], _adds(1), 1, NONE, *more)


def many_failures(failures: int = 250_000) -> bytes:
    """Allocations that failed, in a module with a long name."""
    events = _adds(1) + b"\x04\x01\x13" + zigzag(0) + b"\x08\x00\x7f\x01\x01" * failures
    return crafted([(0, b"L" * 4000)], events, failures + 3)


COSTLY: dict[str, Callable[[], bytes]] = {
    each.__name__: each
    for each in (
        deep_names,
        branching_names,
        numbered_names,
        many_names,
        long_chain,
        long_names,
        long_name_positions,
        jumping_thread,
        changing_phases,
        many_steps,
        many_threads,
        many_blocks,
        many_key_frames,
        many_failures,
    )
}
