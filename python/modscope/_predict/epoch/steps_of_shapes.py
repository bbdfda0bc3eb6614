"""What the steps that were predicted say about steps of other shapes: which shapes to predict next, and a replay of the
whole epoch. The loops over events and steps are in C (modscope_epoch.h)."""

from __future__ import annotations

import array
import base64
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from modscope._capture import Epoch
from modscope._predict.epoch.batch_shapes import Shape, ShapeTable, table_of

if TYPE_CHECKING:
    from modscope._capture import EpochReplay

EPOCH = "epoch.json"
"""A file of ``PredictOptions.part``: what was read and predicted."""
MOST_SAMPLES = 32
"""Shapes that are predicted at most, beside those of the script's own first batches."""
_FEW_SHAPES = 8
"""So many are all predicted."""
_PARTS = 4
"""Of the shapes between the smallest and the largest, those at the ends of so many parts are predicted first."""
_PER_ROUND = 4

Wanted = tuple[int, int]
"""A shape whose step is to be predicted, and the kind of that step."""


class ReadAhead(NamedTuple):
    """What was read of a DataLoader before training."""

    shapes: list[Shape]
    batches: array.array[int]
    """The index of each batch's shape."""
    is_whole: bool
    """The loader has ended; else there are more batches."""
    seconds: float
    error: str
    """Why no more was read; "" if nothing failed."""
    not_stored: str

    @classmethod
    def of_json(cls, answer: dict[str, Any]) -> ReadAhead:
        return cls(
            [Shape(**shape) for shape in answer.get("shapes", [])],
            array.array("I", base64.b64decode(answer.get("batches", ""))),
            answer.get("is_whole", False),
            answer.get("seconds", 0.0),
            answer.get("error", ""),
            answer.get("not_stored", ""),
        )

    def as_json(self) -> dict[str, Any]:
        batches = base64.b64encode(self.batches.tobytes()).decode()
        return {**self._asdict(), "shapes": [shape._asdict() for shape in self.shapes], "batches": batches}


class Sampled(NamedTuple):
    """The steps that a script took, as they begin with the batches that it got."""

    marks: list[int]
    """Where each step begins in the log, and where the last one ends."""
    shapes: list[int]
    """Of each step's batch."""
    first: int
    """So many of them got the script's own batches."""
    period: int
    """An optimizer step follows so many batches."""

    def kind(self, batch: int) -> int:
        """Batches between two optimizer steps: the first and the last of them are of a kind of their own."""
        at = batch % self.period
        return 0 if at == 0 else 2 if at == self.period - 1 else 1

    def kinds(self, count: int) -> bytes:
        cycle = bytes(map(self.kind, range(self.period)))
        return (cycle * (count // self.period + 1))[:count]


class ShapedSteps:
    """The epoch as it can be replayed."""

    def __init__(self, log: bytes, sampled: Sampled, shapes: Sequence[Shape]) -> None:
        self.sampled, self.shapes = sampled, shapes
        self.table: ShapeTable = table_of([shape.features for shape in shapes])
        self._log = log
        self._epoch = self._open(self.table)
        self.facts = self._epoch.facts()

    def _open(self, table: ShapeTable) -> Epoch:
        sampled, steps = self.sampled, len(self.sampled.marks) - 1
        features = array.array("d", (value for row in table.rows for value in row))
        return Epoch(
            self._log,
            array.array("Q", sampled.marks),
            array.array("I", sampled.shapes[:steps]),
            sampled.kinds(steps),
            features,
            sampled.first,
            len(table.rows),
            len(table.names),
        )

    def batches(self, read: Sequence[int]) -> array.array[int]:
        """The epoch: the script's own first batches, then those that were read."""
        first = self.sampled.first
        return array.array("I", [*self.sampled.shapes[:first], *read[first:]])

    def requests_before(self, step: int) -> int:
        """How many requests of the log precede a step that was taken."""
        return self._epoch.requests_before(step)

    def operators(self, count: int) -> bytes:
        """Those of the first ``count`` requests of the log."""
        return self._epoch.operators(count)

    def with_log(self, log: bytes, marks: list[int]) -> ShapedSteps:
        """The same steps with other requests."""
        other = object.__new__(ShapedSteps)
        other.sampled, other.shapes, other._log = self.sampled._replace(marks=marks), self.shapes, log
        other.table = self.table
        other._epoch = other._open(other.table)
        other.facts = other._epoch.facts()
        return other

    def with_rows(self, rows: Iterable[list[float]]) -> ShapedSteps:
        """The same with further shapes, which no batch has."""
        other = object.__new__(ShapedSteps)
        other.sampled, other.shapes, other._log = self.sampled, self.shapes, self._log
        other.table = self.table._replace(rows=[*self.table.rows, *rows])
        other._epoch, other.facts = other._open(other.table), self.facts
        return other

    def replay(self, batches: array.array[int], **how: Any) -> EpochReplay:
        return self._epoch.replay(batches, self.sampled.kinds(len(batches)), **how)

    def computed(self, batch: int) -> int:
        """The batch that the step of this one computes with: programs load ahead."""
        return max(batch - self.facts["lag"], 0)

    def predicted(self) -> set[Wanted]:
        """The shapes with which the steps of the log computed, and the kinds of these steps."""
        sampled, lag = self.sampled, self.facts["lag"]
        steps = range(sampled.first + lag, len(sampled.marks) - 1)
        return {(sampled.shapes[step - lag], sampled.kind(step)) for step in steps}

    def predicted_shapes(self) -> set[int]:
        return {shape for shape, _ in self.predicted()}


# ---- which shapes to predict ----


def first_choice(table: ShapeTable, usable: Sequence[int]) -> list[int]:
    """The shapes that are predicted first: the extremes of each feature, and some between them. Small and large ones
    take turns, so that sizes tell which batch they belong to."""
    if len(usable) <= _FEW_SHAPES:
        chosen = [*usable]
    else:
        by_volume = sorted(usable, key=table.volume)
        chosen = [by_volume[(len(by_volume) - 1) * part // _PARTS] for part in range(_PARTS + 1)]
        for feature in range(len(table.names)):
            chosen += [pick(usable, key=lambda shape: table.rows[shape][feature]) for pick in (min, max)]
    ordered = sorted(dict.fromkeys(chosen), key=table.volume)
    half = (len(ordered) + 1) // 2
    mixed = [shape for pair in zip(ordered[:half], reversed(ordered[half:])) for shape in pair]
    return [*dict.fromkeys([*mixed, *ordered])]


def next_choice(
    steps: ShapedSteps, read: Sequence[int], usable: set[int], capacities: Iterable[int], how: dict[str, Any]
) -> list[Wanted]:
    """Steps that were not predicted and decide the answer: what is reserved grows with them, or memory runs out."""
    batches = steps.batches(read if steps.sampled.period > 1 else _first_of_each(read, steps.sampled.first))
    curve = steps.replay(batches, with_curves=True, **how)
    reserved = array.array("Q", curve["reserved_by_batch"])
    highest, records = 0, []
    for batch, value in enumerate(reserved):
        if value > highest:
            highest = value
            records.append(batch)
    failing = [steps.replay(batches, capacity=each, first_only=True, **how)["first_failure"] for each in capacities]
    decisive = [*(batch for batch in failing if batch is not None), *reversed(records)]
    known = steps.predicted()
    wanted = dict.fromkeys((batches[steps.computed(batch)], steps.sampled.kind(batch)) for batch in decisive)
    return [each for each in wanted if each not in known and each[0] in usable][:_PER_ROUND]


def schedule(wanted: Iterable[Wanted], kinds: Callable[[int], int], between: Sequence[int]) -> list[int]:
    """Shapes of batches, one after the other, so that each wanted step is one of them. ``kinds``: of the step of each
    batch from now on; ``between``: shapes for the steps of other kinds."""
    left = [*wanted]
    shapes: list[int] = []
    while left:
        kind = kinds(len(shapes))
        found = next((each for each in left if each[1] == kind), None)
        if found is not None:
            left.remove(found)
        shapes.append(between[len(shapes) % len(between)] if found is None else found[0])
    return shapes


def _first_of_each(read: Sequence[int], first: int) -> list[int]:
    """The first batches, and the first one of each shape."""
    return [*read[:first], *dict.fromkeys(read[first:])]
