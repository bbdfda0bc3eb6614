"""Levers that change no code of the model: settings of the allocator, and the batch. Needs no torch."""

from __future__ import annotations

from modscope._fit.levers.registry import Case, Cost, Lever, Tried, lever

_SETTINGS = ("expandable_segments:True", "max_split_size_mb:512")


@lever("allocator", is_free=True)
def allocator(case: Case) -> list[Lever]:
    """Settings of PYTORCH_CUDA_ALLOC_CONF that the run did not have."""
    conf = case.job.conf
    if not case.job.caching or "expandable_segments:true" in conf.lower():
        return []
    new = [setting for setting in _SETTINGS if setting.partition(":")[0] not in conf]
    return [Lever(("allocator",), setting, [], conf=setting, can_be_verified=True) for setting in new]


@lever("batch")
def batch(case: Case) -> list[Tried]:
    """Reduce the batch to the largest one that fits."""
    batches = case.batches
    largest = batches.largest(case.capacity) if batches else None
    if batches is None or largest is None or largest >= batches.large_size:
        return []
    costs = (Cost(f"{batches.large_size / largest:.3g} times the steps"),)
    return [case.attempt(Lever(("batch",), batches.describe(largest), batches.edits(largest), costs))]
