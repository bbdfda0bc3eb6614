"""sac_milp, the policy of a module, and the figures that they decide from."""

import itertools
import random
import re
import sys

import modscope
import pytest
from estimated_models import Container, Frozen, Net, Twice, all_of
from modscope import (
    SACStats,
    aggregate_stats,
    get_optimal_checkpointing_policy_per_module,
    get_peak_memory_runtime_baseline,
    parse_module_info,
    sac_milp,
)
from modscope._plan import highs
from modscope._trackers import ilp_utils

import torch

needs_highs = pytest.mark.skipif(not highs.is_available(), reason="highspy is not installed")
GIB = 1 << 30
CPU = torch.device("cpu")


def graph_of(build):
    return parse_module_info(aggregate_stats(*all_of(build), CPU))


# ---- the figures ----


def test_figures_are_those_of_torch_where_torch_works(monkeypatch):
    """torch's own aggregate_stats reads the figures of modscope's tracker and estimators."""
    theirs = pytest.importorskip("torch.distributed._tools.ilp_utils")
    tools = all_of(Net)
    found, expected = aggregate_stats(*tools, CPU), theirs.aggregate_stats(*tools, CPU)
    assert found["mod_order"] == expected["mod_order"]
    order = [stats["fqn"] for stats in found["mod_stats"]]
    assert order == found["mod_order"]["fw_pre_order"]
    by_name = {stats["fqn"]: stats for stats in expected["mod_stats"]}
    for stats in found["mod_stats"]:
        assert stats == by_name[stats["fqn"]]
    ours, torch_graph = parse_module_info(found), theirs.parse_module_info(expected)
    assert get_peak_memory_runtime_baseline(ours) == theirs.get_peak_memory_runtime_baseline(torch_graph)
    assert [list(row) for row in ours.ad_matrix] == torch_graph.ad_matrix.tolist()


def test_a_module_called_twice_is_one_node_with_the_figures_of_both_calls():
    once, twice = graph_of(lambda: Net(1)), graph_of(Twice)
    assert [node["fqn"] for node in twice.nodes].count("Twice.block") == 1
    one, both = once.name2node["Net.blocks.0"], twice.name2node["Twice.block"]
    assert both["act_fw_per_module"] == 2 * one["act_fw_per_module"] > 0
    assert both["sac_memory"] == 2 * one["sac_memory"] and both["param_per_module"] == one["param_per_module"]
    assert twice.fw_post_order[3] == "Twice.block" and twice.fw_post_order[-2:] == ["Twice.head", "Twice"]


def test_frozen_modules_have_no_gradients_and_no_backward():
    graph = graph_of(Frozen)
    first, second = (graph.name2node[f"Frozen.blocks.{i}"] for i in (0, 1))
    assert (first["grad_per_module"], first["grad_total"], first["act_grad_per_module"]) == (0, 0, 0)
    assert first["bw_runtime_per_module"] == 0.0 < second["bw_runtime_per_module"]
    assert first["act_fw_per_module"] == 0 < second["act_fw_per_module"]
    root = graph.nodes[0]
    assert 0 < root["grad_per_module"] < root["param_per_module"]
    peak, milliseconds = get_peak_memory_runtime_baseline(graph)
    assert peak > root["param_per_module"] and milliseconds > 0


def test_names_are_compared_by_their_parts():
    assert ilp_utils.is_submodule("Net.block.fc", "Net.block")
    assert not ilp_utils.is_submodule("Net.blocks.fc", "Net.block")
    assert not ilp_utils.is_submodule("Other.Net.block.fc", "Net.block")  # torch looks for the name anywhere in it
    assert ilp_utils.is_self_or_submodule("Net", "Net") and not ilp_utils.is_submodule("Net", "Net")
    texts = [ilp_utils.display_bytes(1 << 20, unit) for unit in ("KiB", "MiB", "GiB", "B")]
    assert texts == ["1024.00 KiB", "1.00 MiB", "0.00 GiB", "1048576.00 bytes"]


def test_tools_of_different_models_are_refused():
    model, memory, times, operators = all_of(Net)
    _, _, other, _ = all_of(Container)
    with pytest.raises(ValueError, match="did not see the same modules.*first difference: "):
        aggregate_stats(model, memory, other, operators, CPU)
    with pytest.raises(ValueError, match="did not see the same modules"):
        aggregate_stats(torch.nn.Linear(1, 1), memory, times, operators, CPU)
    info = aggregate_stats(model, memory, times, operators, CPU)
    info["mod_order"]["fw_post_order"].remove("Net.head")
    info["mod_order"]["fw_pre_order"].remove("Net.head")
    with pytest.raises(ValueError, match=r"when the forward of Net\.head begins"):
        parse_module_info(info)


# ---- which modules ----


def needed(graph, decisions, world_size=1):
    """The peak in bytes with the decisions, by the definition of the problem."""
    peak = 0.0
    for node in graph.nodes:
        saved = 0.0
        for name, fraction in decisions.items():
            each = graph.name2node[name]
            if each["pos_fw_post_order"] < node["pos_fw_post_order"]:
                saved += each["sac_memory"] * fraction - (each["sac_memory"] - each["act_fw_per_module"])
        held = (graph.nodes[0]["param_per_module"] + node["grad_total"]) / world_size
        peak = max(peak, node["act_total"] + node["act_grad_per_module"] + held - saved)
    return peak


def cost(graph, decisions):
    total = 0.0
    for name, fraction in decisions.items():
        node = graph.name2node[name]
        lines = zip(node["slopes"], node["intercepts"])
        total += node["sac_runtime"] * max([0.0, *(slope * fraction + intercept for slope, intercept in lines)])
    return total


@needs_highs
@pytest.mark.parametrize("build", [Net, Frozen, Twice, Container])
def test_choices_are_within_the_budget_and_no_others_are_cheaper(build):
    graph = graph_of(build)
    peak, _ = get_peak_memory_runtime_baseline(graph)
    assert sac_milp(graph, peak / GIB) == ({}, 0, peak)
    budget = 0.85 * peak
    decisions, milliseconds, found = sac_milp(graph, budget / GIB)
    assert decisions and found <= budget + 2048  # a solver's tolerance
    assert needed(graph, decisions) == pytest.approx(found, abs=2048)
    assert milliseconds == pytest.approx(cost(graph, decisions), abs=0.006)
    names = [node["fqn"] for node in graph.nodes if not node["is_leaf"] and node["sac_memory"]]
    for count in (1, 2):
        for chosen in itertools.combinations(names, count):
            if count == 2 and any(ilp_utils.is_submodule(*pair) for pair in itertools.permutations(chosen)):
                continue
            for fractions in itertools.product([i / 20 for i in range(21)], repeat=count):
                other = dict(zip(chosen, fractions))
                if needed(graph, other) <= budget:
                    assert cost(graph, other) >= cost(graph, decisions) - 1e-3 * cost(graph, decisions) - 1e-6
    assert sac_milp(graph, budget / GIB) == (decisions, milliseconds, found)


@needs_highs
def test_units_and_ranks():
    graph = graph_of(Net)
    peak, _ = get_peak_memory_runtime_baseline(graph)
    budget = 0.9 * peak / GIB
    only, _, _ = sac_milp(graph, budget, ac_units=["Net.blocks.1", "Net.blocks.0"])
    assert set(only) <= {"Net.blocks.0", "Net.blocks.1"} and only
    inside, _, _ = sac_milp(graph, budget, fsdp_units=["Net.blocks.0.up"])
    assert not {"Net", "Net.blocks.0"} & set(inside)
    assert sac_milp(graph, peak / GIB, world_size=64)[2] < peak == sac_milp(graph, peak / GIB)[2]


def test_a_budget_that_nothing_reaches_and_bad_input(caplog):
    graph = graph_of(Container)
    assert sac_milp(graph, 1e-6) == ({}, 0, -1)
    assert "No choice of modules needs less than 1e-06 GiB" in caplog.text
    with pytest.raises(ValueError, match=r"fsdp_units has 'Net\.x', and the graph has no such module"):
        sac_milp(graph, 1.0, fsdp_units=["Net.x"])
    with pytest.raises(ValueError, match="world_size must be 1 or more"):
        sac_milp(graph, 1.0, world_size=0)


# ---- which operators ----


def stats_of(runtimes, memory, views=(), random_ops=(), in_place=(), force=False):
    names = [f"op{i}" for i in range(len(memory))]
    return SACStats(names, runtimes, memory, list(views), list(random_ops), [], list(in_place), force)


def best(stats, fraction):
    """Every choice is tried: the most milliseconds that can be saved."""
    most, budget = -1.0, -(-fraction * sum(stats.memory) // 1)
    for choice in itertools.product((0, 1), repeat=len(stats.memory)):
        fine = all(not choice[i] for i in stats.view_like_ops)
        fine &= all(choice[i] if i == head else choice[i] == choice[head] for i, head in stats.inplace_ops)
        drawn = {choice[i] for i in stats.rand_ops}
        fine &= drawn <= {1} if stats.force_store_random else len(drawn) < 2
        if fine and sum(m for m, c in zip(stats.memory, choice) if c) <= budget:
            most = max(most, sum(r for r, c in zip(stats.runtimes, choice) if c))
    return most


@needs_highs
def test_the_policy_of_a_module_is_the_best_of_all():
    numbers = random.Random(7)
    for i in range(12):
        memory = [numbers.choice((0, 512, 1024, 4096, 1 << 20)) for _ in range(9)]
        runtimes = [numbers.random() for _ in memory]
        stats = stats_of(runtimes, memory, views=[2], random_ops=[4, 6], in_place=[(5, 3), (8, 8)], force=i % 3 == 0)
        fraction = numbers.random()
        policy = get_optimal_checkpointing_policy_per_module(stats, fraction)
        expected = best(stats, fraction)
        if expected < 0:
            assert policy == []
            continue
        assert policy[2] == 0 and policy[8] == 1 and policy[5] == policy[3] and policy[4] == policy[6]
        assert sum(r for r, kept in zip(runtimes, policy) if kept) == pytest.approx(expected)
    assert get_optimal_checkpointing_policy_per_module(stats_of([], []), 0.5) == []
    for fraction in (-0.1, 1.1):
        with pytest.raises(ValueError, match="must be a float between 0 and 1"):
            get_optimal_checkpointing_policy_per_module(stats_of([1.0], [1]), fraction)


def test_without_the_solver_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(highs, "is_available", lambda: False)
    with pytest.raises(ImportError, match=re.escape("pip install modscope[plan]")):
        get_optimal_checkpointing_policy_per_module(stats_of([1.0], [1]), 0.5)
    graph = graph_of(Net)
    peak, _ = get_peak_memory_runtime_baseline(graph)
    with pytest.raises(ImportError, match="HiGHS is not installed"):
        sac_milp(graph, 0.9 * peak / GIB)


# ---- by torch's names ----


def test_drop_in_replaces_every_tool_and_restores_it():
    """torch's sac_ilp cannot be imported without pulp."""
    import torch.distributed._tools as tools
    from torch.distributed._tools import ilp_utils as theirs

    name = "torch.distributed._tools.sac_ilp"
    before = tools.MemTracker, tools.SACEstimator, theirs.aggregate_stats, sys.modules.get(name)
    with modscope.drop_in():
        from torch.distributed._tools import MemTracker, RuntimeEstimator, SACEstimator, SACStats
        from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
        from torch.distributed._tools.mem_tracker import MemTracker as inner
        from torch.distributed._tools.sac_estimator import SACTradeOffStats
        from torch.distributed._tools.sac_ilp import SACDecision, sac_milp

        found = MemTracker, RuntimeEstimator, SACEstimator, SACStats, SACTradeOffStats, aggregate_stats
        found += inner, parse_module_info, SACDecision, sac_milp
        assert [each.__module__.partition(".")[0] for each in found] == ["modscope"] * len(found)
        with modscope.drop_in():
            pass
        assert sys.modules[name].sac_milp is modscope.sac_milp
    after = tools.MemTracker, tools.SACEstimator, theirs.aggregate_stats, sys.modules.get(name)
    assert after == before and tools.MemTracker is not MemTracker


def test_all_names_are_exported():
    names = {"RuntimeEstimator", "SACEstimator", "sac_milp", "aggregate_stats", "parse_module_info", "SACDecision"}
    assert names <= set(modscope.__all__) and all(getattr(modscope, name) for name in names)
