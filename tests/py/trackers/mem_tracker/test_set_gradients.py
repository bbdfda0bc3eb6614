"""Gradients that the program sets itself, so that no backward node accumulates them, are Gradient since they were
made."""

import os

import pytest
from helpers import needs_interception
from memory_helpers import CPU, every_source
from modscope import Category, MemTracker, load, record

import torch
from torch import nn

SIZE = 64 * 64 * 4


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False))


def set_gradients(model: nn.Module) -> None:
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(model(torch.ones(1, 64)).sum(), parameters)):
        parameter.grad = gradient


@every_source
def test_at_the_peak_and_now(source):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    mt = MemTracker(source)
    mt.track_external(model)
    with mt:
        set_gradients(model)
        optimizer.step()
        optimizer.zero_grad()  # from now on, nothing but the claims at the step knows that they were gradients
    peak = mt.get_tracker_snapshot("peak")[CPU]
    assert peak[Category.GRAD] == 2 * SIZE
    modules = mt.get_module_snapshot("peak")[CPU]
    assert modules["Sequential.0"][Category.GRAD] == modules["Sequential.2"][Category.GRAD] == SIZE


@needs_interception
def test_in_captures_at_every_moment_since_they_were_made(tmp_path):
    with record(tmp_path / "x.msc"):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            set_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
    capture = load(tmp_path / "x.msc")
    begun = [event.number for event in capture.events("step")]
    for first, last in zip(begun, [*begun[1:], capture.event_count]):
        made = [
            e for e in capture.events("add") if first <= e.number < last and e.bytes == SIZE and e.phase == "backward"
        ]
        assert len(made) >= 2
        held = [capture.snapshot(event.number + 1).totals["cpu"] for event in made]
        assert max(sums["Gradient"] for sums in held) == 2 * SIZE
        assert max(sums["Temp"] for sums in held) < SIZE


@every_source
def test_a_closure_that_sets_them(source):
    """They are made inside the optimizer step, so they are claimed when it ends."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        set_gradients(model)
        return torch.zeros(())

    mt = MemTracker(source)
    mt.track_external(model)
    with mt:
        optimizer.step(closure)
        optimizer.zero_grad()
    assert mt.get_tracker_snapshot("peak")[CPU][Category.GRAD] == 2 * SIZE


@every_source
def test_of_parameters_that_no_module_holds(source):
    with MemTracker(source) as mt:
        weight = torch.ones(64, 64, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight.sum() * 2).backward()
        optimizer.step()
        now = mt.get_module_snapshot()[CPU]["Global"]
        assert now[Category.PARAM] == now[Category.GRAD] == SIZE
        again = mt.get_module_snapshot()[CPU]["Global"]
        assert again == now
        del weight, optimizer


@every_source
def test_each_optimizer_claims_those_of_its_own_parameters(source):
    model = net()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
    mt = MemTracker(source)
    mt.track_external(model)
    with mt:
        set_gradients(model)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert mt.get_tracker_snapshot("peak")[CPU][Category.GRAD] == 2 * SIZE


@needs_interception
def test_a_gradient_shared_by_several_parameters_keeps_one_owner(tmp_path):
    """As the buckets of DistributedDataParallel are: a step adds no claim for what is claimed already."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with record(tmp_path / "x.msc"):
        set_gradients(model)
        bucket = torch.ones(2, 64, 64)
        for parameter, view in zip(model.parameters(), bucket):
            parameter.grad = view
        for _ in range(4):
            optimizer.step()
    capture = load(tmp_path / "x.msc")
    stepped = [event.number for event in capture.events("optimizer_step")]
    assert len(stepped) == 4
    assert len([e for e in capture.events("claim") if e.bytes == 2 * SIZE and e.number < stepped[-1]]) == 1


@needs_interception
def test_of_sparse_embeddings():
    model = nn.Embedding(100, 64, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mt = MemTracker()
    mt.track_external(model)
    with mt:
        model(torch.arange(50)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert mt.get_tracker_snapshot("peak")[CPU][Category.GRAD] == 50 * 64 * 4 + 50 * 8


@pytest.fixture
def process_group():
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.slow
@needs_interception
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_of_fully_sharded_modules(process_group, tmp_path):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    model = net()
    for layer in (model[0], model[2]):
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(tmp_path / "x.msc"):
        for _ in range(3):
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    capture = load(tmp_path / "x.msc")
    stepping = [e.number for e in capture.events("position") if e.phase == "optimizer"]
    assert len(stepping) == 3
    for moment in stepping:
        held = capture.snapshot(moment).by_module()["cpu"]
        gradients = {name: sums["Gradient"] for name, sums in held.items() if sums["Gradient"]}
        assert gradients == {"FSDPSequential.0": SIZE, "FSDPSequential.2": SIZE}
        assert sum(sums["Temp"] for sums in held.values()) == 0
