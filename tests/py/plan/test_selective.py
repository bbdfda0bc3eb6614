"""A checkpointed module that keeps the results of some operators: they are not computed again, and gradients are the
same to the bit."""

from __future__ import annotations

import copy
import pathlib
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import modscope
import pytest
from modscope._plan import selective
from modscope._plan.file import KeptOperator, Plan, load_plan, plan_of
from plan_models import Block, Net, Normalized, Twice
from test_apply import train
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


class Part(nn.Module):
    """A model of one part, which computes a function of two layers and the input."""

    def __init__(self, compute: Callable[[Any, Any, torch.Tensor], Any], finish: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.compute, self.finish = nn.Linear(16, 16), nn.Linear(16, 16), compute, finish

    def forward(self, x: torch.Tensor) -> Any:
        return self.compute(self.first, self.second, x)


class Model(nn.Module):
    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part, self.head = part, nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.part.finish(self.part(x)))


def changed_in_place(first: Any, second: Any, x: torch.Tensor) -> torch.Tensor:
    y = first(x)
    y.sigmoid_()
    return second(y).mul_(2.0)


def draws(first: Any, second: Any, x: torch.Tensor) -> torch.Tensor:
    y = first(x) * torch.bernoulli(torch.full((16,), 0.5))
    return (second(y) * torch.bernoulli(torch.full((16,), 0.5))).sin()


def draws_in_place(first: Any, second: Any, x: torch.Tensor) -> torch.Tensor:
    y = first(x) * torch.bernoulli(torch.full((16,), 0.5))
    return (second(y) * torch.empty(16).bernoulli_(0.5)).sin()


def nested(reentrant: bool) -> Callable[[Any, Any, torch.Tensor], torch.Tensor]:
    def compute(first: Any, second: Any, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda x: torch.tanh(first(x)), first(x).sin(), use_reentrant=reentrant)
        return F.dropout(torch.tanh(second(y)), 0.5)

    return compute


def several(first: Any, second: Any, x: torch.Tensor) -> dict[str, Any]:
    y = torch.tanh(first(x))
    return {"y": y, "parts": torch.split(second(y).sin(), 8, dim=1), "name": "several"}


def lora(first: Any, second: Any, x: torch.Tensor) -> torch.Tensor:
    first.requires_grad_(False)
    return torch.relu(first(x) + second(x) * 0.5)


def whole(y: Any) -> torch.Tensor:
    assert isinstance(y, torch.Tensor)
    return y


ADD = "aten::addmm"
CASES: dict[str, tuple[Callable[[], nn.Module], str, list[KeptOperator]]] = {
    "dropout": (Net, "Net.h.1", [KeptOperator(ADD, 1, 2), KeptOperator("aten::mul.Tensor", 1)]),
    "a shared module": (Twice, "Twice.block", [KeptOperator(ADD, 2, 2), KeptOperator("aten::gelu", 1, 1)]),
    "in place": (
        lambda: Model(Part(changed_in_place, whole)),
        "Model.part",
        [KeptOperator(ADD, 1), KeptOperator(ADD, 2)],
    ),
    "random, the first": (lambda: Model(Part(draws, whole)), "Model.part", [KeptOperator("aten::bernoulli", 1, 2)]),
    "random, the second": (lambda: Model(Part(draws, whole)), "Model.part", [KeptOperator("aten::bernoulli", 2, 2)]),
    "random in place": (lambda: Model(Part(draws_in_place, whole)), "Model.part", [KeptOperator("aten::bernoulli", 1)]),
    "nested": (
        lambda: Model(Part(nested(False), whole)),
        "Model.part",
        [KeptOperator(ADD, 1), KeptOperator(ADD, 2), KeptOperator(ADD, 3)],
    ),
    "nested, reentrant": (
        lambda: Model(Part(nested(True), whole)),
        "Model.part",
        [KeptOperator(ADD, 1), KeptOperator(ADD, 2)],
    ),
    "several results": (
        lambda: Model(Part(several, lambda y: torch.cat([y["y"][:, :8], y["parts"][1]], 1))),
        "Model.part",
        [KeptOperator("aten::tanh", 1), KeptOperator(ADD, 2)],
    ),
    "frozen, with an adapter": (lambda: Model(Part(lora, whole)), "Model.part", [KeptOperator(ADD, 1)]),
}


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_the_same_to_the_bit(case: str, autocast: bool) -> None:
    kind, module, places = CASES[case]
    torch.manual_seed(0)
    model = kind()
    planned = copy.deepcopy(model)
    modscope.apply(plan_of([module], keep={module: tuple(places)}), planned)
    x = torch.randn(5, 16)
    expected, given = train(model, x, autocast=autocast), train(planned, x, autocast=autocast)
    assert all(torch.equal(a, b) for a, b in zip(expected, given, strict=True))


def test_running_statistics_are_updated_once() -> None:
    torch.manual_seed(0)
    model = Normalized()
    planned = copy.deepcopy(model)
    keep = {"Normalized.stage": (KeptOperator("aten::convolution", 2, 2),)}
    modscope.apply(plan_of(["Normalized.stage"], keep=keep), planned)
    x = torch.randn(4, 3, 6, 6)
    assert all(torch.equal(a, b) for a, b in zip(train(model, x), train(planned, x), strict=True))


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def calls_of_backward(model: nn.Module) -> Counter[str]:
    with Calls():  # without a mode in forward, none sees what is kept
        loss = model(torch.randn(5, 16)).square().mean()
    with Calls() as calls:
        loss.backward()
    return calls.counts


_bodies: Counter[str] = Counter()


@torch.library.custom_op("modscope_selective::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    _bodies["scale"] += 1
    return torch.mul(x, by)


scale.register_autograd(lambda ctx, gradient: (gradient * 3.0, None))


def scales(first: Any, second: Any, x: torch.Tensor) -> torch.Tensor:
    y = scale(first(x), 3.0)
    return second(scale(y.sin(), 3.0).cos() * 2.0).tanh()


def test_python_runs_for_the_operators_that_are_kept_and_for_no_others() -> None:
    model = Model(Part(scales, whole))
    names = "modscope_selective::scale", ADD
    keep = {"Model.part": (KeptOperator(names[0], 2, 2), KeptOperator(ADD, 2, 2))}
    modscope.apply(plan_of(["Model.part"], keep=keep), model)
    asked: Counter[str] = Counter()

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code in (selective._Keep.run.__code__, selective._Reuse.run.__code__):
            asked[frame.f_locals["operator"].name()] += 1

    x = torch.randn(5, 16)
    model(x).sum().backward()
    _bodies.clear()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        model(x).sum().backward()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    # Both in forward, and again in the recomputation; the second scale is not computed there.
    assert (asked[names[0]], asked[ADD], asked["aten::sin"], asked["aten::cos"]) == (4, 4, 0, 0)
    assert _bodies == {"scale": 3}


def test_kernels_and_a_mode_keep_the_same() -> None:
    torch.manual_seed(0)
    model = Model(Part(scales, whole))
    keep = {"Model.part": (KeptOperator("modscope_selective::scale", 2, 2), KeptOperator("aten::mul.Tensor", 1))}
    planned = copy.deepcopy(model)
    modscope.apply(plan_of(["Model.part"], keep=keep), planned)
    x = torch.randn(5, 16)
    expected = train(model, x)
    with Calls():
        by_mode = train(copy.deepcopy(planned), x)
    by_kernels = train(planned, x)
    assert all(torch.equal(a, b) for a, b in zip(expected, by_mode, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(expected, by_kernels, strict=True))


def test_what_is_kept_is_not_computed_again() -> None:
    model = Net()
    modscope.apply(
        plan_of(["Net.h.0", "Net.h.1"], keep={"Net.h.1": (KeptOperator(ADD, 1, 2), KeptOperator("aten::gelu", 1))}),
        model,
    )
    counts = calls_of_backward(model)
    # of Net.h.0 both products, of Net.h.1 the second: the last saves a tensor before its own result
    assert (counts[ADD], counts["aten::gelu"], counts["aten::native_layer_norm"]) == (3, 1, 2)


def test_random_operators_are_kept_one_by_one() -> None:
    for call in (1, 2):
        model = Model(Part(draws, whole))
        modscope.apply(plan_of(["Model.part"], keep={"Model.part": (KeptOperator("aten::bernoulli", call),)}), model)
        assert calls_of_backward(model)["aten::bernoulli"] == 1


def test_a_backward_leaves_the_random_numbers_of_the_program() -> None:
    def compute(first: Any, second: Any, x: torch.Tensor) -> torch.Tensor:
        return second(first(x) * torch.bernoulli(torch.full((16,), 0.5))).sin()

    region = selective._Region((("aten::bernoulli", 1, 1),))
    model = Part(compute, whole)
    with selective._Keep(region):
        expected = model(torch.ones(5, 16))
    before = torch.get_rng_state()
    with selective._Reuse(region):  # without a checkpoint around it, which sets them back too
        assert torch.equal(model(torch.ones(5, 16)), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_second_backward_of_one_graph() -> None:
    torch.manual_seed(0)
    model = Net()
    model.eval()
    planned = copy.deepcopy(model)
    modscope.apply(
        plan_of(["Net.h.1"], keep={"Net.h.1": (KeptOperator(ADD, 1), KeptOperator("aten::gelu", 1))}), planned
    )
    x = torch.randn(5, 16)
    for each in (model, planned):
        loss = each(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), planned.parameters(), strict=True))


def test_nothing_stays_after_backward() -> None:
    model = Net()
    modscope.apply(plan_of(["Net.h.1"], keep={"Net.h.1": (KeptOperator(ADD, 1), KeptOperator(ADD, 2))}), model)
    held: list[Any] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            import weakref

            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.addmm.default:
                held.append(weakref.ref(result.untyped_storage()))
            return result

    with Watch():
        loss = model(torch.randn(5, 16)).square().mean()
        loss.backward()
    del loss
    assert held and not any(ref() is not None for ref in held)


def test_copies_and_pickles_of_the_model_keep_the_same() -> None:
    model = Net()
    modscope.apply(plan_of(["Net.h.1"], keep={"Net.h.1": (KeptOperator(ADD, 1, 2),)}), model)
    expected = calls_of_backward(model)
    assert calls_of_backward(copy.deepcopy(model)) == expected == calls_of_backward(pickle.loads(pickle.dumps(model)))


@pytest.mark.slow
def test_compiled_code_keeps_the_result_too() -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.ModuleList([Block(16)])
            self.h[0].dropout.p = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.h[0](x)

    torch.manual_seed(0)
    model, x = Sizes(), torch.randn(5, 16)
    found = []
    for places in ((), (KeptOperator("aten::gelu", 1, 1),)):
        planned = copy.deepcopy(model)
        modscope.apply(plan_of(["Sizes.h.0"], keep={"Sizes.h.0": places}), planned)
        compiled = torch.compile(planned, backend="aot_eager", fullgraph=True)
        kept: list[tuple[int, ...]] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):  # type: ignore[func-returns-value]
            compiled(x).square().mean().backward()
        found.append((kept.count((5, 64)), [parameter.grad for parameter in planned.parameters()]))
        torch._dynamo.reset()
    model(x).square().mean().backward()
    assert [count for count, _ in found] == [0, 1]
    for _, gradients in found:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


# ---- plans that do not suit ----


def test_an_operator_that_is_not_at_its_place_is_refused() -> None:
    model = Net()
    keep = (KeptOperator(ADD, 1, 2), KeptOperator("aten::gelu", 2), KeptOperator("aten::mm", 1))
    modscope.apply(plan_of(["Net.h.1"], keep={"Net.h.1": keep}), model)
    why = r"does not suit Net\.h\.1: it keeps the result of aten::gelu, call 2, and the module calls aten::gelu 1 times"
    with pytest.raises(modscope.PlanError, match=why):
        model(torch.randn(5, 16))
    model = Net()
    modscope.apply(plan_of(["Net.h.1"], keep={"Net.h.1": (KeptOperator(ADD, 1, 3),)}), model)
    with pytest.raises(modscope.PlanError, match="call 1 of 3, and the module calls aten::addmm 2 times"):
        model(torch.randn(5, 16))


def test_a_script_is_told_and_goes_on_with_the_whole_module_checkpointed() -> None:
    torch.manual_seed(0)
    model, told = Net(), []
    planned = copy.deepcopy(model)
    plan = plan_of(["Net.h.1"], keep={"Net.h.1": (KeptOperator(ADD, 1, 3),)})
    applied = modscope.apply(plan, planned, tell=told.append)
    x = torch.randn(5, 16)
    assert all(torch.equal(a, b) for a, b in zip(train(model, x), train(planned, x), strict=True))
    assert len(told) == 1 and told[0].endswith("It is checkpointed as a whole")
    applied.undo()
    assert "forward" not in planned.h[1].__dict__


# ---- the file ----


def test_a_plan_that_keeps_results_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    keep = {"Net.h.0": (KeptOperator(ADD, 1, 2),), "Net.h.1": (KeptOperator(ADD, 1, 2),), "Net.h.2": ()}
    plan = plan_of(["Net.h.0", "Net.h.1", "Net.h.2"], {"budget": 5}, keep)
    plan.write(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert '"version": 2' in (tmp_path / "plan.json").read_text()
    assert plan.keep == {"Net": {"h.0": (KeptOperator(ADD, 1, 2),), "h.1": (KeptOperator(ADD, 1, 2),)}}
    assert plan.keep_as_json() == {
        "Net": [{"modules": ["h.0", "h.1"], "operators": [{"operator": ADD, "call": 1, "of": 2}]}]
    }
    assert '"version": 1' in plan_of(["Net.h.0"]).as_json()


@pytest.mark.parametrize(
    "keep, why",
    [
        ([], "is not an object with a list"),
        ({"Net": [{"modules": ["h.1"], "operators": []}]}, r"Net\.h\.1 keeps results, and is not in"),
        ({"Net": [{"modules": "h.0", "operators": []}]}, 'has no "modules"'),
        ({"Net": [{"modules": ["h.0"], "operators": [{"operator": "addmm", "call": 1}]}]}, "has no name as"),
        ({"Net": [{"modules": ["h.0"], "operators": [{"operator": ADD, "call": 0}]}]}, 'has no "call" from 1'),
        ({"Net": [{"modules": ["h.0"], "operators": [{"operator": ADD, "call": 3, "of": 2}]}]}, 'more than "of"'),
        ({"Net": [{"modules": ["h.0", "h.0"], "operators": []}]}, "is twice"),
    ],
)
def test_a_wrong_list_of_results_says_what_is_wrong(keep: Any, why: str) -> None:
    body = {"kind": "modscope plan", "version": 2, "checkpoint": {"Net": ["h.0"]}, "keep": keep}
    with pytest.raises(modscope.PlanError, match=why):
        modscope.apply(body, Net())


def test_a_plan_of_the_first_version_is_read_as_before() -> None:
    body = {"kind": "modscope plan", "version": 1, "checkpoint": {"Net": ["h.0"]}, "keep": "a fact"}
    assert modscope.apply(body, Net()).modules == ["Net.h.0"]
    assert Plan({"Net": ["h.0"]}).keep == {}
