"""The edits of sharding against their slow model, on whole streams and on folded ones."""

from __future__ import annotations

import random
from typing import Any

import pytest
from modscope import _capture
from random_runs import RandomTraining
from slow_replay import Stream, open_capture
from slow_sharding import SlowSharding

Edit = tuple[Any, ...]
POINTS = 1000


def streams_of(run: RandomTraining) -> tuple[_capture.Stream, _capture.Stream, Stream]:
    reader = open_capture(run.make())
    whole, folded = _capture.Stream(reader), _capture.Stream(reader)
    folded.fold()
    return whole, folded, Stream(reader, run.capture.noted)


def figures(stream: _capture.Stream, edits: list[Edit], **options: Any) -> list[Any]:
    result = stream.replay(1, edits, points=POINTS, version="2.13", **options)
    curve = [point[2:] for point in result["curve"]]
    return [result["reserved_peak"], result["allocated_peak"], result["requests"], curve]


def units(run: RandomTraining, slow: SlowSharding) -> tuple[list[int | None], list[int | None]]:
    return [slow.around(path) for path in range(len(run.called))], run.called


def check(run: RandomTraining, edit: Edit, expected: list[Edit], streams: tuple[_capture.Stream, ...]) -> bool:
    """Whether the edit changes anything."""
    whole, folded = streams
    for options in ({}, {"conf": "expandable_segments:True"}):
        got = figures(whole, [edit], **options)
        assert got == figures(whole, expected, **options)
        assert figures(folded, [edit], **options) == got
    changes = whole.changes([edit])
    assert bool(changes) == bool(folded.changes([edit]))
    return bool(changes)


@pytest.mark.parametrize("seed", range(40))
def test_a_job_of_one_process_over_several_ranks(seed: int) -> None:
    run = RandomTraining(seed, is_rank=False)
    whole, folded, slow = streams_of(run)
    choose = random.Random(seed)
    around, called = units(run, SlowSharding(slow, 1, run.called))
    for mixed in (False, True):
        ranks, keeps = choose.choice((2, 3, 8)), choose.random() < 0.5
        expected = SlowSharding(slow, 1, run.called).shard(ranks, mixed, keeps)
        edit = ("shard", around, called, 1, ranks, whole.events, mixed, keeps)
        has_parameters = any(run.sizes.values())
        assert check(run, edit, expected, (whole, folded)) == bool(expected)
        assert bool(expected) == has_parameters or mixed


@pytest.mark.parametrize("seed", range(40))
def test_other_arguments_of_a_rank_of_fsdp2(seed: int) -> None:
    run = RandomTraining(seed, is_rank=True)
    whole, folded, slow = streams_of(run)
    around, called = units(run, SlowSharding(slow, 1, run.called))
    before, after, in_copies = run.ranks, random.Random(seed).choice((1, 3, 8)), seed % 2 == 1

    def model() -> SlowSharding:
        return SlowSharding(slow, 1, run.called)

    streams = whole, folded
    check(run, ("shard_over", 1, before, after, in_copies), model().shard_over(before, after, in_copies), streams)
    has_layers = any(run.sizes[path] for layer in run.layers for path in run.members(layer))
    kept = check(run, ("keep_gathered", 1), model().keep_gathered(), streams)
    resharded = check(run, ("reshard", around, called, 1), model().reshard(), streams)
    assert kept == (has_layers and not run.keeps) and (run.keeps or not resharded)


def test_the_random_trainings_reach_every_case() -> None:
    casts = resharded = folded_runs = 0
    for seed in range(40):
        run = RandomTraining(seed, is_rank=False)
        whole, folded, slow = streams_of(run)
        casts += bool(SlowSharding(slow, 1, run.called).casts())
        folded_runs += folded.blocks < whole.blocks
        rank = RandomTraining(seed, is_rank=True)
        resharded += bool(SlowSharding(streams_of(rank)[2], 1, rank.called).reshard())
    assert min(casts, resharded, folded_runs) > 8


@pytest.mark.parametrize(
    ("edit", "error", "text"),
    [
        (("shard", [None] * 3, [None] * 3, 1, 0, 9, False, False), ValueError, "there are no ranks"),
        (("shard", [None] * 2, [None] * 3, 1, 2, 9, False, False), ValueError, "for each path of the capture"),
        (("shard", [None] * 3, [7] * 3, 1, 2, 9, False, False), ValueError, "a unit's number is too large"),
        (("shard_over", 1, 0, 2, False), ValueError, "there are no ranks"),
        (("reshard", [None] * 3, [None] * 3, 64), ValueError, "no such device"),
    ],
)
def test_wrong_edits_of_sharding(edit: Edit, error: type[Exception], text: str) -> None:
    from capture_helpers import Capture

    c = Capture(("cpu", "cuda:0"))
    c.module("Net")
    stream = _capture.Stream(open_capture(c.end()))
    with pytest.raises(error, match=text):
        stream.replay(1, [edit])
