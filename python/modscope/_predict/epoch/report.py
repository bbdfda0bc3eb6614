"""What is told of an epoch, as --json has it (_cli/schema.txt). Needs no torch."""

from __future__ import annotations

from typing import TypedDict

from modscope._virtual.certainty import Judged


class EpochShape(TypedDict):
    """The shape of a batch."""

    shape: list[int]
    unit: str


class EpochBatch(EpochShape):
    """A batch of an epoch."""

    batch: int
    step: int
    longest_sample: int | None


class EpochFailure(EpochBatch):
    """A batch that runs out of memory."""

    needs: int
    requested: int
    allocated: int
    reserved: int


class EpochCap(EpochShape):
    """Batches whose lengths are cut."""

    length: str
    was: int
    cut: int
    value: int
    reserved_peak: int
    allocated_peak: int
    left_behind: int


class EpochExpandable(TypedDict):
    """All batches with expandable segments."""

    fits: bool
    reserved_peak: int
    failures: int


class EpochOnGpu(Judged):
    """All batches of an epoch on a GPU."""

    gpu: str
    title: str
    memory: int
    context: int
    may_reserve: int
    fits: bool
    reserved_peak: int
    reserved_at: EpochBatch
    allocated_peak: int
    left_behind: int
    retries: int | None
    failures: int
    failure: EpochFailure | None
    cap: EpochCap | None
    expandable: EpochExpandable


class EpochReport(TypedDict):
    """The batches of an epoch."""

    loader: str
    batches: int
    batches_of_loader: int | None
    is_whole_epoch: bool
    read_seconds: float
    read_error: str
    shapes: int
    smallest: EpochShape | None
    largest: EpochShape | None
    predicted_shapes: int
    blocks: int
    inexact_blocks: int
    batches_per_step: int
    longest_sample: int | None
    notes: list[str]


class FitEpoch(EpochReport):
    """The batches of an epoch, on a GPU."""

    on_gpu: EpochOnGpu


class EpochPoint(TypedDict):
    """Some batches of an epoch."""

    batch: int
    reserved: int
    allocated: int


class EpochBin(TypedDict):
    """Batches of about the same size."""

    elements_from: int
    elements_to: int
    batches: int
    smallest: EpochShape
    largest: EpochShape


class PredictEpoch(EpochReport):
    """A prediction of all batches of an epoch."""

    seconds: float
    gpus: list[EpochOnGpu]
    curve: list[EpochPoint]
    distribution: list[EpochBin]
    script_notes: list[str]
    torch: str
