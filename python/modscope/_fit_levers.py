"""The levers of ``modscope fit``: what can be changed, as edits of the events, and what each costs. Needs no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from modscope import _fit_resharding, _fit_sharding
from modscope._categories import Category
from modscope._fit_job import Edit, Job, Outcome
from modscope._fit_modules import Siblings, checkpoint, find_siblings
from modscope._fit_ranks import world_of
from modscope._sharding_change import ShardingChange
from modscope._text import size
from modscope._virtual.gpus import Gpu
from modscope._virtual.network import communicator_bytes

_RANKS = (2, 4, 8)
_LEAST_HELP = 0.005  # of what is reserved: a lever that helps less is not listed
_SETTINGS = ("expandable_segments:True", "max_split_size_mb:512")
_LINK = 16e9  # bytes a second to a host over PCIe 3, where the GPU's link is not known
OF_LINK = 0.8
"""The fraction of the link's rate that copies from and to pinned memory reach, as the virtual clock has it."""


class Lever(NamedTuple):
    name: str
    edits: list[Edit]
    cost: str
    conf: str = ""
    time: float = 0.0
    """How much longer a step takes, as a part of it. 0: no longer, or it is not known, and ``cost`` says so."""
    more: int = 0
    """GPUs in addition."""
    is_approximate: bool = False
    """What FSDP2 allocates is inferred: its replay is no bound, and may be too low or too high (docs/planning.md)."""
    modules: tuple[str, ...] = ()
    """Those that are checkpointed."""
    can_be_verified: bool = False
    """Whether a script can be predicted with it as it is: with a plan, with settings of the allocator, or with other ranks."""
    sharding: ShardingChange | None = None
    """What is different about ranks."""


class Tried(NamedTuple):
    lever: Lever
    outcome: Outcome
    again: Callable[[int], Tried | None] | None = None
    """Of the fewest modules that make it fit: the same for another capacity."""
    is_verified: bool = False
    """Whether the script was predicted with the lever. Otherwise the outcome is that of a replay."""
    capacity: int | None = None
    """What may be reserved with it; None: as much as without it. NCCL takes more of the GPU where there are more groups."""

    @property
    def is_approximate(self) -> bool:
        return self.lever.is_approximate and not self.is_verified

    @property
    def price(self) -> tuple[int, float, bool]:
        """The order of levers by their costs: more GPUs cost most, then time in each step, then what is not in figures."""
        return self.lever.more, self.lever.time, self.lever.cost != "none" or self.outcome.retries > 0


def percent(time: float | None, exact: bool) -> str:
    """ "+11 % time" """
    if time is None:
        return "more time"
    return f"{'' if exact else 'about '}{100 * time:+.{0 if abs(time) >= 0.01 else 1}f} % time"


def over_gpus(ranks: int, mixed: bool = False, which: str = "") -> str:
    return f"FSDP2 over {which}{ranks} GPUs{' with a MixedPrecisionPolicy' if mixed else ''}"


def combine(*levers: Lever) -> Lever:
    costs = [lever.cost for lever in levers if lever.cost != "none"]
    checkpoints = [lever for lever in levers if lever.name.startswith("checkpoint")]
    if len(checkpoints) > 1:
        costs = [lever.cost for lever in levers if lever.cost != "none" and lever not in checkpoints]
        exact = not any(lever.cost.startswith("about") for lever in checkpoints)
        costs.insert(0, percent(sum(lever.time for lever in checkpoints) or None, exact))
    return Lever(
        " and ".join(lever.name for lever in levers),
        [edit for lever in levers for edit in lever.edits],
        ", ".join(costs) or "none",
        ",".join(filter(None, (lever.conf for lever in levers))),
        sum(lever.time for lever in levers),
        sum(lever.more for lever in levers),
        any(lever.is_approximate for lever in levers),
        tuple(module for lever in levers for module in lever.modules),
        all(lever.can_be_verified for lever in levers),
        next((lever.sharding for lever in levers if lever.sharding), None),
    )


class Levers:
    """Tries levers of a job on a GPU. ``capacity``: what the GPU has beside the context. ``ranks``: over how many GPUs it could be sharded; 0: over a
    few."""

    def __init__(self, job: Job, gpu: Gpu, capacity: int, before: Outcome, ranks: int = 0) -> None:
        self.job, self.gpu, self.capacity, self.before, self.ranks = job, gpu, capacity, before, ranks

    @functools.cached_property
    def groups(self) -> list[Siblings]:
        return find_siblings(self.job, self.before.reserved) if self.job.whole_steps else []

    def attempt(self, lever: Lever, capacity: int | None = None) -> Tried:
        """``capacity``: where the lever itself leaves less of the GPU. That is known of more GPUs for a job on one: NCCL takes some."""
        if capacity is None and lever.more and self.job.caching and world_of(self.job.capture) == 1:
            capacity = max(self.capacity - communicator_bytes(1 + lever.more), 0)
        most = self.capacity if capacity is None else capacity
        return Tried(lever, self.job.replay(lever.edits, lever.conf, most), capacity=capacity)

    def helps(self, tried: Tried) -> bool:
        return tried.outcome.reserved < (1 - _LEAST_HELP) * self.before.reserved or tried.outcome.fits

    # ---- levers without a cost ----

    def free(self) -> list[Lever]:
        return [*self.settings(), *self.zero_grad(), *self.optimizer()]

    def settings(self) -> list[Lever]:
        """Settings of PYTORCH_CUDA_ALLOC_CONF that the run did not have."""
        if not self.job.caching or "expandable_segments:true" in self.job.conf.lower():
            return []
        return [
            Lever(text, [], "none", text, can_be_verified=True)
            for text in _SETTINGS
            if text.partition(":")[0] not in self.job.conf
        ]

    def zero_grad(self) -> list[Lever]:
        edits: list[Edit] = [("zero_grad",)]
        return [Lever("zero_grad(set_to_none=True)", edits, "none")] if self.job.whole_steps > 1 else []

    def optimizer(self) -> list[Lever]:
        """A foreach optimizer has temporaries as large as all parameters, a fused one has none."""
        edits: list[Edit] = [("remove", self.job.select(Category.TEMP, phases=["optimizer"]))]
        return [Lever("fused optimizer instead of foreach", edits, "none")] if self._is_foreach() else []

    def single_tensor(self) -> list[Lever]:
        """An optimizer that loops over the parameters has temporaries of one at a time. Of Adam's there are two, of the
        parameter's size."""
        job = self.job
        parameters, largest, _ = _fit_sharding.held_parameters(job)
        if not self._is_foreach() or 2 * largest >= parameters:
            return []
        edits: list[Edit] = [("scale", job.select(Category.TEMP, phases=["optimizer"]), 2 * largest, parameters)]
        return [Lever("single-tensor optimizer (foreach=False)", edits, "a slower optimizer step")]

    def _is_foreach(self) -> bool:
        job = self.job
        parameters = _fit_sharding.held_parameters(job)[0]
        temporaries, _, count = job.stream.sum(job.select(Category.TEMP, phases=["optimizer"]))
        return bool(parameters and count and temporaries >= parameters and job.whole_steps)

    # ---- checkpoints ----

    def checkpoint(self, siblings: Siblings, count: int) -> Lever:
        calls = siblings.first(count)
        time = self.job.share_of_step(calls)
        cost = percent(time, self.job.has_gpu_times)
        modules = tuple(name for name, _ in siblings.members[:count])
        return Lever(
            f"checkpoint {siblings.describe(count)}",
            checkpoint(calls),
            cost,
            time=time or 0.0,
            modules=modules,
            can_be_verified=True,
        )

    def fewest(self, siblings: Siblings, *others: Lever, capacity: int | None = None) -> Tried | None:
        """The fewest first members of the group whose checkpoints make it fit, with other levers; None: not even all do.
        More checkpoints need less memory, but for what the allocator cannot use: what is found is tried. ``capacity``: to
        search for another one than the GPU's."""
        most = len(siblings.members)

        def attempt(count: int) -> Tried:
            lever = combine(*others, self.checkpoint(siblings, count))
            tried = Tried(
                lever, self.job.replay(lever.edits, lever.conf, self.capacity if capacity is None else capacity)
            )
            return tried._replace(again=lambda lower: self.fewest(siblings, *others, capacity=lower))

        best = attempt(most)
        if not best.outcome.fits_at_once:
            return None
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            tried = attempt(middle)
            if tried.outcome.fits_at_once:
                high, best = middle, tried
            else:
                low = middle
        return best

    # ---- the host's memory ----

    def _copying(self, bytes: int) -> tuple[float, str]:
        """The time of copying so many bytes from the GPU to pinned memory and back in each step, while nothing else runs."""
        link = OF_LINK * (self.gpu.speed.link * 1e9 if self.gpu.speed else _LINK)
        step = self.job.median_step()
        if not step:
            return 0.0, f"{size(2 * bytes)} copied in each step"
        return 2 * bytes / link / step, percent(2 * bytes / link / step, False)

    def on_cpu(self) -> list[Lever]:
        job = self.job
        if not job.caching or not job.whole_steps:
            return []
        parameters = _fit_sharding.held_parameters(job)[0]
        whole = parameters * self._copy if self.is_sharded else parameters
        return [*self._saved_on_cpu(whole), *self._state_on_cpu(parameters)]

    def _saved_on_cpu(self, parameters: int) -> list[Lever]:
        """Autograd saves weights too, and they are copied as everything is."""
        job = self.job
        host = job.capture.devices.index("cpu") if "cpu" in job.capture.devices else len(job.capture.devices)
        saved = max((call.kept for call in job.calls if call.parent is None), default=0)
        if not saved:
            return []
        time, cost = self._copying(saved + parameters)
        return [
            Lever("activations to the CPU (save_on_cpu, pinned)", [("save_on_cpu", job.number, host)], cost, time=time)
        ]

    def _state_on_cpu(self, parameters: int) -> list[Lever]:
        """The optimizer steps on the CPU: gradients go there, and parameters come back."""
        job = self.job
        if not job.stream.sum(job.select(Category.OPT))[2]:
            return []
        time, cost = self._copying(parameters)
        temporaries = job.select(Category.TEMP, phases=["optimizer"])
        removed: list[Edit] = [("remove", job.select(Category.OPT)), ("remove", temporaries)]
        return [Lever("optimizer and its state on the CPU", removed, f"{cost} and the CPU's step", time=time)]

    # ---- more GPUs ----

    def rank_counts(self) -> tuple[int, ...]:
        """The numbers of GPUs over which the job could be sharded. One that runs on several already keeps them."""
        world = world_of(self.job.capture)
        if not self.job.caching:
            return ()
        if self.is_sharded:
            more = (self.ranks,) if self.ranks else tuple(world * more for more in _RANKS)
            return tuple(count for count in more if count > self._copy) if world > 1 else ()
        if self.ranks > 1:
            return (self.ranks,)
        return (world,) if world > 1 else _RANKS

    @functools.cached_property
    def is_sharded(self) -> bool:
        """Whether it is a rank of FSDP2."""
        return _fit_sharding.uses_fsdp2(self.job)

    @functools.cached_property
    def _copy(self) -> int:
        """How many ranks hold one copy of the model."""
        world = world_of(self.job.capture)
        return _fit_resharding.ranks_of_a_copy(self.job.capture, world) or world

    def sharded(self, ranks: int, mixed: bool = False) -> Lever | None:
        """``ranks``: one of rank_counts. ``mixed``: with a MixedPrecisionPolicy, which is a lever of jobs with autocast."""
        world = world_of(self.job.capture)
        if self.is_sharded:
            if mixed:
                return None
            edits = _fit_resharding.over(self.job, self._copy, ranks)
            change = ShardingChange(ranks)
            more = max(ranks - world, 0)
            cost = f"{more} more GPUs" if more else "gathers among all GPUs"
            return (
                Lever(
                    over_gpus(ranks), edits, cost, more=more, is_approximate=True, can_be_verified=True, sharding=change
                )
                if edits
                else None
            )
        edits = _fit_sharding.edits(self.job, ranks, mixed)
        if not edits:
            return None
        if world == ranks:
            return Lever(over_gpus(ranks, mixed, "the "), edits, "gathers in every step", is_approximate=True)
        if world > 1:
            more = max(ranks - world, 0)
            return Lever(
                over_gpus(ranks, mixed),
                edits,
                f"{more} more GPUs, gathers in every step",
                more=more,
                is_approximate=True,
            )
        cost = "a second GPU" if ranks == 2 else f"{ranks - 1} more GPUs"
        return Lever(over_gpus(ranks, mixed), edits, cost, more=ranks - 1, is_approximate=True)
