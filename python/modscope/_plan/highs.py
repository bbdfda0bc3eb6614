"""The cheapest choice by the sums of savings, found by HiGHS, an integer solver (package highspy, in
modscope[plan])."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

from modscope._plan.problem import Choice, Row

_NODES = 300
"""A limit on the search rather than a limit of time, so that the same problem always gives the same plan."""
_UNIT = float(1 << 20)  # bytes are given to the solver in MiB, so that its tolerances suit them
_LEAST = 1e-7  # a cost, so that candidates that take no time are not chosen without need


class Solution(NamedTuple):
    choice: Choice
    cost: float
    bound: float
    """No choice that satisfies the rows and chains costs less."""


def is_available() -> bool:
    return importlib.util.find_spec("highspy") is not None and importlib.util.find_spec("numpy") is not None


def solve(costs: Sequence[float], rows: Sequence[Row], chains: Sequence[Sequence[int]], target: int) -> Solution | None:
    """The cheapest choice whose savings bring every row to the target, with one of each chain at most. None: none was
    found."""
    import highspy

    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_rel_gap", 1e-3),
        ("mip_max_nodes", _NODES),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(_model(highspy, costs, rows, chains, target))
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != 2:  # kSolutionStatusFeasible
        return None
    values = solver.getSolution().col_value
    choice = frozenset(i for i, value in enumerate(values) if value > 0.5)
    cost = sum(costs[i] for i in sorted(choice))
    return Solution(choice, cost, min(max(float(info.mip_dual_bound) / _scale(costs), 0.0), cost))


def _scale(costs: Sequence[float]) -> float:
    """The factor that makes the largest cost 1, so that the solver's tolerances suit the costs."""
    return 1.0 / max(max(costs), 1e-12)


def _model(
    highspy: Any, costs: Sequence[float], rows: Sequence[Row], chains: Sequence[Sequence[int]], target: int
) -> Any:
    import numpy

    infinity = highspy.kHighsInf
    starts, indices, values, lower, upper = [0], [], [], [], []
    for row in rows:
        needed = row.needed - target
        if needed + sum(-saved for saved in row.saved if saved < 0) <= 0:
            continue  # every choice satisfies it
        used = [i for i, saved in enumerate(row.saved) if saved]
        indices += used
        values += [row.saved[i] / _UNIT for i in used]
        lower.append(needed / _UNIT)
        upper.append(infinity)
        starts.append(len(indices))
    for chain in chains:
        indices += chain
        values += [1.0] * len(chain)
        lower.append(-infinity)
        upper.append(1.0)
        starts.append(len(indices))
    count = len(costs)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = count, len(lower)
    scale = _scale(costs)
    model.col_cost_ = numpy.array([max(cost * scale, _LEAST) for cost in costs])
    model.col_lower_, model.col_upper_ = numpy.zeros(count), numpy.ones(count)
    model.row_lower_, model.row_upper_ = numpy.array(lower, float), numpy.array(upper, float)
    model.integrality_ = [highspy.HighsVarType.kInteger] * count
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = numpy.array(starts, numpy.int32)
    model.a_matrix_.index_ = numpy.array(indices, numpy.int32)
    model.a_matrix_.value_ = numpy.array(values, float)
    return model
