"""What a lever is and what it costs, the job for which levers are tried, and the registry of functions that propose
levers. Needs no torch.

A function that is decorated with ``@lever`` takes a Case and returns its proposals, none where the lever does not suit
the job. Nothing reads the texts of a lever but people: ``kinds`` and ``costs`` say what it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from modscope._fit import sharding
from modscope._fit.job import Edit, Job, Outcome, Selection
from modscope._fit.siblings import Siblings, find_siblings
from modscope._fit.two_captures import Batches
from modscope._plan.file import Keep
from modscope._predict.options import ShardingChange
from modscope._read.categories import Category
from modscope._read.ranks import world_of
from modscope._virtual.gpus import Gpu
from modscope._virtual.ranks.network import communicator_bytes

CHECKPOINT = "checkpoint"
"""The kind of levers whose times are added up where several are combined."""
_LEAST_HELP = 0.005  # of what is reserved: a lever that helps less is not listed


# ---- what a lever is ----


class Cost(NamedTuple):
    """Something that a lever costs."""

    text: str
    time: float = 0.0
    """How much longer a step takes, as a part of it. 0: no longer, or it is not known how much."""
    is_exact: bool = True
    """Whether ``time`` is not an estimate."""
    extra_gpus: int = 0


def longer_step(time: float | None, is_exact: bool) -> Cost:
    """ "+11 % time". None: it is not known how much longer a step takes."""
    if time is None:
        return Cost("more time")
    text = f"{'' if is_exact else 'about '}{100 * time:+.{0 if abs(time) >= 0.01 else 1}f} % time"
    return Cost(text, time, is_exact)


class Lever(NamedTuple):
    kinds: tuple[str, ...]
    """What it is: the kind under which it is registered, or several if it is a combination."""
    name: str
    edits: list[Edit]
    costs: tuple[Cost, ...] = ()
    """None: it is free."""
    conf: str = ""
    """Settings of the allocator."""
    is_approximate: bool = False
    """What FSDP2 allocates is inferred: its replay is no bound, and may be too low or too high (docs/planning.md)."""
    modules: tuple[str, ...] = ()
    """The modules that are checkpointed."""
    can_be_verified: bool = False
    """Whether a script can be predicted with it as it is: with a plan, with settings of the allocator, or with other
    ranks."""
    sharding: ShardingChange | None = None
    """What is different about ranks."""
    keep: Keep = {}
    """Results that checkpointed modules keep."""

    @property
    def is_free(self) -> bool:
        return not self.costs

    @property
    def cost(self) -> str:
        return ", ".join(cost.text for cost in self.costs) or "none"

    @property
    def time(self) -> float:
        """How much longer a step takes, as a part of it. 0: no longer, or it is not known."""
        return sum((cost.time for cost in self.costs), 0.0)

    @property
    def extra_gpus(self) -> int:
        return sum(cost.extra_gpus for cost in self.costs)


def combine(*levers: Lever) -> Lever:
    costs = [cost for lever in levers for cost in lever.costs]
    checkpoints = [lever for lever in levers if CHECKPOINT in lever.kinds]
    if len(checkpoints) > 1:
        is_exact = all(cost.is_exact for lever in checkpoints for cost in lever.costs)
        others = [cost for lever in levers if lever not in checkpoints for cost in lever.costs]
        costs = [longer_step(sum(lever.time for lever in checkpoints) or None, is_exact), *others]
    return Lever(
        tuple(dict.fromkeys(kind for lever in levers for kind in lever.kinds)),
        " and ".join(lever.name for lever in levers),
        [edit for lever in levers for edit in lever.edits],
        tuple(costs),
        ",".join(filter(None, (lever.conf for lever in levers))),
        any(lever.is_approximate for lever in levers),
        tuple(module for lever in levers for module in lever.modules),
        all(lever.can_be_verified for lever in levers),
        next((lever.sharding for lever in levers if lever.sharding), None),
        {name: places for lever in levers for name, places in lever.keep.items()},
    )


class Tried(NamedTuple):
    lever: Lever
    outcome: Outcome
    again: Callable[[int], Tried | None] | None = None
    """Of the fewest modules that make it fit: the same for another capacity."""
    is_verified: bool = False
    """Whether the script was predicted with the lever. Otherwise the outcome is that of a replay."""
    capacity: int | None = None
    """What may be reserved with it; None: as much as without it. NCCL takes more of the GPU where there are more
    groups."""

    @property
    def is_approximate(self) -> bool:
        return self.lever.is_approximate and not self.is_verified

    @property
    def price(self) -> tuple[int, float, bool]:
        """The order of levers by their costs: more GPUs cost most, then time in each step, then what is not in
        figures."""
        return self.lever.extra_gpus, self.lever.time, not self.lever.is_free or self.outcome.retries > 0


# ---- the job ----


class Case:
    """A job on a GPU for which levers are tried. ``capacity``: what the job may reserve. ``ranks``: over how many GPUs
    it could be sharded; 0: over a few. ``batches``: two captures, where there are two."""

    def __init__(
        self, job: Job, gpu: Gpu, capacity: int, before: Outcome, ranks: int = 0, batches: Batches | None = None
    ) -> None:
        self.job, self.gpu, self.capacity, self.before = job, gpu, capacity, before
        self.ranks, self.batches = ranks, batches
        self.on_ranks: list[Tried] = []
        """What each of ``ranks`` GPUs would take, where that was asked and is known."""

    def attempt(self, lever: Lever, capacity: int | None = None) -> Tried:
        """``capacity``: where the lever itself leaves less of the GPU. That is known of more GPUs for a job on one:
        NCCL takes some."""
        if capacity is None and lever.extra_gpus and self.job.caching and world_of(self.job.capture) == 1:
            capacity = max(self.capacity - communicator_bytes(1 + lever.extra_gpus), 0)
        most = self.capacity if capacity is None else capacity
        return Tried(lever, self.job.replay(lever.edits, lever.conf, most), capacity=capacity)

    def helps(self, tried: Tried) -> bool:
        return tried.outcome.reserved < (1 - _LEAST_HELP) * self.before.reserved or tried.outcome.fits

    @functools.cached_property
    def groups(self) -> list[Siblings]:
        """The groups of modules that keep most for backward, outermost first."""
        return find_siblings(self.job, self.before.reserved)

    @functools.cached_property
    def parameters(self) -> tuple[int, int, int]:
        """The bytes of parameters that are there all the time, those of the largest, and their count."""
        return sharding.held_parameters(self.job)

    @functools.cached_property
    def is_sharded(self) -> bool:
        """Whether the job is a rank of FSDP2."""
        return sharding.uses_fsdp2(self.job)

    @functools.cached_property
    def ranks_of_a_copy(self) -> int:
        """How many ranks hold one copy of the model."""
        world = world_of(self.job.capture)
        return sharding.ranks_of_a_copy(self.job.capture, world) or world

    def optimizer_temporaries(self) -> Selection:
        return self.job.select(Category.TEMP, phases=["optimizer"])


# ---- the registry ----


Proposals = Iterable[Lever | Tried]
"""A Lever is tried, and listed if it helps. A Tried was tried by its function, and is listed as it is."""


class Registered(NamedTuple):
    kind: str
    propose: Callable[[Case], Proposals]
    is_free: bool
    """Whether its levers have no costs. They are also tried together, and with checkpoints."""
    saves_time: bool
    """Whether its levers are for a job that fits, and would be faster."""


LEVERS: list[Registered] = []
"""In the order in which levers of the same cost are listed."""


F = TypeVar("F", bound=Callable[[Case], Proposals])


def lever(kind: str, *, is_free: bool = False, saves_time: bool = False) -> Callable[[F], F]:
    """Register a function that proposes levers of a kind."""

    def register(propose: F) -> F:
        LEVERS.append(Registered(kind, propose, is_free, saves_time))
        return propose

    return register


def try_free(case: Case) -> list[Tried]:
    """The levers without a cost that help. Of the allocator's settings only the one that reserves least: settings are
    not combined."""
    rows = [tried for each in LEVERS if each.is_free for tried in _listed(case, each)]
    settings = sorted((tried for tried in rows if tried.lever.conf), key=lambda tried: tried.outcome.reserved)
    return [tried for tried in rows if not tried.lever.conf or tried is settings[0]]


def try_others(case: Case) -> list[Tried]:
    """Try the levers with a cost, and return those that help."""
    return [tried for each in LEVERS if not (each.is_free or each.saves_time) for tried in _listed(case, each)]


def try_faster(case: Case) -> list[Tried]:
    """The levers with which a job that fits takes less time, and still fits."""
    rows = [tried for each in LEVERS if each.saves_time for tried in _listed(case, each)]
    return [tried for tried in rows if tried.outcome.fits_at_once]


def _listed(case: Case, registered: Registered) -> list[Tried]:
    rows = []
    for proposed in registered.propose(case):
        tried = proposed if isinstance(proposed, Tried) else case.attempt(proposed)
        if tried is proposed or case.helps(tried):
            rows.append(tried)
    return rows
