"""Whether any batch of an epoch runs out of memory on a GPU: which one, what would be safe, and how much of what is
reserved the shapes before have left behind. Needs no torch."""

from __future__ import annotations

import array
import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from modscope._predict.epoch.batch_shapes import Shape
from modscope._predict.epoch.plain_loop import LEAST_STEPS
from modscope._predict.epoch.report import (
    EpochBatch,
    EpochBin,
    EpochCap,
    EpochFailure,
    EpochOnGpu,
    EpochPoint,
    EpochReport,
    EpochShape,
)
from modscope._predict.epoch.steps_of_shapes import EPOCH, ReadAhead, Sampled, ShapedSteps
from modscope._predict.in_script import LOG
from modscope._predict.result import Facts, may_reserve_beside
from modscope._predict.text import describe_error
from modscope._read.load import Capture
from modscope._virtual.certainty import FITS, Judged, certainty_of, judge
from modscope._virtual.gpus import Gpu

EXPANDABLE = "expandable_segments:True"
_ALONE = 3
"""So many steps of one shape reserve what it needs alone."""
_INEXACT = 0.05
"""By so much of their bytes sizes may be off that are interpolated between shapes."""
_TRIALS = 24
_BINS = 40
_NO_CUDA_HERE = "re-initialize CUDA in forked subprocess"
"""What torch says where a forked process uses CUDA."""


class EpochRun(NamedTuple):
    """What a script's process leaves of an epoch."""

    place: str
    length: int | None
    other_loaders: list[str]
    notes: list[str]
    read: ReadAhead
    sampled: Sampled
    longest: dict[str, list[int]]
    folder: str
    """With a batch of each shape (spool.py)."""
    log: bytes

    @classmethod
    def of_part(cls, part: str) -> EpochRun | None:
        """What is in the folder of a prediction; None: no training loader was found."""
        try:
            with open(os.path.join(part, EPOCH), encoding="utf-8") as file:
                document = json.load(file)
            with open(os.path.join(part, LOG), "rb") as log:
                return cls.of_json(document, log.read())
        except (OSError, ValueError):
            return None

    @classmethod
    def of_json(cls, document: dict[str, Any], log: bytes) -> EpochRun:
        read = ReadAhead.of_json(document["read"])
        return cls(**{**document, "read": read, "sampled": Sampled(**document["sampled"])}, log=log)


def why_no_epoch(facts: Facts) -> str:
    if facts.get("ended") == "exception":
        return f"the script failed before steps of all shapes were predicted: {describe_error({**facts})}."
    return (
        "no two training steps took batches of one torch.utils.data.DataLoader, so there is no epoch to read, and the "
        f"script took fewer than {LEAST_STEPS} steps of its own. Let it take more: --steps 200, or --steps 1000"
    )


def why_unreadable(run: EpochRun) -> str:
    if _NO_CUDA_HERE in run.read.error:
        return (
            f"the DataLoader at {run.place} could not be read ahead: its dataset or collate function uses the GPU. Let "
            "it make batches on the CPU, and move them to the GPU in the training loop."
        )
    return f"the DataLoader at {run.place} could not be read ahead: {run.read.error or 'it has no batches'}."


def _until_failure(run: EpochRun, facts: Facts) -> EpochRun:
    """What is known of a script without a DataLoader that failed: it would have taken more steps."""
    if run.place or (facts.get("ended") != "exception" and facts.get("status") in ("", "0", None)):
        return run
    return run._replace(length=None, read=run.read._replace(is_whole=False, error=describe_error({**facts})))


class EpochAnswer:
    """Of one run, for any GPU of its kind."""

    def __init__(self, run: EpochRun, facts: Facts, capture: Capture) -> None:
        self.run, self._facts, self.capture = _until_failure(run, facts), facts, capture
        self.steps = ShapedSteps(run.log, run.sampled, run.read.shapes)
        self.batches = self.steps.batches(run.read.batches)
        self._conf = capture.info.get("allocator", "")
        self.unlimited = self._replay(with_curves=True)
        self._reserved = array.array("Q", self.unlimited["reserved_by_batch"])

    def _replay(self, steps: ShapedSteps | None = None, batches: Any = None, conf: str = "", **how: Any) -> Any:
        settings = ",".join(filter(None, (self._conf, conf))) or None
        chosen = self.batches if batches is None else batches
        return (steps or self.steps).replay(chosen, version=self._facts["torch"], conf=settings, **how)

    # ---- one GPU ----

    def on(self, gpu: Gpu) -> EpochOnGpu:
        capacity = may_reserve_beside(gpu, self._facts)
        room: dict[str, Any] = {"capacity": capacity, "total_memory": gpu.memory}
        limited = self._replay(**room)
        fits = limited["first_failure"] is None
        expandable = self._replay(conf=EXPANDABLE, **room)
        return {
            "gpu": gpu.name,
            "title": gpu.title,
            "memory": gpu.memory,
            "context": gpu.context,
            "may_reserve": capacity,
            "fits": fits,
            "reserved_peak": self.unlimited["reserved_peak"],
            "reserved_at": self._describe(self.unlimited["reserved_at"]),
            "allocated_peak": self.unlimited["allocated_peak"],
            "left_behind": self._left_behind(self.steps, self.batches, self.unlimited),
            "retries": limited["retries"] if fits else None,
            **self._judged(gpu, capacity, fits),
            "failures": limited["failures"],
            "failure": None if fits else self._failure(limited),
            "cap": None if fits else self._cap(limited, room),
            "expandable": {
                "fits": expandable["first_failure"] is None,
                "reserved_peak": self._replay(conf=EXPANDABLE)["reserved_peak"],
                "failures": expandable["failures"],
            },
        }

    def _judged(self, gpu: Gpu, capacity: int, fits: bool) -> Judged:
        ranks = self._facts.get("ranks")
        communicators = ranks["communicator_bytes"] if ranks else 0
        reserved = self.unlimited["reserved_peak"]
        sure = certainty_of(gpu, self.capture, self._facts["device"], reserved, communicators)
        sure = sure._replace(interpolated=self._inexact_bytes())
        if self._is_partial() and fits:
            return {"verdict": FITS, "margin": sure.margin, "why": ""}
        verdict = judge(sure, capacity - reserved, capacity, fits, 0, lambda room: self._fits_with(room, gpu))
        return {**verdict.as_json()}

    def _fits_with(self, capacity: int, gpu: Gpu) -> bool:
        found = self._replay(capacity=capacity, total_memory=gpu.memory, first_only=True)
        return bool(found["first_failure"] is None)

    def _inexact_bytes(self) -> int:
        """By how much sizes that are interpolated may be off; nothing is, where the decisive shape was predicted."""
        decisive = self.batches[self.steps.computed(self.unlimited["reserved_at"])]
        if decisive in self.steps.predicted_shapes():
            return 0
        return int(_INEXACT * self.steps.facts["inexact_bytes"])

    def _is_partial(self) -> bool:
        return not self.run.read.is_whole

    # ---- what is said of a batch ----

    def _describe(self, at: int) -> EpochBatch:
        """A batch, where a step with it is the one that began with batch ``at``."""
        batch = self.steps.computed(at)
        shape = self.run.read.shapes[self.batches[batch]]
        sample = self.run.longest.get(str(batch))
        return {
            "batch": batch,
            "step": batch // self.run.sampled.period + 1,
            "shape": list(shape.dims),
            "unit": shape.unit,
            "longest_sample": sample[0] if sample else None,
        }

    def _failure(self, limited: Any) -> EpochFailure:
        at = limited["first_failure"]
        return {
            **self._describe(at),
            "needs": max(self._reserved[at], limited["reserved"] + limited["requested"]),
            "requested": limited["requested"],
            "allocated": limited["allocated"],
            "reserved": limited["reserved"],
        }

    def _left_behind(self, steps: ShapedSteps, batches: array.array[int], found: Any, **room: Any) -> int:
        """Of what is reserved at most, so much would not be if there were only the batch that needs most."""
        first = self.run.sampled.first
        worst = batches[steps.computed(found["allocated_at"])]
        alone = array.array("I", [*batches[:first], *[worst] * _ALONE])
        return max(int(found["reserved_peak"] - self._replay(steps, alone, **room)["reserved_peak"]), 0)

    # ---- what would be safe ----

    def _cap(self, limited: Any, room: dict[str, Any]) -> EpochCap | None:
        """The largest value of a length with which no batch fails; None: there is none, as the shapes do not vary."""
        failing = self.batches[self.steps.computed(limited["first_failure"])]
        for feature in self._features_by_excess(failing):
            value = self._largest(feature, failing, room)
            if value is not None:
                return self._describe_cap(feature, value, failing, room)
        return None

    def _features_by_excess(self, failing: int) -> list[int]:
        table = self.steps.table

        def excess(feature: int) -> float:
            middle = statistics.median(row[feature] for row in table.rows) or 1.0
            return table.rows[failing][feature] / middle

        lengths = [number for number, name in enumerate(table.names) if "+" not in name]
        return sorted(lengths, key=excess, reverse=True)

    def _largest(self, feature: int, failing: int, room: dict[str, Any]) -> int | None:
        most = int(self.steps.table.rows[failing][feature])
        least = int(min(row[feature] for row in self.steps.table.rows))
        unit = 64 if most >= 1024 else 8 if most >= 128 else 1
        grid: list[int] = [least, *range((least // unit + 1) * unit, most, unit)]
        read = self.run.read.batches
        distinct = self.steps.batches([*read[: self.run.sampled.first], *dict.fromkeys(read)])

        def fits(value: int, batches: array.array[int]) -> bool:
            steps, clipped = self._clipped(feature, value, batches)
            return bool(self._replay(steps, clipped, first_only=True, **room)["first_failure"] is None)

        found = _last_that(lambda at: fits(grid[at], distinct), len(grid))
        for _ in range(_TRIALS):
            if found is None or found < 0:
                return None
            if fits(grid[found], self.batches):
                return grid[found]
            found -= 1
        return None

    def _clipped(self, feature: int, value: int, batches: array.array[int]) -> tuple[ShapedSteps, array.array[int]]:
        """The epoch with shapes in which this length is at most ``value``."""
        rows = self.steps.table.rows
        new: dict[tuple[float, ...], int] = {}
        numbers = [*range(len(rows))]
        for shape, row in enumerate(rows):
            if row[feature] > value:
                clipped = tuple(float(value) if at == feature else number for at, number in enumerate(row))
                numbers[shape] = len(rows) + new.setdefault(clipped, len(new))
        first = self.run.sampled.first
        kept = array.array("I", [*batches[:first], *(numbers[shape] for shape in batches[first:])])
        return self.steps.with_rows([list(row) for row in new]), kept

    def _describe_cap(self, feature: int, value: int, failing: int, room: dict[str, Any]) -> EpochCap:
        steps, batches = self._clipped(feature, value, self.batches)
        found = self._replay(steps, batches, **room)
        shape = self.run.read.shapes[failing]
        was = int(self.steps.table.rows[failing][feature])
        dims = [value if dim == was else dim for dim in shape.dims]
        rows = self.steps.table.rows
        return {
            "length": self.steps.table.names[feature],
            "cut": sum(rows[shape][feature] > value for shape in self.batches),
            "value": value,
            "was": was,
            "shape": dims if was in shape.dims else [],
            "unit": shape.unit,
            "reserved_peak": found["reserved_peak"],
            "allocated_peak": found["allocated_peak"],
            "left_behind": self._left_behind(steps, batches, found, **room),
        }

    # ---- the whole ----

    def about(self) -> EpochReport:
        """What is the same for all GPUs."""
        read, facts = self.run.read, self.steps.facts
        return {
            "loader": self.run.place,
            "batches": len(read.batches),
            "batches_of_loader": self.run.length,
            "is_whole_epoch": read.is_whole,
            "read_seconds": round(read.seconds, 3),
            "read_error": read.error,
            "shapes": len(set(read.batches)),
            "smallest": self._shape_at(min),
            "largest": self._shape_at(max),
            "predicted_shapes": len(self.steps.predicted_shapes()),
            "inexact_blocks": facts["inexact"],
            "blocks": facts["blocks"],
            "batches_per_step": self.run.sampled.period,
            "longest_sample": self._longest_sample(),
            "notes": self._notes(),
        }

    def _shape_at(self, pick: Callable[..., int]) -> EpochShape | None:
        if not self.run.read.batches:
            return None
        return _named(self.run.read.shapes[pick(set(self.run.read.batches), key=self.steps.table.volume)])

    def _longest_sample(self) -> int | None:
        found = [sample for sample in self.run.longest.values() if sample]
        return max(found, key=lambda sample: sample[1])[0] if found else None

    def _notes(self) -> list[str]:
        notes = list(self.run.notes)
        if self.run.other_loaders:
            others = ", ".join(sorted(set(self.run.other_loaders)))
            notes.append(f"The script iterates other DataLoaders too ({others}): their batches were not read.")
        if self.steps.table.left_out:
            notes.append(
                f"The shapes vary in {self.steps.table.left_out + len(self.steps.table.names)} ways: "
                f"{len(self.steps.table.names)} of them are followed."
            )
        if self.run.read.not_stored:
            notes.append(f"Of some shapes {self.run.read.not_stored}: their steps follow from other shapes.")
        return notes

    def curve(self, most: int = 500) -> list[EpochPoint]:
        """What is reserved and allocated at most by the steps, in at most so many points."""
        allocated = array.array("Q", self.unlimited["allocated_by_batch"])
        width = max((len(allocated) + most - 1) // most, 1)
        starts = range(0, len(allocated), width)
        return [
            {
                "batch": self.steps.computed(at),
                "reserved": max(self._reserved[at : at + width]),
                "allocated": max(allocated[at : at + width]),
            }
            for at in starts
        ]

    def distribution(self) -> list[EpochBin]:
        """How many batches have how many elements, in the tensor that stands for the batch."""
        shapes = self.run.read.shapes
        counts = Counter(self.run.read.batches)
        elements = {shape: math.prod(shapes[shape].dims) for shape in counts}
        least = min(elements.values())
        width = max(-(-(max(elements.values()) + 1 - least) // _BINS), 1)
        bins: dict[int, list[int]] = {}
        for shape in sorted(counts, key=lambda shape: (elements[shape], shapes[shape].dims)):
            bins.setdefault((elements[shape] - least) // width, []).append(shape)
        return [
            {
                "elements_from": least + number * width,
                "elements_to": least + (number + 1) * width,
                "batches": sum(counts[shape] for shape in members),
                "smallest": _named(shapes[members[0]]),
                "largest": _named(shapes[members[-1]]),
            }
            for number, members in bins.items()
        ]


def _named(shape: Shape) -> EpochShape:
    return {"shape": list(shape.dims), "unit": shape.unit}


def _last_that(is_good: Callable[[int], bool], count: int) -> int | None:
    """The last of ``count`` indices that is good, where all before it are; None: the first one is not."""
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_good(middle) else (low, middle)
    return low if low >= 0 else None
