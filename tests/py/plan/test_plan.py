"""modscope plan: budgets are kept, the choice is the best one, and what a run needs with the plan is what the plan
says."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import modscope
import pytest
from modscope._plan import highs
from modscope._plan.file import Plan
from modscope._plan.plan import make_plan
from modscope._plan.problem import Choice, Problem
from modscope._plan.search import EMPTY, Search
from modscope._read.types import calls_of
from plan_models import Block, Net, Twice

import torch
from torch import nn

BATCH = 512


class Adapted(nn.Module):
    """A frozen model with small trained parts, as LoRA has it."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block(32) for _ in range(3))
        self.requires_grad_(False)
        self.adapters = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block, adapter in zip(self.h, self.adapters):
            x = block(x) + adapter(x)
        return x


def train(
    path: pathlib.Path, models: list[nn.Module], width: int, micro: int = 1, steps: int = 3, optimize: bool = True
) -> int:
    """Record a training of models that run one after another. Returns the allocated peak."""
    torch.manual_seed(0)
    parameters = [parameter for model in models for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters)
    x = torch.randn(BATCH, width)
    with modscope.record(path):
        for _ in range(steps):
            for _ in range(micro):
                y = x
                for model in models:
                    y = model(y)
                y.sum().backward()
            if optimize:
                optimizer.step()
                optimizer.zero_grad()
    return modscope.load(path).peaks["cpu"].bytes


def planned(path: pathlib.Path, part: float, use_highs: bool = True) -> tuple[dict[str, Any], Plan]:
    """A plan that saves about this part of what can be saved."""
    problem = Problem(modscope.load(path), "cpu")
    highest, lowest = problem.reserved(EMPTY), problem.reserved(Search(problem, use_highs).least())
    assert lowest < highest
    budget = int(highest - part * (highest - lowest))
    report, plan = make_plan("x.msc", modscope.load(path), "cpu", budget, use_highs=use_highs)
    assert report["after"]["reserved"] <= budget < report["before"]["reserved"]
    return report, plan


CASES: dict[str, tuple[Any, int, int]] = {
    "blocks": (lambda: [Net(4, 32)], 32, 1),
    "micro-batches": (lambda: [Net(4, 32)], 32, 3),
    "called twice": (lambda: [Twice()], 16, 1),
    "frozen": (lambda: [Adapted()], 32, 1),
    "several roots": (lambda: [Adapted(), Net(3, 32)], 32, 1),
}


@pytest.mark.parametrize("part", [0.3, 0.9])
@pytest.mark.parametrize("case", CASES)
def test_a_run_with_the_plan_needs_what_the_plan_says(case: str, part: float, tmp_path: pathlib.Path) -> None:
    make, width, micro = CASES[case]
    before = train(tmp_path / "before.msc", make(), width, micro)
    report, plan = planned(tmp_path / "before.msc", part)
    assert report["before"]["allocated"] == before
    models = make()
    roots = {type(model).__name__: model for model in models}
    modscope.apply(plan, models[0] if len(plan.checkpoint) == 1 and len(models) == 1 else roots)
    after = train(tmp_path / "after.msc", models, width, micro)
    # A checkpoint keeps the state of the random numbers, of 5056 bytes, which the run without a plan does not have.
    states = 5056 * micro * len(plan.modules) * 2
    assert after <= 1.01 * report["budget"] + states
    assert abs(report["after"]["allocated"] - after) <= 0.02 * after + states
    assert report["after"]["step_ms"] > report["before"]["step_ms"]


def best_by_brute_force(problem: Problem, budget: int) -> float | None:
    best = None
    for count in range(len(problem.candidates) + 1):
        for choice in itertools.combinations(range(len(problem.candidates)), count):
            if any(problem.around(i) & set(choice) for i in choice):
                continue
            if problem.reserved(frozenset(choice)) <= budget:
                seconds = problem.seconds(choice)
                best = seconds if best is None else min(best, seconds)
    return best


@pytest.mark.parametrize(
    "use_highs",
    [False, pytest.param(True, marks=pytest.mark.skipif(not highs.is_available(), reason="highspy is not installed"))],
)
def test_the_choice_is_near_the_best_one(use_highs: bool, tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [Net(3, 32)], 32)
    problem = Problem(modscope.load(tmp_path / "run.msc"), "cpu")
    assert 6 <= len(problem.candidates) <= 15
    search = Search(problem, use_highs)
    highest, lowest = problem.reserved(EMPTY), problem.reserved(search.least())
    for part in (0.1, 0.35, 0.6, 0.85, 1.0):
        budget = int(highest - part * (highest - lowest))
        best = best_by_brute_force(problem, budget)
        found = search.find(budget)
        assert best is not None and found is not None
        assert problem.reserved(found.choice) <= budget
        # The search also counts calls, so that its optimum may take a little longer than the fastest choice.
        allowance = 2e-5 * len(problem.candidates) + 1e-9
        assert problem.seconds(found.choice) <= (1.1 if use_highs else 1.6) * best + allowance
        if use_highs:
            assert found.bound is not None and found.bound <= best + allowance


def test_no_module_lies_in_a_chosen_one(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [Net(4, 32)], 32)
    for part in (0.2, 0.5, 0.8, 1.0):
        _, plan = planned(tmp_path / "run.msc", part)
        names = plan.modules
        assert not any(a != b and a.startswith(f"{b}.") for a in names for b in names)


def test_a_recomputation_ends_with_its_last_saved_tensor(tmp_path: pathlib.Path) -> None:
    """The last operator of a block saves nothing, so it is not run again."""

    class Ending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(self.a(x))
            for _ in range(20):
                self.b(x.detach())
            return y + 1

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ending = Ending()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.ending(x).square()

    train(tmp_path / "run.msc", [Around()], 64)
    capture = modscope.load(tmp_path / "run.msc")
    ending = [call for call in calls_of(capture.stream, 0) if capture.module_names[call.path] == "Around.ending"]
    assert len(ending) == 3
    assert all(0 <= call.recompute_seconds < call.host_seconds for call in ending)


def test_a_checkpoint_holds_the_result_of_a_normalization(tmp_path: pathlib.Path) -> None:
    """Nothing else keeps it, and the statistics of the normalization are allocated after it."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64, bias=False).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(x.double())).float() * 2

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms, self.wide = (
                nn.ModuleList(nn.LayerNorm(64) for _ in range(4)),
                nn.ModuleList(Wide() for _ in range(4)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for norm, wide in zip(self.norms, self.wide):
                x = x + wide(norm(x))
            return x

    train(tmp_path / "before.msc", [Normed()], 64)
    problem = Problem(modscope.load(tmp_path / "before.msc"), "cpu")
    wide = [
        i
        for i, candidate in enumerate(problem.candidates)
        if candidate.name.startswith("Normed.wide.") and candidate.name.count(".") == 2
    ]
    assert len(wide) == 4
    model = Normed()
    modscope.apply(Plan({"Normed": [f"wide.{i}" for i in range(4)]}), model)
    after = train(tmp_path / "after.msc", [model], 64)
    assert abs(problem.verify(frozenset(wide)).allocated - after) <= 5056 * 8


# ---- verified plans ----


def test_a_plan_is_made_again_where_its_prediction_needs_more(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [Net(6, 32)], 32)
    capture = modscope.load(tmp_path / "run.msc")
    report, _ = planned(tmp_path / "run.msc", 0.3)
    problem, budget = Problem(capture, "cpu"), report["after"]["reserved"]
    asked: list[list[str]] = []

    def verify(plan: Plan, more: int) -> dict[str, Any]:
        asked.append(plan.modules)
        choice = frozenset(i for i, candidate in enumerate(problem.candidates) if candidate.name in plan.modules)
        return {
            "reserved": problem.reserved(choice) + more,
            "allocated": 0,
            "step_ms": 1.0 + len(choice),
            "step": 1,
            "phase": "",
            "module": "",
        }

    more = budget // 20
    made, plan = make_plan("train.py", capture, "cpu", budget, verify=lambda plan: verify(plan, more))
    assert made["is_verified"] and made["after"]["reserved"] == made["planned"]["reserved"] + more <= budget
    assert 1 < len(asked) <= 4 and asked[-1] == plan.modules != asked[0]
    assert made["too_large"] and all(reserved > budget for reserved in made["too_large"])
    assert plan.facts["reserved"]["after"] == made["after"]["reserved"]

    asked.clear()
    exact, _ = make_plan("train.py", capture, "cpu", budget, verify=lambda plan: verify(plan, 0))
    assert exact["after"]["reserved"] == exact["planned"]["reserved"] <= budget
    with pytest.raises(
        modscope.CaptureError, match="No plan was found that stays within .* when the script is predicted with it"
    ):
        make_plan("train.py", capture, "cpu", budget, verify=lambda plan: verify(plan, 2 * budget))
    with pytest.raises(modscope.CaptureError, match="cannot be applied to the script"):
        make_plan("train.py", capture, "cpu", budget, verify=lambda plan: None)


def verification(problem: Problem, reserved: Callable[[Choice], int]) -> Callable[[Plan], dict[str, Any]]:
    """Predictions of plans, which reserve what ``reserved`` says."""

    def verify(plan: Plan) -> dict[str, Any]:
        choice = frozenset(i for i, candidate in enumerate(problem.candidates) if candidate.name in plan.modules)
        figures = {"reserved": reserved(choice), "allocated": 0, "step_ms": 1.0 + len(choice)}
        return {**figures, "step": 1, "phase": "", "module": ""}

    return verify


def test_a_plan_is_found_if_only_its_prediction_fits(tmp_path: pathlib.Path) -> None:
    """The replays of all choices reserve more than the budget, as gaps may let them."""
    train(tmp_path / "run.msc", [Net(4, 32)], 32)
    capture = modscope.load(tmp_path / "run.msc")
    problem = Problem(capture, "cpu")
    least = Search(problem, False).least()
    problem_class, more = Problem.reserved, problem.reserved(EMPTY)
    budget = problem.reserved(least) + 1000

    class Gaps(Problem):
        def reserved(self, choice: Choice) -> int:
            return problem_class(self, choice) + more

        def fits(self, choice: Choice, budget: int, is_careful: bool = False) -> bool:
            return self.reserved(choice) <= budget

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modscope._plan.plan.Problem", Gaps)
        made, _ = make_plan("train.py", capture, "cpu", budget, verify=verification(problem, problem.reserved))
    assert made["is_verified"] and made["after"]["reserved"] <= budget < made["planned"]["reserved"] + more


def test_a_plan_is_found_if_those_that_seem_to_fit_do_not(tmp_path: pathlib.Path) -> None:
    """Every choice needs far more than its replay says, but for the one with all blocks."""
    train(tmp_path / "run.msc", [Net(6, 32)], 32)
    capture = modscope.load(tmp_path / "run.msc")
    problem = Problem(capture, "cpu")
    blocks = frozenset(i for i, each in enumerate(problem.candidates) if each.name.count(".") == 2)
    assert len(blocks) == 6
    budget = (problem.reserved(EMPTY) + problem.reserved(blocks)) // 2

    def reserved(choice: Choice) -> int:
        return problem.reserved(choice) + (0 if choice == blocks else problem.reserved(EMPTY))

    made, plan = make_plan("train.py", capture, "cpu", budget, verify=verification(problem, reserved))
    assert made["is_verified"] and made["after"]["reserved"] <= budget
    assert plan.modules == [f"Net.h.{i}" for i in range(6)]


def test_a_plan_that_may_need_more_is_avoided(tmp_path: pathlib.Path) -> None:
    """A choice of which nothing says that it may need more than the budget is preferred to others whose replays fit."""
    train(tmp_path / "run.msc", [Net(4, 32)], 32)
    capture = modscope.load(tmp_path / "run.msc")
    problem = Problem(capture, "cpu")
    highest, lowest = problem.reserved(EMPTY), problem.reserved(Search(problem, False).least())
    budget = (highest + lowest) // 2
    risky = Search(problem, False).find(budget)
    assert risky is not None

    class Uncertain(Problem):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.is_cpu = False

        def range_of(self, choice: Choice) -> tuple[int, int]:
            reserved = self.reserved(choice)
            return reserved, reserved + (highest if choice == risky.choice else 0)

        def fits(self, choice: Choice, budget: int, is_careful: bool = False) -> bool:
            return self.range_of(choice)[1 if is_careful else 0] <= budget

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modscope._plan.plan.Problem", Uncertain)
        patch.setattr("modscope._plan.plan._CERTAINTY", 10.0)  # of a step: at any cost
        made, plan = make_plan("run.msc", capture, "cpu", budget, use_highs=False)
    assert made["after"]["reserved_range"][1] <= budget
    assert made["checkpoint"] and plan.modules != problem.names(risky.choice)


# ---- where there is no plan ----


def test_budgets_that_no_plan_meets(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [Net(4, 32)], 32)
    capture = modscope.load(tmp_path / "run.msc")
    least = make_plan_error(capture, 200_000)
    assert (
        "does not fit 195.31 KiB by checkpointing alone: with every module that helps checkpointed it still allocates"
        in least
    )
    assert "of parameters, buffers, gradients and state remain" in least and least.endswith("modscope fit run.msc")
    assert "its parameters take" in make_plan_error(capture, 1000)


def make_plan_error(capture: modscope.Capture, budget: int) -> str:
    with pytest.raises(modscope.CaptureError) as raised:
        make_plan("run.msc", capture, "cpu", budget)
    return str(raised.value)


def test_captures_that_do_not_suffice(tmp_path: pathlib.Path) -> None:
    model, x = Net(2, 32), torch.randn(BATCH, 32)
    with modscope.record(tmp_path / "forward.msc"):
        model(x)
    assert "has no optimizer step" in make_plan_error(modscope.load(tmp_path / "forward.msc"), 10**6)
    with pytest.raises(ZeroDivisionError), modscope.record(tmp_path / "failed.msc"):
        model(x).sum().backward()
        raise ZeroDivisionError
    error = make_plan_error(modscope.load(tmp_path / "failed.msc"), 10**6)
    assert "ended before its first step was complete" in error
    with modscope.record(tmp_path / "empty.msc"):
        pass
    assert "nothing to plan" in make_plan_error(modscope.load(tmp_path / "empty.msc"), 10**6)


def test_a_run_without_an_optimizer_has_a_plan(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [Net(4, 32)], 32, optimize=False)
    report, _ = planned(tmp_path / "run.msc", 0.5)
    assert report["checkpoint"]


def test_a_model_of_one_module_has_no_plan(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [nn.Linear(32, 32)], 32)
    assert "no module below a root module keeps anything" in make_plan_error(
        modscope.load(tmp_path / "run.msc"), 30_000
    )
