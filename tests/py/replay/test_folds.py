"""Runs with equal steps: a stream that leaves them out gives the figures of the whole one, to the byte."""

from __future__ import annotations

import random
from typing import Any

import capture_helpers
import pytest
from modscope import _capture
from random_runs import SIZES, RandomRun
from slow_replay import open_capture

Edits = list[tuple[Any, ...]]
LEAST = 6
"""Fewer equal steps are not folded: five are kept."""


class RepeatedRun(RandomRun):
    """Steps that are equal, with others between. Some blocks are dropped in the next step or the one after it, and some
    never. The allocator's blocks may be larger than the requests, by other bytes in each step."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        choose = self.rounding = random.Random(seed)
        self.leaks = choose.random() < 0.15
        self.carried: list[list[int]] = [[], []]
        self.plan: list[int] = []
        for _ in range(choose.randrange(1, 4)):
            self.plan += [choose.randrange(1000)] * choose.choice((1, 2, 4, 7, 9, 30))

    def request(self) -> int:
        size, more = self.size(), self.rounding.choice((0, 512, 16_384))
        block = self.capture.add(size + more, self.device())
        if more:
            self.capture.note("requested", block, size)
        return block

    def step(self) -> None:
        choose = self.random
        super().step()
        self.capture.wait(choose.randrange(50))
        self.capture.where("optimizer")
        self.capture.drop(*self.carried.pop(0))
        of_next = [self.request() for _ in range(choose.randrange(3))]
        of_later = [self.request() for _ in range(choose.choice((0, 0, 1)))]
        self.carried = [[*self.carried[0], *of_next], of_later]
        if self.leaks:
            self.request()
        if choose.random() < 0.2:
            self.capture.drop(self.capture.add(choose.choice(SIZES), 1))
        self.capture.where()

    def make(self) -> bytes:
        for seed in self.plan:
            self.random = random.Random(seed)
            self.step()
        for blocks in self.carried:
            self.capture.drop(*blocks)
        return self.capture.end(how="finished")


def streams_of(seed: int) -> tuple[RepeatedRun, _capture.Reader, _capture.Stream, _capture.Stream]:
    run = RepeatedRun(seed)
    reader = open_capture(run.make())
    folded = _capture.Stream(reader)
    folded.fold()
    return run, reader, _capture.Stream(reader), folded


def random_edits(choose: random.Random, run: RepeatedRun) -> list[Any]:
    """Edits that do the same to equal steps. A path stands for its calls."""
    kinds = [
        ("scale", (choose.choice((1 << 3, 127)), 0, 1, 0, 0), choose.randrange(4), choose.randrange(1, 4)),
        ("move", (0, choose.choice((1 << 1, 1 << 3)), None, 0, 0), choose.randrange(2)),
        ("remove", (1 << 4, 0, 1, 0, choose.choice((0, 100_000)))),
        ("zero_grad",),
        ("save_on_cpu", 1, 0),
    ]
    edits: list[Any] = choose.sample(kinds, choose.randrange(3))
    parents = {child: path for path, children in run.children.items() for child in children}
    taken: set[int] = set()
    for path in choose.sample(sorted(run.children), choose.randrange(len(run.children))):
        above, around = path, []
        while above in parents:
            above = parents[above]
            around.append(above)
        if taken.isdisjoint(around) and not any(path in _around(other, parents) for other in taken):
            taken.add(path)
            edits.append((choose.choice(("checkpoint", "offload")), path))
    return edits


def _around(path: int, parents: dict[int, int]) -> list[int]:
    found = []
    while path in parents:
        path = parents[path]
        found.append(path)
    return found


def edits_of(stream: _capture.Stream, wanted: list[Any]) -> Edits:
    edits: Edits = []
    for edit in wanted:
        if edit[0] not in ("checkpoint", "offload"):
            edits.append(edit)
            continue
        calls = [number for number, call in enumerate(stream.calls(1)) if call[0] == edit[1]]
        edits += [("checkpoint", call) if edit[0] == "checkpoint" else ("offload", call, 0) for call in calls]
    return edits


STEP_OP = 5
NUMBERS = 4
"""The number of an event that is left out is about that in the step that stands for it: chunks differ."""


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """Without the numbers and times of events."""
    failure = result["failure"]
    return {
        **{key: value for key, value in result.items() if key != "replayed"},
        "reserved_at": result["reserved_at"][2:],
        "allocated_at": result["allocated_at"][2:],
        "failure": failure and (failure[0], failure[1][2:]),
        "curve": [point[2:] for point in result["curve"]],
    }


def check(whole: _capture.Stream, folded: _capture.Stream, wanted: list[Any], device: int, **options: Any) -> int:
    """How many events the folded one replayed."""
    of_all, of_few = (
        stream.replay(device, edits_of(stream, wanted), points=whole.events, **options) for stream in (whole, folded)
    )
    assert figures(of_few) == figures(of_all) and of_few["replayed"] <= of_all["replayed"]
    for few, all in zip(of_few["curve"], of_all["curve"]):
        assert abs(few[0] - all[0]) < NUMBERS and few[1] == all[1]
    return int(of_few["replayed"])


OPTIONS = (
    {"version": "2.13"},
    {"version": "2.12"},
    {"version": "2.11"},
    {"version": "2.13", "conf": "expandable_segments:True"},
    {"version": "2.11", "conf": "garbage_collection_threshold:0.5", "total_memory": 200 << 20},
    {"caching": False},
)


@pytest.mark.parametrize("seed", range(50))
def test_a_folded_stream_has_the_figures_of_the_whole_one(seed: int) -> None:
    run, reader, whole, folded = streams_of(seed)
    choose = random.Random(seed)
    assert folded.events == whole.events and [step[1:] for step in folded.steps()] == [
        step[1:] for step in whole.steps()
    ]
    wanted = random_edits(choose, run)
    for options in OPTIONS:
        check(whole, folded, [], 1, **options)
        check(whole, folded, wanted, choose.randrange(2), **options)
    need = whole.replay(1, edits_of(whole, wanted), version="2.13")["reserved_peak"]
    for capacity in (need - (2 << 20), need * 3 // 4, need // 2):
        check(whole, folded, wanted, 1, version="2.13", capacity=max(capacity, 0))
    begins = [event[0] for event in reader.events(1 << STEP_OP)]
    first, last = sorted(choose.sample([0, *begins, reader.event_count], 2))
    for points in (1, 7, 50):
        curves = [stream.replay(1, points=points, first=first, last=last)["curve"] for stream in (whole, folded)]
        assert [point[2:] for point in curves[0]] == [point[2:] for point in curves[1]]


def test_the_random_runs_are_folded() -> None:
    folds = leaks = replayed = events = 0
    for seed in range(50):
        run, _, whole, folded = streams_of(seed)
        runs = [run.plan.count(kind) for kind in dict.fromkeys(run.plan)]
        folds += folded.blocks < whole.blocks
        leaks += run.leaks and folded.blocks < whole.blocks
        assert folded.blocks == whole.blocks or max(runs) >= LEAST
        if folded.blocks < whole.blocks and not run.leaks:
            replayed += check(whole, folded, [], 1, version="2.13")
            events += whole.events
    assert folds > 15 and leaks > 2 and replayed < 0.9 * events


def run_of_equal_steps(count: int, batch: int = 1 << 20, odd: int = -1) -> _capture.Stream:
    """Each step keeps a block of its module for backward. Step ``odd`` has another size."""
    c = capture_helpers.Capture(("cpu", "cuda:0"))
    path = c.module("Net")
    c.claim(c.add(4 << 20, 1), "Parameter", path)
    for step in range(count):
        c.step()
        c.where("forward", path)
        kept = c.add(3 * batch if step == odd else batch, 1)
        c.where("backward", path)
        made = c.add(4096, 1)
        c.drop(kept, made)
        c.where("optimizer")
        c.optimizer_step()
        c.where()
    return _capture.Stream(open_capture(c.end(how="finished")))


@pytest.mark.parametrize("count", [1, 6, 7, 60, 600])
def test_so_many_equal_steps_are_replayed_as_a_few(count: int) -> None:
    stream = run_of_equal_steps(count)
    events = stream.events
    stream.fold()
    result = stream.replay(1)
    assert len(stream.steps()) == count and result["requests"] == 1 + 2 * count
    assert result["replayed"] <= min(events, events // count * 8 + 10)
    # The last step is another one: its blocks have no next step.
    assert sum(call[11] for call in stream.calls(1)) == count and len(stream.calls(1)) <= 7


def test_a_step_that_differs_is_replayed() -> None:
    stream = run_of_equal_steps(40, odd=20)
    stream.fold()
    result = stream.replay(1, caching=False)
    assert result["allocated_peak"] == (4 << 20) + (3 << 20) + 4096 and result["allocated_at"][2] == 21
    assert result["replayed"] < 0.6 * stream.events


def test_streams_are_folded_at_the_same_steps() -> None:
    """A step in the middle of one is different: it is kept of the other one too, so that they can be matched."""
    small, large = run_of_equal_steps(40, odd=20), run_of_equal_steps(40, batch=4 << 20)
    large.fold(small)
    assert [call[:6] for call in small.calls(1)] == [call[:6] for call in large.calls(1)]
    match = large.match(small, list(range(3)), 1)
    assert (match["here"][0], match["there"][0]) == (0, 0) and match["ratio"] == pytest.approx(4)
    alone = run_of_equal_steps(40, batch=4 << 20)
    alone.fold()
    assert len(alone.calls(1)) < len(large.calls(1))


def test_streams_of_other_counts_of_steps_are_not_folded_together() -> None:
    with pytest.raises(ValueError, match="different counts of steps"):
        run_of_equal_steps(7).fold(run_of_equal_steps(8))
    with pytest.raises(TypeError, match="must be streams"):
        run_of_equal_steps(7).fold(7)  # type: ignore[arg-type]
