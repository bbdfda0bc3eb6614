"""While a model is being built, its parameters and buffers are claimed as they are registered, by the names known so
far."""

import copy
import gc
import weakref

import pytest
from helpers import needs_interception
from memory_helpers import CPU, every_source, now, parameter_bytes
from modscope import MemTracker, load, record
from modscope._trackers.mem_tracker import ledger_of
from torch._subclasses import FakeTensorMode

import torch
from torch import nn

TOO_MUCH = 1 << 50


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(64, 64)
        self.register_buffer("mask", torch.ones(100))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = Attention(), nn.Linear(64, 64, bias=False)


class Model(nn.Module):
    def __init__(self, too_large: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.block_in_the_making = Block() if not too_large else [Block(), torch.empty(TOO_MUCH, dtype=torch.uint8)][0]


def own(mt: MemTracker, category: str) -> dict[str, int]:
    found = mt.get_module_snapshot().get(CPU, {})
    return {fqn: figures[category] for fqn, figures in found.items() if figures[category]}


def names_below(prefix: str) -> set[str]:
    return {f"{prefix}.attention.query", f"{prefix}.out"}


@every_source
def test_a_model_that_was_never_called_owns_its_parameters_and_buffers(source):
    with MemTracker(source) as mt:
        model = Model()
        blocks = [f"Model.{name}" for name in ("blocks.0", "blocks.1", "block_in_the_making")]
        assert set(own(mt, "Parameter")) == {"Model.embedding"}.union(*map(names_below, blocks))
        assert own(mt, "Buffer") == {f"{name}.attention": 400 for name in blocks}
        assert sum(own(mt, "Parameter").values()) == parameter_bytes(model)


@needs_interception
def test_the_out_of_memory_report_says_parameter_and_the_module(capfd):
    with pytest.raises(RuntimeError) as caught, MemTracker():
        Model(too_large=True)
    [report] = caught.value.__notes__
    assert report in capfd.readouterr().err
    assert "(Parameter 121.75 KiB, Buffer 1.17 KiB)" in report
    owners = [line.split()[2:4] for line in report.splitlines() if line.startswith("     ")]
    assert owners[0] == ["Model.embedding:", "Parameter"]
    wanted = [f"{name}.attention.query:" for name in ("Block", "Model.blocks.0", "Model.blocks.1")]
    assert sorted(owners[1:4]) == [[name, "Parameter"] for name in wanted]
    assert "outside any module:" not in report


@needs_interception
def test_the_capture_shows_the_same(tmp_path, capfd):
    with pytest.raises(RuntimeError), record(str(tmp_path / "run.msc")):
        Model(too_large=True)
    found = load(str(tmp_path / "run.msc")).snapshot("oom").by_module()["cpu"]
    wanted = {"Model.embedding"}.union(*map(names_below, ("Model.blocks.0", "Model.blocks.1", "Block")))
    assert {fqn for fqn, sums in found.items() if sums["Parameter"]} == wanted
    assert all(sums["Parameter"] + sums["Buffer"] == sums["Total"] for sums in found.values())


@every_source
def test_a_model_that_is_called_later_has_the_same_names(source):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    with MemTracker(source) as mt:
        net = Net()
        before = own(mt, "Parameter")
        net(torch.ones(2, 4)).sum().backward()
        assert own(mt, "Parameter") == before == {"Net.layers.0": 80, "Net.layers.1": 80}
        assert own(mt, "Gradient") == before


@every_source
def test_two_models_that_were_built_and_not_called_are_told_apart(source):
    with MemTracker(source) as mt:
        first, second = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 8))
        assert (
            own(mt, "Parameter")
            == {"first.0": 80, "second.0": 160}
            == {"first.0": parameter_bytes(first), "second.0": parameter_bytes(second)}
        )


@needs_interception
def test_what_is_replaced_is_no_parameter_any_more():
    with MemTracker("allocator") as mt:
        layer = nn.Linear(4, 4, bias=False)
        kept = layer.weight
        layer.weight = nn.Parameter(torch.ones(2, 4))
        assert own(mt, "Parameter") == {"Linear": 32}
        assert sum(own(mt, "Other").values()) == 64
    del kept


@every_source
def test_a_shared_module_and_a_module_that_holds_itself_twice(source):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Linear(4, 4)
            self.right = self.left
            self.both = nn.ModuleList([self.left, self.right])

    with MemTracker(source) as mt:
        twice = Twice()
        assert own(mt, "Parameter") == {"Twice.left": 80}
    del twice


@every_source
def test_a_module_that_is_moved_has_the_name_of_its_new_holder(source):
    with MemTracker(source) as mt:
        old, new = nn.ModuleDict({"layer": nn.Linear(4, 4)}), nn.Module()
        layer = old.pop("layer")
        new.moved = layer
        assert own(mt, "Parameter") == {"Module.moved": 80}


@pytest.mark.skipif(torch.cuda.is_available(), reason="DataParallel moves the model to the GPU")
@every_source
def test_a_copy_in_a_wrapper_belongs_to_the_wrapper_and_the_original_to_itself(source):
    model = nn.Sequential(nn.Linear(4, 4))
    with MemTracker(source) as mt:
        ema = torch.optim.swa_utils.AveragedModel(model)
        wrapped = nn.DataParallel(model)
        model(torch.ones(2, 4))
        assert own(mt, "Parameter") == {"Sequential.0": 80, "AveragedModel.module.0": 80}
    del ema, wrapped


@every_source
def test_containers_in_a_circle_can_be_built(source):
    with MemTracker(source) as mt:
        outer, inner = nn.ModuleList(), nn.ModuleList()
        outer.append(inner)
        inner.append(outer)
        inner.append(nn.Linear(4, 4))
        assert sum(own(mt, "Parameter").values()) == parameter_bytes(outer)


@needs_interception  # else claimed at the next reading
def test_what_a_module_registers_after_its_call_has_the_path_of_the_call():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

    with MemTracker("allocator") as mt:
        net = Net()
        net.inner(torch.ones(1, 4))
        net.inner.register_parameter("extra", nn.Parameter(torch.ones(100)))
        rows = ledger_of(mt).modules()
        assert [sums[0] for _, fqn, sums in rows if fqn == "Net.inner"] == [parameter_bytes(net)]


def test_modules_in_a_circle_can_be_built():
    with MemTracker() as mt:
        first, second = nn.Module(), nn.Module()
        first.weight, second.weight = nn.Parameter(torch.ones(10)), nn.Parameter(torch.ones(10))
        first.other, second.other = second, first
        assert sum(own(mt, "Parameter").values()) == 80
        first.other = None


def test_a_long_chain_of_modules_can_be_built():
    model: nn.Module = nn.Linear(1, 1)
    with MemTracker() as mt:
        for _ in range(500):
            model = nn.Sequential(model)
            model.weight = nn.Parameter(torch.ones(1))
        assert sum(own(mt, "Parameter").values()) >= 2000


def test_the_hooks_are_removed_and_hold_nothing(torch_as_found):
    with MemTracker():
        model = Model()
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
        with MemTracker():
            Model()


def test_a_users_own_hook_still_replaces_the_parameter():
    from torch.nn.modules.module import register_module_parameter_registration_hook

    def halve(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(parameter[:2].detach().clone())

    handle = register_module_parameter_registration_hook(halve)
    try:
        with MemTracker() as mt:
            layer = nn.Linear(4, 4, bias=False)
            assert layer.weight.shape == (2, 4)
            assert own(mt, "Parameter") == {"Linear": 32}
    finally:
        handle.remove()


@every_source
def test_copies_and_the_meta_device_and_lazy_modules(source):
    with MemTracker(source) as mt:
        with torch.device("meta"):
            meta = Model()
        assert now(mt) == 0
        lazy = nn.Sequential(nn.LazyLinear(4))
        copied = copy.deepcopy(lazy)
        model = meta.to_empty(device="cpu")
        assert sum(own(mt, "Parameter").values()) == parameter_bytes(model)
        copied(torch.ones(2, 3))
        assert sum(own(mt, "Parameter").values()) == parameter_bytes(model, copied)


def test_a_model_of_fake_tensors():
    with FakeTensorMode(), MemTracker() as mt:
        model = Model()
        assert sum(own(mt, "Parameter").values()) == parameter_bytes(model)


@needs_interception  # the fallback's global hooks break graphs in any case
def test_a_compiled_function_that_builds_a_module_is_compiled_as_before():
    def build(x: torch.Tensor) -> torch.Tensor:
        layer = nn.Linear(4, 4, bias=False)
        layer.weight.data.fill_(1)
        return layer(x)

    def run() -> "tuple[list[int], torch.Tensor]":
        torch._dynamo.reset()
        graphs: list[int] = []

        def count(graph: torch.fx.GraphModule, inputs: object) -> object:
            graphs.append(len(graph.graph.nodes))
            return graph.forward

        result = torch.compile(build, backend=count)(torch.ones(2, 4))
        return graphs, result.detach()

    graphs, result = run()
    with MemTracker():
        tracked, same = run()
    assert tracked == graphs
    assert torch.equal(result, same)
