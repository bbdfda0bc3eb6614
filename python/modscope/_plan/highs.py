"""The cheapest choice by the sums of savings, and other linear problems with integers, solved by HiGHS (highspy,
in modscope[plan])."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
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


class Constraint(NamedTuple):
    """A row of a linear problem: lower <= the sum of coefficients times variables <= upper."""

    coefficients: Mapping[int, float]
    lower: float = -math.inf
    upper: float = math.inf


class Variable(NamedTuple):
    cost: float = 0.0
    lower: float = 0.0
    upper: float = 1.0
    is_integer: bool = False


class Minimum(NamedTuple):
    values: list[float]
    bound: float
    """No solution costs less."""


def check_installed() -> None:
    """ImportError where problems cannot be solved."""
    if not is_available():
        raise ImportError("the solver HiGHS is not installed: pip install modscope[plan]")


def minimize(
    variables: Sequence[Variable], constraints: Sequence[Constraint], gap: float = 1e-3, nodes: int = _NODES
) -> Minimum | None:
    """The solution that costs least, within ``gap`` of that if ``nodes`` of the search suffice. None: none is found."""
    import highspy

    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_rel_gap", gap),
        ("mip_max_nodes", nodes),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(_model(highspy, variables, constraints))
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != 2:  # kSolutionStatusFeasible
        return None
    return Minimum(list(solver.getSolution().col_value), float(info.mip_dual_bound))


def _model(highspy: Any, variables: Sequence[Variable], constraints: Sequence[Constraint]) -> Any:
    import numpy

    starts: list[int] = [0]
    indices: list[int] = []
    values: list[float] = []
    for row in constraints:
        indices += row.coefficients.keys()
        values += row.coefficients.values()
        starts.append(len(indices))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(variables), len(constraints)
    model.col_cost_ = numpy.array([each.cost for each in variables], float)
    model.col_lower_ = numpy.array([each.lower for each in variables], float)
    model.col_upper_ = numpy.array([each.upper for each in variables], float)
    model.row_lower_ = numpy.array([row.lower for row in constraints], float)
    model.row_upper_ = numpy.array([row.upper for row in constraints], float)
    kinds = highspy.HighsVarType
    model.integrality_ = [kinds.kInteger if each.is_integer else kinds.kContinuous for each in variables]
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = numpy.array(starts, numpy.int32)
    model.a_matrix_.index_ = numpy.array(indices, numpy.int32)
    model.a_matrix_.value_ = numpy.array(values, float)
    return model


def solve(costs: Sequence[float], rows: Sequence[Row], chains: Sequence[Sequence[int]], target: int) -> Solution | None:
    """The cheapest choice whose savings bring every row to the target, with one of each chain at most. None: none was
    found."""
    scale = 1.0 / max(max(costs), 1e-12)  # the largest cost is 1, so that the solver's tolerances suit the costs
    constraints = []
    for row in rows:
        needed = row.needed - target
        if needed + sum(-saved for saved in row.saved if saved < 0) <= 0:
            continue  # every choice satisfies it
        saved = {i: saved / _UNIT for i, saved in enumerate(row.saved) if saved}
        constraints.append(Constraint(saved, lower=needed / _UNIT))
    constraints += [Constraint(dict.fromkeys(chain, 1.0), upper=1.0) for chain in chains]
    found = minimize([Variable(max(cost * scale, _LEAST), is_integer=True) for cost in costs], constraints)
    if found is None:
        return None
    choice = frozenset(i for i, value in enumerate(found.values) if value > 0.5)
    cost = sum(costs[i] for i in sorted(choice))
    return Solution(choice, cost, min(max(found.bound / scale, 0.0), cost))
