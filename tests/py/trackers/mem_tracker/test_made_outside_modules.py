"""What is made outside modules is Other, unless autograd keeps it. The inputs of a root call belong to
ROOT.(inputs)."""

import gc

import modscope
import numpy as np
import pytest
from helpers import needs_interception
from memory_helpers import CPU, every_source, nonzero
from modscope import Category, MemTracker, ModTracker, load, record
from torch.nn import functional as F

import torch
from torch import nn

SIZE = 8 * 64 * 4


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh())


def held(mt, module="Global"):
    return {str(k): v for k, v in nonzero(mt.get_module_snapshot()[CPU].get(module, {})).items() if k != "Total"}


@every_source
def test_data_copies_of_parameters_and_metrics_are_other(source):
    model = net()
    with MemTracker(source) as mt:
        kept = [torch.zeros(1000), {name: value.clone() for name, value in model.state_dict().items()}]
        assert held(mt) == {"Other": 4000 + sum(value.nbytes for value in kept[1].values())}


@needs_interception
@pytest.mark.parametrize("source", ["allocator", "dispatcher"])
def test_what_autograd_saves_is_activation(source):
    with MemTracker(source) as mt:
        leaf = torch.ones(8, 64, requires_grad=True)
        data = torch.ones(8, 64)
        assert held(mt) == {"Other": 2 * SIZE}
        product = leaf * data  # saves data for the gradient of leaf, and not leaf
        assert held(mt) == {"Activation": SIZE, "Other": 2 * SIZE}
        assert mt.get_tracker_snapshot("peak")[CPU][Category.ACT] == SIZE  # retroactively
        exponential = product.exp()  # saves its result
        assert held(mt) == {"Activation": 2 * SIZE, "Other": 2 * SIZE}
        del exponential


@needs_interception
def test_what_a_custom_function_saves_is_activation():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, data):
            ctx.save_for_backward(data)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    with MemTracker() as mt:
        leaf, data = torch.ones(8, 64, requires_grad=True), torch.ones(8, 64)
        result = Double.apply(leaf, data)
        assert held(mt) == {"Activation": SIZE, "Other": 2 * SIZE}
        del result


@needs_interception
def test_the_loss_outside_modules_saves_activations():
    model = net()
    with MemTracker() as mt:
        labels = torch.zeros(8, dtype=torch.long)
        loss = F.cross_entropy(model(torch.ones(8, 64)), labels)
        found = held(mt)
        assert found["Activation"] >= SIZE + labels.nbytes and found["Other"] == 4
        del loss


@every_source
def test_what_a_forward_returns_stays_an_activation(source):
    model = net()
    with MemTracker(source) as mt, torch.no_grad():
        out = model(torch.ones(8, 64))
        assert held(mt, "Sequential.1") == {"Activation": SIZE} and held(mt) == {}
        del out


@every_source
@pytest.mark.parametrize("given", ["positional", "named", "in a list", "in a dict"])
def test_inputs_belong_to_the_root(source, given):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x):
            x = x[0] if isinstance(x, list) else x["x"] if isinstance(x, dict) else x
            return self.inner(x)

    model = Net()
    tracker = ModTracker()
    with MemTracker(source) as mt, tracker:
        batch = torch.ones(8, 64)
        if given == "named":
            model(x=batch)
        else:
            model({"positional": batch, "in a list": [batch], "in a dict": {"x": batch}}[given])
        assert held(mt, "Net.(inputs)") == {"Other": SIZE} and held(mt) == {}
        names = {stats.mod_fqn for stats in mt.memory_tracking.values()}
        assert names == {"Net", "Net.inner"}
        assert tracker.get_known_fqn(model) == "Net" and tracker.parents == {"Global"}
        assert mt.get_module_snapshot(children=True)[CPU]["Net"]["Other"] == SIZE
        assert mt.get_module_snapshot("peak")[CPU]["Net.(inputs)"]["Other"] == SIZE  # retroactively


@every_source
def test_the_output_of_another_root_keeps_its_owner(source):
    generator, discriminator = nn.Linear(64, 64), nn.Tanh()
    with MemTracker(source) as mt:
        made = generator(torch.ones(8, 64))
        discriminator(made)
        assert held(mt, "Linear")["Activation"] == SIZE
        assert held(mt, "Tanh.(inputs)") == {}


@needs_interception
def test_captures_show_inputs_since_they_were_made(tmp_path):
    model = net()
    with record(tmp_path / "x.msc"):
        batch = torch.ones(8, 64)
        model(batch)
    capture = load(tmp_path / "x.msc")
    made = next(event for event in capture.events("add") if event.bytes == SIZE)
    found = capture.snapshot(made.number + 1).by_module()["cpu"]
    assert found["Sequential.(inputs)"]["Other"] == SIZE
    del batch


@needs_interception
def test_saved_tensors_are_verified_and_restored():
    from modscope import _native

    assert modscope.doctor()["saved"] == "verified"
    with MemTracker():
        assert _native.saved_intercepted()
    assert not _native.saved_intercepted()


# ---- memory from outside the allocators ----


def numpy_batch():
    return torch.from_numpy(np.zeros((8, 64), dtype=np.float32))


def shared_batch():
    return torch.zeros(8, 64).share_memory_()


@needs_interception
@pytest.mark.parametrize("make", [numpy_batch, shared_batch])
def test_inputs_from_outside_count_while_they_live(make):
    model = net()
    with MemTracker() as mt, torch.no_grad():
        kept = []
        for i in range(3):
            kept.append(make())
            model(kept[-1])
            assert held(mt, "Sequential.(inputs)") == {"Other": (i + 1) * SIZE}
            assert mt.outside[CPU]["Other"] == (i + 1) * SIZE
        del kept[1:]
        assert mt.outside[CPU]["Other"] == SIZE
        kept.clear()
        model(torch.ones(8, 64))
        assert mt.outside[CPU]["Total"] == 0 and held(mt, "Sequential.(inputs)") == {}


@needs_interception
def test_an_input_from_outside_is_not_kept_alive():
    class Array(np.ndarray):
        pass

    import weakref

    model = net()
    array = np.zeros((8, 64), dtype=np.float32).view(Array)
    alive = weakref.ref(array)
    with MemTracker() as mt, torch.no_grad():
        model(torch.from_numpy(array))
        del array
        gc.collect()
        assert alive() is None
        assert mt.outside[CPU]["Total"] == 0


@needs_interception
def test_leaks_reports_inputs_from_outside_that_are_kept(tmp_path):
    from modscope._read.leaks import find_leaks

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    with record(tmp_path / "x.msc"):
        for i in range(8):
            kept.append(numpy_batch())
            model(kept[-1]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    capture = load(tmp_path / "x.msc")
    assert capture.snapshot(capture.event_count - 1).outside["cpu"] == 8 * SIZE
    report = find_leaks("x.msc", capture)
    found = [group for group in report["groups"] if group["module"] == "Sequential.(inputs)"]
    assert len(found) == 1 and found[0]["category"] == "Other"
    assert found[0]["bytes"] == found[0]["outside"] >= 4 * SIZE


@needs_interception
def test_the_list_of_inputs_from_outside_is_bounded_and_survives_many():
    model = nn.Identity()
    with MemTracker() as mt:
        for _ in range(1000):
            model(numpy_batch())
        assert mt.outside[CPU]["Total"] == 0
        kept = [numpy_batch() for _ in range(700)]
        model(kept)
        assert mt.outside[CPU]["Other"] == 700 * SIZE
        kept.clear()
        assert mt.outside[CPU]["Total"] == 0
