"""What ``modscope fit`` answers: whether a job fits a GPU, and what would make it fit. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from modscope._fit.capacity import nccl_bytes
from modscope._fit.job import Job, Moment, Outcome
from modscope._fit.levers import checkpoints, fsdp2, host_memory, optimizer
from modscope._fit.levers.registry import Case, Lever, Tried, combine, try_faster, try_free, try_others
from modscope._fit.two_captures import Batches
from modscope._predict.epoch.report import EpochOnGpu, FitEpoch
from modscope._read.categories import Category
from modscope._read.ranks import world_of
from modscope._read.step_time import step_ms
from modscope._virtual.certainty import (
    Certainty,
    Judged,
    OtherKernels,
    OtherKernelsReport,
    Verdict,
    certainty_of,
    judge,
    other_kernels,
)
from modscope._virtual.gpus import Gpu


class Answer(NamedTuple):
    job: Job
    gpu: Gpu
    before: Outcome
    tried: list[Tried]
    """The levers that help, the cheapest first."""
    rest: int
    """Bytes of parameters, gradients and the optimizer's state."""
    capacity: int
    """What the job may reserve of the GPU."""
    about: Sequence[str] = ()
    """Sentences about the captures."""
    ranks: int = 0
    """Over how many GPUs it could be sharded, if that was asked."""
    on_ranks: Sequence[Tried] = ()
    """What each of them would take. Where the job does not fit one GPU, these are among ``tried``."""
    on_epoch: EpochOnGpu | None = None
    """What the whole epoch comes to on the GPU, if that was asked."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on the job as it is."""
        before = self.before

        def fits_with(capacity: int) -> bool:
            if before.reserved <= capacity or before.allocated > capacity or not self.job.caching:
                return before.reserved <= capacity
            return self.job.replay(capacity=capacity).fits

        spare = self.capacity - before.reserved_on_gpu
        return judge(self._sure(before), spare, self.capacity, before.fits, before.retries, fits_with)

    def verdict_on(self, tried: Tried) -> Verdict:
        """The verdict on the job with a change."""
        outcome, capacity = tried.outcome, self.capacity if tried.capacity is None else tried.capacity
        spare = capacity - outcome.reserved_on_gpu
        return judge(self._sure(outcome), spare, capacity, outcome.fits, 0, lambda more: outcome.reserved <= more)

    def _sure(self, outcome: Outcome) -> Certainty:
        capture = self.job.capture
        return certainty_of(self.gpu, capture, self.job.device, outcome.reserved, nccl_bytes(capture))

    @property
    def other_kernels(self) -> OtherKernels | None:
        return other_kernels(self.job.capture, self.gpu)

    @property
    def retries_per_step(self) -> int | None:
        retries = self.before.retries if self.before.fits else 0
        return self.job.retries_of_a_step(self.capacity) if retries else 0


def answer(
    job: Job, gpu: Gpu, batches: Batches | None = None, levers: bool = True, faster: bool = False, ranks: int = 0
) -> Answer:
    """``faster``: where it fits, try what would be faster and still fit. ``ranks``: over how many GPUs it could be
    sharded."""
    capacity = job.may_reserve(gpu)
    before = job.replay(capacity=capacity)
    case = Case(job, gpu, capacity, before, ranks, batches)
    case.on_ranks = fsdp2.over_asked(case)
    tried: list[Tried] = []
    if before.fits and faster:
        tried = try_faster(case)
    elif levers and not before.fits:
        tried = _table(case)
    return Answer(job, gpu, before, tried, _held(job), capacity, ranks=ranks, on_ranks=case.on_ranks)


def _held(job: Job) -> int:
    state = (Category.PARAM, Category.GRAD, Category.OPT)
    found = [sums for at in _ends(job) if (sums := job.capture.snapshot(at).totals.get(job.device))]
    return max((sum(sums[kind] for kind in state) for sums in found), default=0)


def _ends(job: Job) -> list[int | str]:
    return ["peak", *(f"step:{number}" for _, number, _ in job.steps[: job.whole_steps][:2])]


# ---- the table ----


def _table(case: Case) -> list[Tried]:
    free = try_free(case)
    rows = [*free, *try_others(case)]
    rows += _combined(case, [tried.lever for tried in free], rows)
    return sorted(rows, key=lambda tried: tried.price)


def _combined(case: Case, free: list[Lever], rows: list[Tried]) -> list[Tried]:
    """The cheapest combination that fits, where no single lever without a cost does; if none fits, the one that needs
    least."""
    if any(tried.outcome.fits and tried.lever.is_free for tried in rows):
        return []
    if len(free) > 1 and (tried := case.attempt(combine(*free))).outcome.fits:
        return [tried]
    alone = min((tried.lever.time for tried in rows if tried.outcome.fits and not tried.lever.extra_gpus), default=None)
    found = [
        found
        for siblings in case.groups
        for few in _subsets(free)
        if (found := checkpoints.fewest(case, siblings, *few))
    ]
    cheaper = [tried for tried in found if alone is None or tried.lever.time < alone]
    if cheaper:
        return [min(cheaper, key=lambda tried: tried.lever.time)]  # of equals the first, which combines less
    if any(tried.outcome.fits for tried in rows):
        return []
    return _with_everything(case, free)


def _subsets(free: list[Lever]) -> list[list[Lever]]:
    """Each lever by itself, then all together."""
    return [[lever] for lever in free] + ([free] if len(free) > 1 else [])


def _with_everything(case: Case, free: list[Lever]) -> list[Tried]:
    """All checkpoints with all free levers, and the optimizer on the CPU or more GPUs. An optimizer on the CPU is not
    the GPU's fused one."""
    all_of, state = checkpoints.checkpoint_all(case), host_memory.optimizer_state(case)
    others = [lever for lever in free if not state or optimizer.FUSED not in lever.kinds]
    ways = [[*others, *all_of, *state]]
    ways += [[*free, *all_of, lever] for ranks in fsdp2.rank_counts(case) if (lever := fsdp2.sharded(case, ranks))]
    tried = []
    for way in ways:
        if len(way) > 1:
            tried.append(case.attempt(combine(*way)))
            if tried[-1].outcome.fits:
                return [tried[-1]]
    return [min(tried, key=lambda each: each.outcome.reserved)] if tried else []


# ---- as JSON ----


class FitFailure(TypedDict):
    """The first allocation that would fail."""

    step: int
    phase: str
    module: str
    requested: int


class FitFigures(TypedDict):
    """What a run reserves."""

    reserved_peak: int
    reserved_on_gpu: int
    allocated_peak: int
    fits: bool
    to_spare: int
    retries: int
    failure: FitFailure | None


class LeverReport(FitFigures):
    """A change to the run, and what it needs with it."""

    name: str
    kinds: list[str]
    cost: str
    is_free: bool
    allocator: str
    time: float | None
    gpus: int
    is_approximate: bool
    is_verified: bool
    verdict: str


class FitOnGpu(FitFigures, Judged):
    """A run on a GPU."""

    file: str
    device: str
    gpu: str
    title: str
    memory: int
    context: int
    caching: bool
    is_lower_bound: bool
    has_damaged_notes: bool
    whole_steps: int
    step_ms: float | None
    died: bool
    notes: list[str]
    ranks: int
    communicator_bytes: int
    may_reserve: int
    retries_per_step: int | None
    reserved_unlimited: int
    other_kernels: OtherKernelsReport | None
    held_by_parameters_gradients_state: int
    levers: list[LeverReport]
    ranks_asked: int
    on_ranks: list[LeverReport]
    epoch: FitEpoch | None


def as_json(found: Answer) -> FitOnGpu:
    job = found.job
    return {
        "file": job.file,
        "device": job.device,
        "gpu": found.gpu.name,
        "title": found.gpu.title,
        "memory": found.gpu.memory,
        "context": found.gpu.context,
        "caching": job.caching,
        "is_lower_bound": job.is_lower_bound,
        "has_damaged_notes": job.has_damaged_notes,
        "whole_steps": job.whole_steps,
        "step_ms": step_ms(job.capture),
        "died": job.died,
        "notes": list(found.about),
        "ranks": world_of(job.capture),
        "communicator_bytes": nccl_bytes(job.capture),
        "may_reserve": found.capacity,
        **_outcome(found.before, found.capacity),
        **found.verdict.as_json(),
        "retries_per_step": found.retries_per_step,
        "reserved_unlimited": found.before.reserved,
        "other_kernels": other.as_json() if (other := found.other_kernels) else None,
        "held_by_parameters_gradients_state": found.rest,
        "levers": [_lever(tried, found) for tried in found.tried],
        "ranks_asked": found.ranks,
        "on_ranks": [_lever(tried, found) for tried in found.on_ranks],
        "epoch": {**job.epoch.about(), "on_gpu": found.on_epoch} if job.epoch and found.on_epoch else None,
    }


def _lever(tried: Tried, found: Answer) -> LeverReport:
    lever = tried.lever
    return {
        "name": lever.name,
        "kinds": list(lever.kinds),
        "cost": lever.cost,
        "is_free": lever.is_free,
        "allocator": lever.conf,
        "time": lever.time or None,
        "gpus": world_of(found.job.capture) + lever.extra_gpus,
        "is_approximate": tried.is_approximate,
        "is_verified": tried.is_verified,
        **_outcome(tried.outcome, found.capacity if tried.capacity is None else tried.capacity),
        "verdict": found.verdict_on(tried).answer,
    }


def _outcome(outcome: Outcome, capacity: int) -> FitFigures:
    return {
        "reserved_peak": outcome.reserved,
        "reserved_on_gpu": outcome.reserved_on_gpu,
        "allocated_peak": outcome.allocated,
        "fits": outcome.fits,
        "to_spare": capacity - outcome.reserved_on_gpu,
        "retries": outcome.retries,
        "failure": _moment(outcome.failed, outcome.requested),
    }


def _moment(at: Moment | None, requested: int) -> FitFailure | None:
    return {"step": at.step, "phase": at.phase, "module": at.module, "requested": requested} if at else None
