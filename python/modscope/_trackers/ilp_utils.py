"""What ``sac_milp`` decides from: a model's modules, with the memory and the time of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, cast

import torch
from modscope._read.categories import Category, State
from modscope._trackers.mem_tracker import MemTracker
from modscope._trackers.runtime_estimator import RuntimeEstimator
from modscope._trackers.sac_estimator import SACEstimator
from modscope._trackers.snapshots import ModuleStats

__all__ = [
    "Graph",
    "ModOrder",
    "ModRuntime",
    "ModStats",
    "ModuleInfo",
    "Node",
    "aggregate_stats",
    "display_bytes",
    "get_peak_memory_runtime_baseline",
    "is_self_or_submodule",
    "is_submodule",
    "parse_module_info",
]


class ModOrder(TypedDict):
    """Fqns in the order in which forwards and backwards began and ended."""

    fw_pre_order: list[str]
    bw_pre_order: list[str]
    fw_post_order: list[str]
    bw_post_order: list[str]


class ModRuntime(TypedDict):
    fw: float
    bw: float


class ModStats(TypedDict):
    """The figures of one module: bytes and milliseconds."""

    fqn: str
    param_per_module: int
    # of the parameters that require gradients
    grad_per_module: int
    # all gradients when its backward begins
    grad_total: int
    # what it keeps for backward, without what it returns
    act_fw_per_module: int
    # all activations at the peak of its backward
    act_bw_per_module: int
    # what its backward needs at its peak beside them
    act_grad_per_module: int
    # all activations when its forward has ended
    act_total: int
    input_per_module: int
    output_per_module: int
    fw_runtime_per_module: float
    bw_runtime_per_module: float
    # it has no submodules, and cannot be checkpointed selectively
    is_leaf: bool
    sac_runtime: float
    sac_memory: int
    n_segments: int
    slopes: list[float]
    intercepts: list[float]
    breakpoints: list[float]
    tradeoff_curve: OrderedDict[float, float]


class ModuleInfo(TypedDict):
    mod_order: ModOrder
    mod_stats: list[ModStats]


class Node(ModStats):
    index: int
    """In the order in which forwards began."""
    pos_fw_post_order: int
    """In the order in which forwards ended."""


class Graph:
    """The modules, in the order in which forwards began."""

    def __init__(self, n: int) -> None:
        self.nodes: list[Node] = []
        self.name2node: dict[str, Node] = {}
        self.ad_matrix: Any = [[0] * n for _ in range(n)]
        """Row and column are nodes; 1: the second one is the first one, or lies in it."""
        self.fw_post_order: list[str] = []

    def add_node(self, node: Node) -> None:
        self.nodes.append(node)
        self.name2node[node["fqn"]] = node


# ---- collecting ----


def _snapshots(stats: ModuleStats, state: State, device: torch.device) -> list[Mapping[str, int]]:
    """One for each call, in the latest call of the root module. Nothing was held where the device is not there."""
    return [taken.get(device, {}) for taken in stats.snapshots.get(state, [])]


def _latest(stats: ModuleStats, state: State, device: torch.device) -> Mapping[str, int]:
    taken = _snapshots(stats, state, device)
    return taken[-1] if taken else {}


def _kept(stats: ModuleStats, device: torch.device) -> int:
    """What all calls of the module keep for backward, without what they return."""
    before, after = _snapshots(stats, State.PRE_FW, device), _snapshots(stats, State.POST_FW, device)
    return sum(
        max(0, end.get(Category.ACT, 0) - begin.get(Category.ACT, 0) - stats.output_mem)
        for begin, end in zip(before, after)
    )


def _trainable_bytes(module: torch.nn.Module, stats: ModuleStats) -> int:
    """The bytes of its parameters that require gradients, by their share in all of its parameters."""
    parameters = list(module.parameters())
    if all(parameter.requires_grad for parameter in parameters):
        return stats.parameter_mem
    return sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)


def _mod_stats(
    module: torch.nn.Module,
    stats: ModuleStats,
    runtime: Mapping[str, float],
    sac_estimator: SACEstimator,
    device: torch.device,
) -> ModStats:
    # A module without trained parameters around it has no backward, and takes nothing in it.
    before, peak = _latest(stats, State.PRE_BW, device), _latest(stats, State.PEAK_BW, device)
    trade_off = sac_estimator.sac_mod_tradeoff_stats.get(stats.mod_fqn)
    return {
        "fqn": stats.mod_fqn,
        "param_per_module": stats.parameter_mem,
        "grad_per_module": _trainable_bytes(module, stats),
        "grad_total": before.get(Category.GRAD, 0),
        "act_fw_per_module": _kept(stats, device),
        "act_bw_per_module": peak.get(Category.ACT, 0),
        "act_grad_per_module": max(0, peak.get(Category.TEMP, 0) - before.get(Category.TEMP, 0)) if before else 0,
        "act_total": _latest(stats, State.POST_FW, device).get(Category.ACT, 0),
        "input_per_module": stats.input_mem,
        "output_per_module": stats.output_mem,
        "fw_runtime_per_module": runtime.get("fw", 0.0),
        "bw_runtime_per_module": runtime.get("bw", 0.0),
        "is_leaf": trade_off is None,
        "sac_runtime": trade_off.sac_runtime if trade_off else 0.0,
        "sac_memory": trade_off.sac_memory if trade_off else 0,
        "n_segments": trade_off.n_segments if trade_off else 0,
        "slopes": list(trade_off.slopes) if trade_off else [],
        "intercepts": list(trade_off.intercepts) if trade_off else [],
        "breakpoints": list(trade_off.fit_breaks) if trade_off else [],
        "tradeoff_curve": OrderedDict(trade_off.tradeoff_curve) if trade_off else OrderedDict(),
    }


def _first(names: Iterable[str], known: set[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name in known]


def _last(names: Iterable[str], known: set[str]) -> list[str]:
    return _first(reversed(list(names)), known)[::-1]


def aggregate_stats(
    model: torch.nn.Module,
    mem_tracker: MemTracker,
    runtime_estimator: RuntimeEstimator,
    sac_estimator: SACEstimator,
    dev: torch.device,
) -> ModuleInfo:
    """The figures of the modules of ``model`` that ran, from a tracker and two estimators under which it ran. ``dev``
    is the device whose memory counts. Each module is there once: one that is called several times begins with its first
    call, and ends with its last one. ValueError if the model did not run under all three."""
    sac_estimator.pwlf_sac_tradeoff_curve()
    runtimes, tracked = runtime_estimator.mod_runtimes, mem_tracker.memory_tracking
    orders = {name: getattr(runtime_estimator, f"mod_{name}") for name in ModOrder.__annotations__}
    ran = set(orders["fw_pre_order"])
    found = [(module, tracked[module]) for module in model.modules() if module in tracked]
    missing = sorted({stats.mod_fqn for _, stats in found} ^ (ran & _names_of(model, found, ran)))
    if not found or missing:
        which = f"; first difference: {missing[0]}" if missing else ""
        raise ValueError(
            "the MemTracker and the RuntimeEstimator did not see the same modules: run the model under each of them"
            + which
        )
    mod_stats = [
        _mod_stats(module, stats, runtimes[stats.mod_fqn], sac_estimator, torch.device(dev)) for module, stats in found
    ]
    known = {stats["fqn"] for stats in mod_stats}
    pick = {"fw_pre_order": _first, "bw_pre_order": _first, "fw_post_order": _last, "bw_post_order": _last}
    order = cast(ModOrder, {name: pick[name](orders[name], known) for name in pick})
    mod_stats.sort(key=lambda stats: order["fw_pre_order"].index(stats["fqn"]))
    return {"mod_order": order, "mod_stats": mod_stats}


def _names_of(model: torch.nn.Module, found: list[tuple[torch.nn.Module, ModuleStats]], ran: set[str]) -> set[str]:
    """Of the names that ran, those of the model: its own and what lies in it."""
    root = next((stats.mod_fqn for module, stats in found if module is model), None)
    inside = {stats.mod_fqn for _, stats in found}
    return {name for name in ran if name in inside or (root is not None and is_self_or_submodule(name, root))}


# ---- the graph ----


def parse_module_info(module_info: ModuleInfo) -> Graph:
    """The graph of the modules. A module that the orders do not have is a ValueError."""
    orders, mod_stats = module_info["mod_order"], module_info["mod_stats"]
    known = {stats["fqn"] for stats in mod_stats}
    begins, ends = _first(orders["fw_pre_order"], known), _last(orders["fw_post_order"], known)
    absent = sorted(known - (set(begins) & set(ends)))
    if absent:
        raise ValueError(f"mod_order does not say when the forward of {absent[0]} begins and ends")
    index, position = ({fqn: i for i, fqn in enumerate(order)} for order in (begins, ends))
    graph = Graph(len(mod_stats))
    graph.fw_post_order = ends
    for stats in sorted(mod_stats, key=lambda stats: index[stats["fqn"]]):
        fqn = stats["fqn"]
        graph.add_node(cast(Node, {**stats, "index": index[fqn], "pos_fw_post_order": position[fqn]}))
    for i, outer in enumerate(graph.nodes):
        for j, inner in enumerate(graph.nodes):
            graph.ad_matrix[i][j] = int(is_self_or_submodule(inner["fqn"], outer["fqn"]))
    return graph


def is_self_or_submodule(name_descendant: str, name_ancestor: str) -> bool:
    return name_descendant == name_ancestor or is_submodule(name_descendant, name_ancestor)


def is_submodule(name_descendant: str, name_ancestor: str) -> bool:
    return name_descendant.startswith(f"{name_ancestor}.")


def display_bytes(b: int, unit: str = "MiB") -> str:
    """ "1.50 MiB"; for another unit than KiB, MiB and GiB, the bytes."""
    power = ("KiB", "MiB", "GiB").index(unit) + 1 if unit in ("KiB", "MiB", "GiB") else 0
    return f"{b / 1024**power:.2f} {unit if power else 'bytes'}"


def get_peak_memory_runtime_baseline(graph: Graph) -> tuple[int, float]:
    """The most bytes of parameters, gradients and activations, and the milliseconds of forward and backward, without
    checkpoints. Optimizer state, buffers and what is outside modules do not count."""
    if not graph.nodes:
        return 0, 0.0
    root = graph.nodes[0]
    peak = max(node["grad_total"] + node["act_grad_per_module"] + node["act_total"] for node in graph.nodes)
    return root["param_per_module"] + peak, root["fw_runtime_per_module"] + root["bw_runtime_per_module"]
