"""Levers that use the host's memory: what autograd saves, and the optimizer with its state. Needs no torch."""

from __future__ import annotations

from modscope._fit.job import Edit
from modscope._fit.levers.registry import Case, Cost, Lever, lever, longer_step
from modscope._read.categories import Category
from modscope._read.text import size

STATE = "optimizer_on_cpu"
_LINK = 16e9  # bytes a second to a host over PCIe 3, where the GPU's link is not known
OF_LINK = 0.8
"""The fraction of the link's rate that copies from and to pinned memory reach, as the virtual clock has it."""


@lever("save_on_cpu")
def saved_tensors(case: Case) -> list[Lever]:
    """What autograd saves is copied to the host and back. It saves weights too, and they are copied as everything
    is."""
    job = case.job
    if not job.caching or not job.whole_steps:
        return []
    parameters = case.parameters[0] * (case.ranks_of_a_copy if case.is_sharded else 1)
    host = job.capture.devices.index("cpu") if "cpu" in job.capture.devices else len(job.capture.devices)
    saved = max((call.kept for call in job.calls if call.parent is None), default=0)
    if not saved:
        return []
    edits: list[Edit] = [("save_on_cpu", job.number, host)]
    costs = (_copying(case, saved + parameters),)
    return [Lever(("save_on_cpu",), "activations to the CPU (save_on_cpu, pinned)", edits, costs)]


@lever(STATE)
def optimizer_state(case: Case) -> list[Lever]:
    """The optimizer steps on the CPU: gradients go there, and parameters come back."""
    job = case.job
    if not job.caching or not job.whole_steps or not job.stream.sum(job.select(Category.OPT))[2]:
        return []
    cost = _copying(case, case.parameters[0])
    edits: list[Edit] = [("remove", job.select(Category.OPT)), ("remove", case.optimizer_temporaries())]
    costs = (cost._replace(text=f"{cost.text} and the CPU's step"),)
    return [Lever((STATE,), "optimizer and its state on the CPU", edits, costs)]


def _copying(case: Case, bytes: int) -> Cost:
    """The cost of copying so many bytes from the GPU to pinned memory and back in each step, while nothing else
    runs."""
    link = OF_LINK * (case.gpu.speed.link * 1e9 if case.gpu.speed else _LINK)
    step = case.job.step_time.total
    return longer_step(2 * bytes / link / step, False) if step else Cost(f"{size(2 * bytes)} copied in each step")
