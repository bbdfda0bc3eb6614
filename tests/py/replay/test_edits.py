"""Edits of random runs against the slow model, and edits that are refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from modscope import _capture
from random_runs import RandomRun
from slow_replay import NEVER, Edited, Stream, figures, open_capture

ANY = (0, 0, None, 0, 0)


def random_run(seed: int) -> tuple[_capture.Reader, Stream]:
    run = RandomRun(seed)
    reader = open_capture(run.make())
    return reader, Stream(reader, run.capture.noted)


def random_selection(choose: random.Random, paths: int) -> tuple[int, int, int | None, int, int]:
    return (
        choose.choice((0, 1 << 3, 1 << 2 | 1 << 4, 127)),
        choose.choice((0, 1 << 1, 1 << 3 | 1 << 4)),
        choose.choice((None, 0, 1)),
        choose.choice((0, choose.randrange(2, paths))),
        choose.choice((0, 100_000)),
    )


def random_edits(choose: random.Random, stream: Stream, paths: int) -> list[tuple[Any, ...]]:
    edits: list[tuple[Any, ...]] = []
    taken: list[int] = []
    for _ in range(choose.randrange(6)):
        selection = random_selection(choose, paths)
        begin = choose.randrange(len(stream.events))
        edits.append(
            choose.choice(
                (
                    ("scale", selection, choose.randrange(5), choose.randrange(1, 4)),
                    ("move", selection, choose.randrange(2)),
                    ("remove", selection),
                    ("resize", choose.randrange(len(stream.blocks)), choose.choice((0, 5_000_000))),
                    ("insert", begin, choose.choice((None, begin, len(stream.events) - 1)), 7_000_000, 1),
                )
            )
        )
    for call in choose.sample(range(len(stream.calls)), choose.randrange(1 + min(8, len(stream.calls)))):
        around = stream.calls_around(call)
        if not any(other in around or call in stream.calls_around(other) for other in taken):
            taken.append(call)
            edits.append(choose.choice((("checkpoint", call), ("checkpoint", call), ("offload", call, 0))))
    choose.shuffle(edits)
    return edits


def check(reader: _capture.Reader, edits: list[tuple[Any, ...]], slow: Stream) -> None:
    stream = _capture.Stream(reader)
    count = stream.events
    assert count == len(slow.events)
    for device, conf in ((1, None), (1, "expandable_segments:True"), (0, None)):
        expected = figures(Edited(slow, device, edits), "2.13", conf)
        got = stream.replay(device, edits, version="2.13", conf=conf, total_memory=1 << 40, points=count)
        assert got["requests"] == expected["requests"]
        assert [(point[2], point[3]) for point in got["curve"]] == expected["curve"]
        assert got["reserved_peak"] == max(reserved for reserved, _ in expected["curve"])
        assert got["allocated_peak"] == max(allocated for _, allocated in expected["curve"])
        plain = stream.replay(device, edits, caching=False, points=count)
        assert [point[3] for point in plain["curve"]] == expected["plain"]


@pytest.mark.parametrize("seed", range(60))
def test_random_edits_of_random_runs(seed: int) -> None:
    reader, slow = random_run(seed)
    choose = random.Random(seed)
    check(reader, [], slow)
    check(reader, random_edits(choose, slow, len(reader.paths)), slow)


@pytest.mark.parametrize("seed", range(20))
def test_a_curve_of_some_events(seed: int) -> None:
    """Each of its points stands for an equal part of them, and has the highest figures of it."""
    reader, slow = random_run(seed)
    stream, choose = _capture.Stream(reader), random.Random(seed)
    edits = random_edits(choose, slow, len(reader.paths))
    whole = stream.replay(1, edits, points=stream.events)["curve"]
    first = choose.randrange(reader.event_count)
    last = choose.choice((None, first, first + 7, choose.randrange(first, reader.event_count + 1)))
    inside = [point for point in whole if first <= point[0] and (last is None or point[0] < last)]
    for points in (0, 1, 3, len(inside)):
        parts: list[list[tuple[int, ...]]] = [[] for _ in range(min(points, len(inside)))]
        if len(parts) < points:
            continue  # fewer events than points
        for i, point in enumerate(inside if parts else ()):
            parts[i * points // len(inside)].append(point)
        expected = [(*part[0][:2], max(p[2] for p in part), max(p[3] for p in part)) for part in parts]
        assert stream.replay(1, edits, points=points, first=first, last=last)["curve"] == expected


@pytest.mark.parametrize("seed", range(20))
def test_calls(seed: int) -> None:
    reader, slow = random_run(seed)
    for device in (0, 1):
        got = _capture.Stream(reader).calls(device)
        assert len(got) == len(slow.calls)
        for index, (call, expected) in enumerate(zip(got, slow.calls, strict=True)):
            ends = [None if end == NEVER else end for end in (expected.end, expected.backward)]
            assert call[:5] == (expected.path, expected.parent, expected.begin, *ends)
            kept = sum(block.bytes for block in slow.blocks if slow.keeps(index, block) and block.device == device)
            outliving = [slow.blocks[i] for i in slow.outliving(index)]
            others = sum(block.bytes for block in outliving if block.device == device and not slow.keeps(index, block))
            assert call[6:8] == (kept, others)


def test_the_random_runs_reach_every_case() -> None:
    """Calls that keep blocks, calls whose output is among those, inputs that a checkpoint holds longer, and casts."""
    kept = outputs = inputs = casts = 0
    for seed in range(60):
        _, stream = random_run(seed)
        for index in range(len(stream.calls)):
            mine = [i for i, block in enumerate(stream.blocks) if stream.keeps(index, block)]
            if not mine:
                continue
            kept += 1
            outputs += all(i in mine for i in stream.outliving(index))
            given = stream.input(index)
            inputs += given is not None and stream.blocks[given].drop < max(stream.blocks[i].drop for i in mine)
            casts += sum(stream.is_cast(stream.blocks[i]) for i in mine)
    assert min(kept, outputs, inputs, casts) > 20


def test_where_the_peak_is() -> None:
    from capture_helpers import train

    reader = open_capture(train(steps=3).end(how="finished"))
    stream, path = _capture.Stream(reader), [name for name, *_ in reader.paths].index("GPT.h.3.mlp")
    peak = stream.replay(1, version="2.13")
    _, _, step, phase, where = peak["allocated_at"]
    assert (step, phase, where) == (2, "backward", path)
    survey = reader.survey()["peaks"][1]
    assert peak["allocated_at"][1] == survey[2]


def test_a_device_that_is_too_small() -> None:
    from capture_helpers import train

    reader = open_capture(train(steps=3).end(how="finished"))
    stream = _capture.Stream(reader)
    need = stream.replay(1)["reserved_peak"]
    assert stream.replay(1, capacity=need)["failure"] is None
    size, (_, _, step, phase, path) = stream.replay(1, capacity=need - (2 << 20))["failure"]
    assert size > 0 and step >= 1 and phase in ("forward", "backward", "optimizer") and path >= 0


def test_blocks_from_before_the_capture() -> None:
    from capture_helpers import Capture

    c = Capture(("cpu", "cuda:0"))
    c.out = bytearray(c.out)
    before = [c.add(3_000_000, 1) for _ in range(4)]
    early = Capture(("cpu", "cuda:0"))
    early.held, early.number, early.reserves = dict(c.held), c.number, {1: 20 << 20}
    early.out = early.out[: len(early.out)]
    early.frame()
    early.first = early.number
    early.add(5_000_000, 1)
    early.drop(before[0])
    stream = _capture.Stream(open_capture(early.end()))
    assert stream.blocks == 5
    result = stream.replay(1, caching=False)
    assert result["allocated_peak"] == 4 * 3_000_000 + 5_000_000


def test_an_emptied_cache_is_emptied_in_the_replay() -> None:
    from capture_helpers import Capture

    c = Capture(("cpu", "cuda:0"))
    for size in (12 << 20, 14 << 20):
        c.reserve(size, 1)
        block = c.add(size, 1)
        c.drop(block)
        c.reserve(0, 1)
    stream = _capture.Stream(open_capture(c.end()))
    result = stream.replay(1)
    assert (result["reserved_peak"], result["disagreements"]) == (14 << 20, 0)


def test_lost_events() -> None:
    from capture_helpers import Capture

    c = Capture(("cpu", "cuda:0"))
    kept = c.add(1_000, 1)
    c.add(2_000, 1)
    c.flush()
    c.drop(kept)
    c.add(4_000, 1)
    c.payload = bytearray()  # these two events are lost
    c.lost = 2
    c._begin_chunk()
    c.frame()
    c.add(8_000, 1)
    stream = _capture.Stream(open_capture(c.end()))
    assert stream.is_lower_bound
    assert stream.replay(1, caching=False)["allocated_peak"] == 2_000 + 4_000 + 8_000


@pytest.mark.parametrize(
    ("edit", "error", "text"),
    [
        (("shrink", ANY), ValueError, "'shrink' is no edit: use checkpoint"),
        ((), TypeError, "an edit is a tuple"),
        (["checkpoint", 0], TypeError, "an edit is a tuple"),
        (("checkpoint", 10_000), ValueError, "no such call"),
        (("scale", ANY, 1, 0), ValueError, "the denominator is 0"),
        (("scale", (1, 2), 1, 1), TypeError, "a selection is a tuple"),
        (("move", ANY, 64), ValueError, "no such device"),
        (("resize", 1 << 30, 5), ValueError, "no such block"),
        (("insert", 5, 4, 1, 1), ValueError, "ends before it begins"),
    ],
)
def test_wrong_edits(edit: Any, error: type[Exception], text: str) -> None:
    stream = _capture.Stream(open_capture(RandomRun(1).make()))
    with pytest.raises(error, match=text):
        stream.replay(1, [edit])


def test_calls_in_each_other_are_not_both_checkpointed() -> None:
    stream = _capture.Stream(open_capture(RandomRun(1).make()))
    inner, outer = next(
        (i, call[1])
        for i, call in enumerate(stream.calls(1))
        if call[1] is not None and None not in (call[4], stream.calls(1)[call[1]][4])
    )
    for pair in ((inner, outer), (outer, inner), (inner, inner)):
        with pytest.raises(ValueError, match="a call around it or in it is edited already"):
            stream.replay(1, [("checkpoint", call) for call in pair])


def test_wrong_arguments() -> None:
    stream = _capture.Stream(open_capture(RandomRun(1).make()))
    with pytest.raises(ValueError, match="64 is not a device"):
        stream.replay(64)
    with pytest.raises(ValueError, match="64 is not a device"):
        stream.calls(64)
    with pytest.raises(ValueError, match="'newest' is not a version of torch"):
        stream.replay(1, version="newest")
