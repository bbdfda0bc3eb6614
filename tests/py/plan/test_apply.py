"""modscope.apply: the same losses and gradients with a plan as without it, and undo() restores the model."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import modscope
import pytest
from modscope._plan.file import plan_of
from plan_models import Block, Net, Normalized, Odd, Twice

import torch
from torch import nn


def train(model: nn.Module, x: torch.Tensor, steps: int = 2, autocast: bool = False) -> list[torch.Tensor]:
    """The losses, then the gradients of the last step, then the buffers."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        results.append(loss.detach())
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*results, *gradients, *(buffer.clone() for buffer in model.buffers())]


def state_of(model: nn.Module) -> list[tuple[str, dict[str, Any]]]:
    return [(name, dict(module.__dict__)) for name, module in model.named_modules()]


CASES = {
    "dropout": (Net, ["Net.h.0", "Net.h.2.dropout", "Net.h.3"], torch.randn(5, 16)),
    "called twice, with keywords": (Twice, ["Twice.block", "Twice.odd"], torch.randn(5, 16)),
    "batch normalization": (Normalized, ["Normalized.stage"], torch.randn(4, 3, 6, 6)),
}


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("case", CASES)
def test_losses_gradients_and_buffers_are_the_same(case: str, autocast: bool) -> None:
    kind, modules, x = CASES[case]
    torch.manual_seed(0)
    model = kind()
    planned = copy.deepcopy(model)
    applied = modscope.apply(plan_of(modules), planned)
    assert applied.modules == modules
    expected = train(model, x, autocast=autocast)
    given = train(planned, x, autocast=autocast)
    assert len(expected) == len(given)
    assert all(torch.equal(a, b) for a, b in zip(expected, given))


def saved_bytes(model: nn.Module, x: torch.Tensor) -> int:
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).sum()
    assert loss.requires_grad
    return sum(storages.values())


def test_exactly_these_modules_keep_nothing_for_backward() -> None:
    model, x = Net(), torch.randn(5, 16)
    calls: dict[str, int] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: calls.update({name: calls.get(name, 0) + 1}))
    before = saved_bytes(model, x)
    applied = modscope.apply(plan_of(["Net.h.1", "Net.h.3"]), model)
    assert saved_bytes(model, x) < before
    calls.clear()
    model(x).sum().backward()
    assert {name for name, count in calls.items() if count == 2 and name.endswith("wide")} == {"h.1.wide", "h.3.wide"}
    assert calls["h.0"] == calls["h.1"] == 1
    applied.undo()
    calls.clear()
    model(x).sum().backward()
    assert set(calls.values()) == {1}
    assert saved_bytes(model, x) == before


def test_undo_restores_every_attribute() -> None:
    model = Net()
    model.h[1].__dict__["forward"] = own = model.h[1].forward
    before = state_of(model)
    applied = modscope.apply(plan_of(["Net.h.0", "Net.h.1"]), model)
    assert state_of(model) != before
    applied.undo()
    assert model.h[1].__dict__["forward"] is own
    assert [(name, list(given)) for name, given in state_of(model)] == [(name, list(given)) for name, given in before]
    assert all(
        given[key] is expected[key] for (_, given), (_, expected) in zip(state_of(model), before) for key in expected
    )
    applied.undo()  # does nothing


def test_a_forward_that_replaced_ours_is_left() -> None:
    model = Net()
    applied = modscope.apply(plan_of(["Net.h.0"]), model)
    own = model.h[0].__dict__["forward"] = lambda x: x
    with pytest.warns(RuntimeWarning, match="Net.h.0 has another forward"):
        applied.undo()
    assert model.h[0].__dict__["forward"] is own


def test_nothing_is_recomputed_without_grad() -> None:
    model, x = Net(), torch.randn(5, 16)
    model.eval()
    expected = model(x)
    modscope.apply(plan_of(["Net.h.0"]), model)
    state = torch.get_rng_state()
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_copies_are_checkpointed_by_themselves(how: Any) -> None:
    model = Net()
    modscope.apply(plan_of(["Net.h.0"]), model)
    other = how(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert other(torch.ones(1, 16)).abs().sum() > 0
    assert other.h[0].__dict__["forward"].args[0] is other.h[0]


@pytest.mark.parametrize(
    "kind, modules",
    [(Net, ["Net.h.0", "Net.h.2"]), (Twice, ["Twice.block", "Twice.odd"]), (Normalized, ["Normalized.stage"])],
)
def test_compile_breaks_the_graph_nowhere_else(kind: type[nn.Module], modules: list[str]) -> None:
    x = torch.randn(4, 3, 6, 6) if kind is Normalized else torch.randn(5, 16)
    torch.manual_seed(0)
    model = kind()
    without = torch._dynamo.explain(model)(x)
    torch._dynamo.reset()
    modscope.apply(plan_of(modules), model)
    planned = torch._dynamo.explain(model)(x)
    torch._dynamo.reset()
    assert (
        (planned.graph_count, planned.graph_break_count) == (without.graph_count, without.graph_break_count) == (1, 0)
    )
    assert any("checkpoint" in str(node.target) for graph in planned.graphs for node in graph.graph.nodes)


def test_a_compiled_model_has_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = Net()
    for block in model.h:
        block.dropout.p = 0.0  # compiled code need not draw the same random numbers
    planned = copy.deepcopy(model)
    modscope.apply(plan_of(["Net.h.0", "Net.h.1"]), planned)
    x = torch.randn(5, 16)
    expected = train(model, x)
    given = train(torch.compile(planned, backend="aot_eager", fullgraph=True), x)
    torch._dynamo.reset()
    for a, b in zip(expected, given, strict=True):
        torch.testing.assert_close(a, b)


# ---- plans that do not suit ----


def test_a_plan_of_another_model_changes_nothing() -> None:
    model = Net(2)
    before = state_of(model)
    with pytest.raises(modscope.PlanError, match=r"does not have the modules Net\.h\.2, Net\.h\.3 of the plan"):
        modscope.apply(plan_of(["Net.h.0", "Net.h.2", "Net.h.3"]), model)
    assert state_of(model) == before


def test_a_plan_is_applied_once() -> None:
    model = Net()
    modscope.apply(plan_of(["Net.h.0"]), model)
    with pytest.raises(modscope.PlanError, match="Net.h.0 is checkpointed by a plan already"):
        modscope.apply(plan_of(["Net.h.1", "Net.h.0"]), model)
    assert "forward" not in model.h[1].__dict__


def test_one_module_under_two_names_is_checkpointed_once() -> None:
    model = Net()
    model.h[1] = model.h[0]
    applied = modscope.apply(plan_of(["Net.h.0", "Net.h.1"]), model)
    assert applied.modules == ["Net.h.0"]
    assert model(torch.randn(2, 16)).requires_grad


def test_a_module_in_another_one_is_refused() -> None:
    model = nn.Sequential(Block(16))
    model.other = model[0].wide
    with pytest.raises(modscope.PlanError, match="lies in"):
        modscope.apply(plan_of(["Sequential.0", "Sequential.other"]), model)


def test_several_root_modules_are_given_by_name() -> None:
    plan = plan_of(["encoder.h.0", "decoder.h.1"])
    encoder, decoder = Net(2), Net(2)
    with pytest.raises(modscope.PlanError, match="root modules encoder, decoder: give their models by name"):
        modscope.apply(plan, encoder)
    with pytest.raises(modscope.PlanError, match="the root module decoder, and no model"):
        modscope.apply(plan, {"encoder": encoder})
    applied = modscope.apply(plan, {"encoder": encoder, "decoder": decoder})
    assert applied.modules == ["encoder.h.0", "decoder.h.1"]
    assert (
        "forward" in encoder.h[0].__dict__
        and "forward" in decoder.h[1].__dict__
        and "forward" not in encoder.h[1].__dict__
    )


def test_wrapped_models_and_plans_of_wrapped_models() -> None:
    wrapped = nn.DataParallel(Net(2))
    assert modscope.apply(plan_of(["Net.h.1"]), wrapped).modules == ["Net.h.1"]
    assert "forward" in wrapped.module.h[1].__dict__
    plain = Net(2)
    modscope.apply(plan_of(["DistributedDataParallel.module.h.1"]), plain)
    assert "forward" in plain.h[1].__dict__


def test_a_scripted_module_is_refused() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), Odd())
    with pytest.raises(modscope.PlanError, match="compiled by torch.jit"):
        modscope.apply(plan_of(["Sequential.0"]), model)


def test_a_module_that_contains_itself() -> None:
    model = Net(2)
    model.module = model
    applied = modscope.apply(plan_of(["Net.module.module.h.0"]), model)
    assert applied.modules == ["Net.module.module.h.0"]
    applied.undo()
    with pytest.raises(modscope.PlanError, match="does not have the modules"):
        modscope.apply(plan_of([f"Net.{'module.' * 60_000}nothing"]), model)
