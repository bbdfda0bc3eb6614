"""Levers of the training loop: how gradients are cleared, and which implementation of the optimizer runs. Needs no
torch."""

from __future__ import annotations

from modscope._fit.job import Edit
from modscope._fit.levers.registry import Case, Cost, Lever, lever

FUSED = "fused_optimizer"


@lever("zero_grad", is_free=True)
def zero_grad(case: Case) -> list[Lever]:
    """Gradients that are freed after each step."""
    edits: list[Edit] = [("zero_grad",)]
    return [Lever(("zero_grad",), "zero_grad(set_to_none=True)", edits)] if case.job.whole_steps > 1 else []


@lever(FUSED, is_free=True)
def fused(case: Case) -> list[Lever]:
    """A foreach optimizer has temporaries as large as all parameters, a fused one has none."""
    edits: list[Edit] = [("remove", case.optimizer_temporaries())]
    return [Lever((FUSED,), "fused optimizer instead of foreach", edits)] if _is_foreach(case) else []


@lever("single_tensor_optimizer")
def single_tensor(case: Case) -> list[Lever]:
    """An optimizer that loops over the parameters has temporaries of one at a time. Of Adam's there are two, of the
    parameter's size."""
    parameters, largest, _ = case.parameters
    if not _is_foreach(case) or 2 * largest >= parameters:
        return []
    edits: list[Edit] = [("scale", case.optimizer_temporaries(), 2 * largest, parameters)]
    costs = (Cost("a slower optimizer step"),)
    return [Lever(("single_tensor_optimizer",), "single-tensor optimizer (foreach=False)", edits, costs)]


def _is_foreach(case: Case) -> bool:
    parameters = case.parameters[0]
    temporaries, _, count = case.job.stream.sum(case.optimizer_temporaries())
    return bool(parameters and count and temporaries >= parameters and case.job.whole_steps)
