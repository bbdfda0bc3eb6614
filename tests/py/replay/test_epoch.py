"""Steps of any shape, from the log of a few: a replay of all batches is what the log of all batches would have been."""

from __future__ import annotations

import array
import random
from typing import Any, NamedTuple

import pytest
from modscope import _capture

ALLOCATE, FREE, EMPTY_CACHE, STREAM, OPERATOR = range(5)
KIND_BITS = 3
VERSION = "2.13"
FIRST = 2
MIB = 1 << 20


class Log:
    """A program that trains with batches of any shape. What a step holds longer is freed in the next one."""

    def __init__(self, seed: int, slope: int = 4096, threshold: int = 10**9) -> None:
        self.random = random.Random(seed)
        self.entries = array.array("Q")
        self.marks: list[int] = []
        self.shapes: list[int] = []
        self.made = 0
        self.held: list[int] = []
        self.plan = [(self.random.choice((1, 1, 2)), self.random.randrange(1, 9) * slope) for _ in range(30)]
        self.threshold = threshold
        self.state: list[int] = []
        self.parameters = [self.allocate(self.random.randrange(1, 4) * MIB) for _ in range(6)]

    def put(self, kind: int, value: int) -> None:
        self.entries.append(value << KIND_BITS | kind)

    def allocate(self, size: int) -> int:
        self.put(ALLOCATE, size)
        self.made += 1
        return self.made - 1

    def free(self, *numbers: int) -> None:
        for number in numbers:
            self.put(FREE, number)

    def step(self, shape: int, length: int) -> None:
        """The forward's blocks grow with the length or its square; the backward frees them, and makes gradients."""
        self.marks.append(len(self.entries))
        self.shapes.append(shape)
        batch = self.allocate(8 * length)
        self.free(*self.held)
        kept = []
        for number, (power, slope) in enumerate(self.plan):
            self.put(OPERATOR, number + 1)
            if number % 7 == 3 and length > self.threshold:
                workspace = self.allocate(512 * length)
                kept.append(self.allocate(slope * length**power // (64 if power == 2 else 1)))
                self.free(workspace)
            else:
                kept.append(self.allocate(slope * length**power // (64 if power == 2 else 1)))
        gradients = []
        for number, block in enumerate(reversed(kept)):
            self.put(OPERATOR, 100 + number)
            if number % 5 == 0:
                gradients.append(self.allocate(MIB))
            self.free(block)
        if not self.state:
            self.state = [self.allocate(2 * MIB) for _ in range(6)]
        self.held = [batch, *gradients]

    def end(self) -> bytes:
        self.marks.append(len(self.entries))
        return self.entries.tobytes()


class Case(NamedTuple):
    epoch: Any
    batches: array.array[int]
    lengths: list[int]
    whole: Log

    def replay(self, **how: Any) -> Any:
        return self.epoch.replay(self.batches, bytes(len(self.batches)), version=VERSION, **how)

    def exhaustive(self, **how: Any) -> Any:
        """What the log of all batches reserves, and how many of its allocations it got to."""
        allocator = _capture.Allocator(VERSION, **how)
        failed = allocator.replay(self.whole.entries.tobytes())
        return allocator.stats(), failed


def case(seed: int, count: int, threshold: int = 10**9, shapes: int = 40) -> Case:
    choose = random.Random(seed)
    lengths = sorted({choose.randrange(16, 2048) for _ in range(shapes)})
    order = [choose.randrange(len(lengths)) for _ in range(count)]
    few, whole = Log(seed, threshold=threshold), Log(seed, threshold=threshold)
    step = len(lengths) // 7
    samples = [0, len(lengths) - 1, *range(0, len(lengths), step), 0, 0]
    for shape in [*order[:FIRST], *samples]:
        few.step(shape, lengths[shape])
    for shape in order:
        whole.step(shape, lengths[shape])
    whole.end()
    log = few.end()
    epoch = _capture.Epoch(
        log,
        array.array("Q", few.marks),
        array.array("I", few.shapes),
        bytes(len(few.shapes)),
        array.array("d", map(float, lengths)),
        FIRST,
        len(lengths),
        1,
    )
    return Case(epoch, array.array("I", order), lengths, whole)


def batch_of(log: Log, number: int) -> int:
    """The batch whose step made an allocation."""
    made = batch = 0
    for at, entry in enumerate(log.entries):
        while batch + 1 < len(log.marks) and log.marks[batch + 1] <= at:
            batch += 1
        if entry & 7 == ALLOCATE:
            if made == number:
                return batch
            made += 1
    raise IndexError(number)


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_is_that_of_the_log_of_all_batches(seed):
    one = case(seed, 60)
    assert one.epoch.facts()["inexact"] == 0 and one.epoch.facts()["varying"] > 0
    stats, _ = one.exhaustive()
    found = one.replay()
    assert found["reserved_peak"] == stats["reserved_bytes"]["all"]["peak"]
    assert found["allocated_peak"] == stats["allocated_bytes"]["all"]["peak"]
    assert found["first_failure"] is None and not found["failures"]


@pytest.mark.parametrize("seed", range(6))
def test_the_first_batch_that_fails_is_the_one_of_the_log_of_all_batches(seed):
    one = case(seed, 60)
    stats, _ = one.exhaustive()
    capacity = int(0.97 * stats["allocated_bytes"]["all"]["peak"])
    _, failed = one.exhaustive(capacity=capacity)
    found = one.replay(capacity=capacity, with_curves=True)
    assert found["first_failure"] == batch_of(one.whole, failed[0]) and found["requested"] == failed[1]
    assert found["failed_by_batch"].index(1) == found["first_failure"]
    assert sum(found["failed_by_batch"]) == found["failures"]
    first = one.replay(capacity=capacity, first_only=True)
    assert first["first_failure"] == found["first_failure"] and first["failures"] == 1


def test_an_operator_that_takes_a_workspace_for_long_batches_only():
    one = case(3, 60, threshold=1000)
    facts = one.epoch.facts()
    assert facts["variants"] == 2 and facts["inexact"] == 0
    stats, _ = one.exhaustive()
    assert one.replay()["allocated_peak"] == stats["allocated_bytes"]["all"]["peak"]


@pytest.mark.parametrize("conf", [None, "expandable_segments:True"])
def test_steps_that_are_known_are_skipped_and_the_figures_stay_the_same(conf):
    one = case(1, 4000, shapes=12)
    found = one.replay(conf=conf, with_curves=True)
    assert found["replayed"] < 2000
    stats, _ = one.exhaustive(conf=conf)
    assert found["reserved_peak"] == stats["reserved_bytes"]["all"]["peak"]
    reserved = array.array("Q", found["reserved_by_batch"])
    few = one.epoch.replay(one.batches[:300], bytes(300), version=VERSION, conf=conf, with_curves=True)
    assert reserved[:300] == array.array("Q", few["reserved_by_batch"])


def test_what_does_not_belong_together_is_refused():
    good = case(0, 10)
    with pytest.raises(ValueError):
        good.epoch.replay(array.array("I", [10**6] * 10), bytes(10), version=VERSION)
    with pytest.raises(ValueError):
        good.epoch.replay(array.array("I", [0] * 9), bytes(10), version=VERSION)
    with pytest.raises(ValueError, match="one run"):
        _capture.Epoch(b"", array.array("Q", [0]), b"", b"", b"", 0, 0, 1)
    frees_nothing = array.array("Q", [5 << KIND_BITS | FREE]).tobytes()
    with pytest.raises(ValueError, match="one run"):
        _capture.Epoch(frees_nothing, array.array("Q", [0, 1]), array.array("I", [0]), b"\0", array.array("d", [1.0]),
                       0, 1, 1)  # fmt: skip
