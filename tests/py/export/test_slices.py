"""Perfetto's slices of threads that jump between deep modules: few for each event, and still balanced. The trace is
read here field by field, so that no reader of Perfetto's is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from costly_captures import changing_phases, jumping_thread, many_failures
from modscope._export import write
from modscope._read.load import load

BEGIN, END, INSTANT = 1, 2, 3
SLICES_IN_ADVANCE, SLICES_PER_POSITION = 65_536, 8


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            assert key & 7 == 2
            size = number()
            yield key >> 3, data[at : at + size]
            at += size


def exported(tmp_path, data: bytes) -> bytes:
    file, out = tmp_path / "costly.msc", bytearray()
    file.write_bytes(data)
    write(load(file), "perfetto", out.extend)
    return bytes(out)


def track_events(trace: bytes) -> Iterator[dict[int, int | memoryview]]:
    for _, packet in fields(memoryview(trace)):
        assert isinstance(packet, memoryview)
        for field, value in fields(packet):
            if field == 11 and isinstance(value, memoryview):
                yield dict(fields(value))


@pytest.mark.parametrize("make", [jumping_thread, changing_phases], ids=lambda make: make.__name__)
def test_a_thread_that_jumps_writes_few_slices(tmp_path, make: Callable[..., bytes]):
    positions = 20_000
    depths, written, notes = Counter[int](), 0, []
    for event in track_events(exported(tmp_path, make(positions))):
        kind, track = event[9], event[11]
        if kind in (BEGIN, END):
            written += 1
            depths[track] += 1 if kind == BEGIN else -1
            assert depths[track] >= 0
        elif kind == INSTANT:
            notes.append(bytes(event[23]).decode())
    phases = 2 * positions
    assert positions < written < SLICES_IN_ADVANCE + SLICES_PER_POSITION * (positions + 10) + phases
    assert set(depths.values()) == {0}, "a slice was not ended"
    assert notes.count("from here on some modules are shown without the modules around them") == 1


def test_a_short_capture_shows_all_modules(tmp_path):
    depths, deepest = Counter[int](), 0
    for event in track_events(exported(tmp_path, jumping_thread(60, 512))):
        assert event[9] != INSTANT or b"without" not in bytes(event[23])
        depths[event[11]] += {BEGIN: 1, END: -1}.get(event[9], 0)
        deepest = max(deepest, *depths.values())
    assert deepest == 512 and set(depths.values()) <= {0}


def test_failed_allocations_repeat_only_the_beginning_of_a_long_name(tmp_path):
    assert len(exported(tmp_path, many_failures(1_000))) < 1_000 * 400 + 10_000
