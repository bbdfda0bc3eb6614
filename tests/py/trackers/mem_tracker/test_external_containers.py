"""track_external looks into containers of any kind, and ignores what in them is no module, optimizer or tensor."""

import collections
import dataclasses
import types

import pytest
from memory_helpers import every_source, nonzero, now, reading
from modscope import MemTracker

import torch
from torch import nn


class Batch(dict):
    pass


class Encoding(collections.UserDict):
    """As tokenizers return it."""


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    name: str = "sample"


class Point(collections.namedtuple("Point", "x name")):
    pass


CONTAINERS = [
    lambda x: {"x": x, "name": "batch", "count": 3},
    lambda x: collections.OrderedDict(name="batch", x=x),
    lambda x: collections.defaultdict(list, x=x, name="batch"),
    lambda x: Batch(x=x, name="batch", none=None),
    lambda x: Encoding({"x": x, "name": "batch"}),
    lambda x: types.MappingProxyType({"x": x, "name": "batch"}),
    lambda x: Sample(x),
    lambda x: Point(x, "point"),
    lambda x: [1, "two", (x, b"three"), [4.5]],
    lambda x: {"x", x},
    lambda x: collections.deque([x, "y"]),
    lambda x: {"deep": Batch(deeper=[Encoding({"x": (x, None)}), "end"])},
]


@pytest.mark.parametrize("make", CONTAINERS)
def test_a_tensor_beside_other_things_is_tracked(make):
    x = torch.empty(10)
    given = make(x)
    tracker = MemTracker()
    tracker.track_external(given)
    with tracker:
        assert nonzero(reading(tracker)) == {"Other": 40, "Total": 40}


def test_a_checkpoint():
    """As programs save it: state dicts, numbers and strings."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(4)).sum().backward()
    optimizer.step()
    saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "run"}
    tracker = MemTracker()
    tracker.track_external(saved)
    with tracker:
        assert now(tracker, "Other") == 80 + 2 * 80 + 2 * 4


@every_source
def test_a_state_dict_that_nobody_keeps(source):
    """Its tensors are gone when the tracker is entered, but the model still has their storages."""
    net = nn.Linear(4, 4)
    other = nn.Linear(2, 2)
    tracker = MemTracker(source)
    tracker.track_external(net.state_dict())
    tracker.track_external(other.state_dict())
    with tracker:
        assert nonzero(reading(tracker)) == {"Other": 80 + 24, "Total": 80 + 24}
        del other
        assert nonzero(reading(tracker)) == {"Other": 80, "Total": 80}


def test_a_tensor_that_nobody_keeps_is_not_kept():
    tracker = MemTracker()
    tracker.track_external({"x": torch.empty(10), "s": torch.empty(10).to_sparse()})
    with tracker:
        assert nonzero(reading(tracker)) == {}


def test_modules_and_optimizers_in_a_dict_subclass():
    net = nn.Linear(4, 4)
    tracker = MemTracker()
    tracker.track_external(Batch(net=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), name="x"))
    with tracker:
        assert nonzero(reading(tracker)) == {"Parameter": 80, "Total": 80}


@pytest.mark.parametrize("wrong", [{"a": "b"}, Batch(a=1), ["x", None], Encoding({"a": [1]}), {1}], ids=repr)
def test_a_container_without_anything_to_track_is_refused(wrong):
    with pytest.raises(TypeError, match=f"nothing to track in this object of type .*{type(wrong).__name__}"):
        MemTracker().track_external(torch.empty(3), wrong)
