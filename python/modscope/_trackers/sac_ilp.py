"""Which modules to checkpoint selectively, and which operators of a module: integer problems, solved by HiGHS."""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Sequence

from modscope._plan import highs
from modscope._plan.highs import Constraint, Variable
from modscope._trackers.ilp_utils import Graph, Node, is_submodule
from modscope._trackers.sac_estimator import SACStats

__all__ = ["SACDecision", "get_optimal_checkpointing_policy_per_module", "sac_milp"]

logger = logging.getLogger(__name__)
_GIB = float(1 << 30)
_GAP = 1e-4
_NODES = 20_000  # a limit on the search rather than a limit of time, so that equal problems have equal solutions


class SACDecision(enum.IntEnum):
    RECOMPUTE = 0
    SAVE = 1


# ---- which modules ----


class _Candidate:
    """A module that may be checkpointed. Its variables are whether it is (y), which fraction of its results it then
    gives back (r), and the milliseconds of its recomputation."""

    def __init__(self, node: Node, first_variable: int) -> None:
        self.node = node
        self.y, self.r, self.milliseconds = range(first_variable, first_variable + 3)
        self.kept = node["act_fw_per_module"] / _GIB
        # All results of its operators: what it keeps without a checkpoint is among them.
        self.all = max(node["sac_memory"], node["act_fw_per_module"]) / _GIB

    def variables(self) -> list[Variable]:
        return [Variable(is_integer=True), Variable(), Variable(cost=1.0, upper=math.inf)]

    def saved(self) -> dict[int, float]:
        """The GiB that it saves, by variable: what it gives back, without what it would not have kept anyway."""
        return {self.r: self.all, self.y: self.kept - self.all}

    def constraints(self) -> list[Constraint]:
        node = self.node
        needed = (self.all - self.kept) / self.all
        rows = [
            Constraint({self.y: 1.0, self.r: -1.0}, lower=0.0),
            Constraint({self.r: 1.0, self.y: -needed}, lower=0.0),
        ]
        for slope, intercept in zip(node["slopes"], node["intercepts"]):
            time = node["sac_runtime"]
            rows.append(
                Constraint({self.milliseconds: 1.0, self.r: -time * slope, self.y: -time * intercept}, lower=0.0)
            )
        return rows


def _check_units(graph: Graph, what: str, units: Sequence[str] | None) -> None:
    unknown = [unit for unit in units or () if unit not in graph.name2node]
    if unknown:
        raise ValueError(f"{what} has {unknown[0]!r}, and the graph has no such module: see graph.name2node")


def _candidates(graph: Graph, ac_units: Sequence[str] | None, fsdp_units: Sequence[str] | None) -> list[_Candidate]:
    _check_units(graph, "ac_units", ac_units)
    _check_units(graph, "fsdp_units", fsdp_units)
    found: list[_Candidate] = []
    for node in graph.nodes:
        is_asked = not ac_units or node["fqn"] in ac_units
        is_around_unit = any(is_submodule(unit, node["fqn"]) for unit in fsdp_units or ())
        has_results = not node["is_leaf"] and max(node["sac_memory"], node["act_fw_per_module"]) > 0
        if is_asked and has_results and not is_around_unit:
            found.append(_Candidate(node, 3 * len(found)))
    return found


def _chains(graph: Graph, candidates: list[_Candidate]) -> list[Constraint]:
    """Of an innermost candidate and those around it, one at most is checkpointed."""
    rows = []
    for inner in candidates:
        i = inner.node["index"]
        others = [each for each in candidates if each is not inner]
        around = [each for each in others if graph.ad_matrix[each.node["index"]][i] == 1]
        is_innermost = not any(graph.ad_matrix[i][each.node["index"]] == 1 for each in others)
        if around and is_innermost:
            rows.append(Constraint(dict.fromkeys([inner.y, *(each.y for each in around)], 1.0), upper=1.0))
    return rows


class _Memory:
    """What is needed while the backward of each module runs. What was saved in forward up to a module is a variable for
    each candidate, in the order in which forwards end: the sum of those before it."""

    def __init__(self, graph: Graph, candidates: list[_Candidate], world_size: int) -> None:
        self._graph = graph
        self._world_size = world_size
        first = 3 * len(candidates)
        self.ordered = sorted(candidates, key=lambda each: each.node["pos_fw_post_order"])
        self.variables = [Variable(upper=math.inf) for _ in candidates]
        self.sums: list[Constraint] = []
        for i, each in enumerate(self.ordered):
            sum_of = {first + i: 1.0, **{variable: -factor for variable, factor in each.saved().items()}}
            if i:
                sum_of[first + i - 1] = -1.0
            self.sums.append(Constraint(sum_of, lower=0.0, upper=0.0))
        self._first = first

    def _saved_before(self, node: Node) -> int | None:
        """The variable of what is saved in the forwards that end before that of a module; None: nothing."""
        count = sum(each.node["pos_fw_post_order"] < node["pos_fw_post_order"] for each in self.ordered)
        return self._first + count - 1 if count else None

    def needed(self, node: Node) -> float:
        """GiB, without checkpoints."""
        held = self._graph.nodes[0]["param_per_module"] + node["grad_total"]
        return (node["act_total"] + node["act_grad_per_module"] + held / self._world_size) / _GIB

    def within(self, budget: float) -> list[Constraint] | None:
        """None: no choice needs less."""
        rows = []
        for node in self._graph.nodes:
            over = self.needed(node) - budget
            saved = self._saved_before(node)
            if over > 0 and saved is None:
                return None
            if over > 0 and saved is not None:
                rows.append(Constraint({saved: 1.0}, lower=over))
        return rows

    def peak(self, values: Sequence[float]) -> int:
        def at(node: Node) -> float:
            saved = self._saved_before(node)
            return self.needed(node) - (values[saved] if saved is not None else 0.0)

        return round(max(map(at, self._graph.nodes), default=0.0) * _GIB)


def sac_milp(
    graph: Graph,
    memory_budget: float,
    world_size: int = 1,
    ac_units: list[str] | None = None,
    fsdp_units: list[str] | None = None,
) -> tuple[dict[str, float], float, int]:
    """The modules to checkpoint, with the fraction of the bytes of their results that each gives back; the
    milliseconds of recomputation; and the peak in bytes. ({}, 0, -1) if there is no choice within ``memory_budget``,
    which is in GiB.

    Parameters and gradients are spread over ``world_size`` ranks. Only modules of ``ac_units`` are checkpointed, if
    they are given, and none around a module of ``fsdp_units``. Needs the solver HiGHS: ``pip install modscope[plan]``.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be 1 or more, not {world_size}")
    candidates = _candidates(graph, ac_units, fsdp_units)
    memory = _Memory(graph, candidates, world_size)
    rows = memory.within(memory_budget)
    if rows is None:
        logger.error("No choice of modules needs less than %s GiB", memory_budget)
        return {}, 0, -1
    if not rows:  # nothing has to be saved
        return {}, 0.0, memory.peak([0.0] * (4 * len(candidates)))
    highs.check_installed()
    variables = [variable for each in candidates for variable in each.variables()] + memory.variables
    rows += memory.sums + _chains(graph, candidates)
    rows += [row for each in candidates for row in each.constraints()]
    found = highs.minimize(variables, rows, _GAP, _NODES)
    if found is None:
        logger.error("No choice of modules needs less than %s GiB", memory_budget)
        return {}, 0, -1
    chosen = [each for each in candidates if found.values[each.y] > 0.5]
    milliseconds = sum(found.values[each.milliseconds] for each in chosen)
    decisions = {each.node["fqn"]: round(found.values[each.r], 4) for each in chosen}
    return decisions, round(milliseconds, 2), memory.peak(found.values)


# ---- which operators of a module ----


def get_optimal_checkpointing_policy_per_module(sac_stats: SACStats, memory_budget: float) -> list[int]:
    """For each operator of a module, whether its result is saved (1) or recomputed (0), so that recomputing takes least
    time and at most the fraction ``memory_budget`` of the bytes is saved. Empty if there is no such choice.

    Views are recomputed. What changes a result in place is saved or recomputed with the operator that made it, and
    saved if none in the module did. Operators that draw random numbers are all saved, or all recomputed.
    Needs the solver HiGHS: ``pip install modscope[plan]``.
    """
    if not 0 <= memory_budget <= 1:
        raise ValueError(f"`memory_budget` must be a float between 0 and 1. Got {memory_budget}.")
    highs.check_installed()
    stats = sac_stats
    fixed: dict[int, int] = dict.fromkeys(stats.view_like_ops, SACDecision.RECOMPUTE)
    equal = [pair for pair in stats.inplace_ops if pair[0] != pair[1]]
    fixed.update({op: SACDecision.SAVE for op, head in stats.inplace_ops if op == head})
    if stats.force_store_random:
        fixed.update(dict.fromkeys(stats.rand_ops, SACDecision.SAVE))
    else:
        equal += zip(stats.rand_ops, stats.rand_ops[1:])
    scale = 1.0 / max(max(stats.runtimes, default=0.0), 1e-12)
    variables = [
        Variable(-runtime * scale, fixed.get(i, 0), fixed.get(i, 1), is_integer=True)
        for i, runtime in enumerate(stats.runtimes)
    ]
    most = math.ceil(memory_budget * sum(stats.memory))
    unit = max(max(stats.memory, default=0), 1)
    rows = [Constraint({a: 1.0, b: -1.0}, lower=0.0, upper=0.0) for a, b in equal]
    rows.append(Constraint({i: memory / unit for i, memory in enumerate(stats.memory) if memory}, upper=most / unit))
    found = highs.minimize(variables, rows, gap=0.0, nodes=_NODES) if variables else None
    if found is None and variables:
        logger.error("No choice of operators keeps %s bytes or less", most)
    return [round(value) for value in found.values] if found else []
