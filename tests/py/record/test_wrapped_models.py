"""Captures show what a wrapper holds by the wrapper's name; the answers of torch's trackers have torch's names."""

import modscope
import pytest
from helpers import INTERCEPTION

import torch
from torch import nn

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="names are the same, but captures need interception")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


class Fabric(nn.Module):
    """As lightning's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._forward_module = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward_module(x)


Fabric.__module__, Fabric.__name__ = "lightning.fabric.wrappers", "_FabricModule"  # the class's tp_name, too


class Tuner(nn.Module):
    """As PEFT's, which calls forward itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model.forward(x)


Tuner.__module__ = "peft.tuners.lora.model"


class Peft(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = Tuner(model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_model(x)


Peft.__module__ = "peft.peft_model"


class Own(nn.Module):
    """A class of the program's: what it calls module is no wrapper's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def modules_at_peak(tmp_path, wrap) -> set[str]:
    """Record a model while it is built and trained."""
    with modscope.record(tmp_path / "run.msc"):
        model = wrap(Net())
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
    capture = modscope.load(tmp_path / "run.msc")
    names = set(capture.snapshot("peak").by_module()["cpu"])
    keys = {"module", "_orig_mod", "_forward_module", "base_model", "model"}
    assert wrap is Own or not any(keys & set(name.split(".")) for name in names), names
    return names


@pytest.mark.parametrize(
    ("wrap", "root"),
    [
        (nn.DataParallel, "DataParallel"),
        (Fabric, "_FabricModule"),
        (lambda net: Fabric(nn.DataParallel(net)), "_FabricModule"),
        (Peft, "Peft"),
        (lambda net: torch.compile(net, backend="eager"), "OptimizedModule"),
        (Own, "Own.module"),
    ],
)
def test_names_leave_out_what_wrappers_call_their_models(tmp_path, wrap, root):
    found = modules_at_peak(tmp_path, wrap)
    assert {f"{root}.first", f"{root}.rest.0"} <= found


def test_trackers_answer_with_the_names_of_torch():
    model = nn.DataParallel(Net())
    with modscope.MemTracker() as tracker:
        tracker.track_external(model)
        model(torch.ones(8, 64)).sum().backward()
    names = {stats.mod_fqn for stats in tracker.memory_tracking.values()}
    assert {"DataParallel", "DataParallel.module", "DataParallel.module.first"} <= names
