"""track_external: what it takes, what each thing counts as, and what it does not keep alive."""

import collections
import dataclasses
import gc
import types
import weakref

import pytest
from helpers import mlp
from memory_helpers import bytes_of, every_source, held, held_by, nonzero, now, parameter_bytes, reading
from modscope import MemTracker

import torch
from torch import nn


def trained(**options):
    """A model with gradients and an optimizer with state, made before any tracker."""
    mod = mlp(2, 8)
    opt = torch.optim.Adam(mod.parameters(), **options)
    mod(torch.randn(3, 8)).sum().backward()
    opt.step()
    return mod, opt


@every_source
def test_a_module_brings_parameters_buffers_and_gradients(source):
    mod = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    mod(torch.randn(3, 4)).sum().backward()
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        assert nonzero(reading(mt)) == {
            "Parameter": 4 * (16 + 4 + 4 + 4),
            "Gradient": 4 * (16 + 4 + 4 + 4),
            "Buffer": 4 * (4 + 4) + 8,
            "Total": 112 + 112 + 40,
        }


@every_source
def test_an_optimizer_brings_its_state(source):
    mod, opt = trained()
    mt = MemTracker(source)
    mt.track_external(opt)
    with mt:
        assert now(mt, "Optstate") == 2 * parameter_bytes(mod) + 4 * len(list(mod.parameters()))
        assert now(mt, "Other") == now(mt, "Activation") == 0


@every_source
def test_a_tensor_is_other(source):
    batch = torch.randn(5, 3)
    mt = MemTracker(source)
    mt.track_external(batch)
    with mt:
        assert nonzero(reading(mt)) == {"Other": 60, "Total": 60}


@every_source
def test_containers_are_looked_into(source):
    mod, opt = trained()
    a, b, c = torch.empty(1), torch.empty(2), torch.empty(3)
    mt = MemTracker(source)
    mt.track_external([mod, {"opt": opt, "more": (a, [b, None])}], None, {"deep": {"deeper": [c]}})
    with mt:
        assert held(mt) == held_by([mod], [opt])
        assert now(mt, "Other") == 4 + 8 + 12


@every_source
def test_a_storage_counts_once(source):
    whole = torch.empty(100)
    mt = MemTracker(source)
    mt.track_external(whole, whole[10:], [whole.view(10, 10)], whole.t())
    mt.track_external(whole)
    with mt:
        assert nonzero(reading(mt)) == {"Other": 400, "Total": 400}


@every_source
def test_a_view_counts_as_its_whole_storage(source):
    """The bytes cannot be freed as long as the view lives."""
    view = torch.empty(100)[:1]
    mt = MemTracker(source)
    mt.track_external(view)
    with mt:
        assert now(mt, "Other") == 400


@every_source
def test_a_parameter_given_as_a_tensor_too_is_a_parameter(source):
    mod = nn.Linear(4, 4)
    mt = MemTracker(source)
    mt.track_external(mod.weight, mod, mod.bias)
    with mt:
        assert nonzero(reading(mt)) == {"Parameter": 80, "Total": 80}


@every_source
def test_nothing_is_nothing(source):
    mt = MemTracker(source)
    mt.track_external()
    mt.track_external(None, [], (), {}, [None])
    with mt:
        assert nonzero(reading(mt)) == {}


@every_source
def test_given_while_tracking(source):
    mod, opt = trained()
    batch = torch.empty(7)
    with MemTracker(source) as mt:
        assert now(mt) == 0
        mt.track_external(mod, opt, batch)
        assert held(mt) == held_by([mod], [opt])
        assert now(mt, "Other") == 28


@every_source
def test_what_nobody_gave_and_nobody_holds_is_not_counted(source):
    before = torch.empty(1000)
    with MemTracker(source) as mt:
        assert now(mt) == 0
        before.add_(1)
        assert now(mt) == 0


@every_source
def test_a_module_called_inside_is_known_from_then_on(source):
    mod, _ = trained()
    x = torch.randn(3, 8)
    with MemTracker(source) as mt, torch.no_grad():
        assert now(mt) == 0
        mod(x)
        assert held(mt) == held_by([mod])


@every_source
def test_an_optimizer_that_steps_inside_is_known_from_then_on(source):
    _, opt = trained()
    with MemTracker(source) as mt:
        assert now(mt, "Optstate") == 0
        opt.step()
        assert now(mt, "Optstate") == held_by([], [opt])["Optstate"] > 0


WRONG = [3, "model", b"", 1.5, object(), nn.Linear, {1, 2}, lambda: None, range(3)]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: type(w).__name__)
def test_anything_else_is_refused_with_its_type_named(wrong):
    mt = MemTracker()
    with pytest.raises(TypeError, match=type(wrong).__name__) as caught:
        mt.track_external(wrong)
    message = str(caught.value).lower()
    assert all(word in message for word in ("module", "optimizer", "tensor"))


@pytest.mark.parametrize("place", [lambda w: (w,), lambda w: ([{"a": [w]}],), lambda w: (None, (w, None))])
def test_of_a_refused_call_nothing_is_tracked(place):
    mod, opt = trained()
    mt = MemTracker()
    with pytest.raises(TypeError):
        mt.track_external(mod, [opt, torch.empty(5)], *place("no tensor"))
    with mt:
        assert nonzero(reading(mt)) == {}


def test_a_refused_call_leaves_what_was_given_before():
    mod, _ = trained()
    mt = MemTracker()
    mt.track_external(mod)
    with pytest.raises(TypeError):
        mt.track_external(torch.empty(5), 7)
    with mt:
        assert held(mt) == held_by([mod]) and now(mt, "Other") == 0


@every_source
def test_what_was_given_is_not_kept_alive(source):
    mod, opt = trained()
    batch = torch.empty(9)
    dead = [weakref.ref(mod), weakref.ref(opt), weakref.ref(batch)]
    mt = MemTracker(source)
    mt.track_external(mod, [opt], {"x": batch})
    with mt:
        assert now(mt) == bytes_of(list(mod.parameters()), [p.grad for p in mod.parameters()], dict(opt.state), batch)
        del mod, opt, batch
        gc.collect()
        assert [ref() for ref in dead] == [None] * 3
        assert nonzero(reading(mt)) == {}


@every_source
def test_given_and_dead_before_entering(source):
    mod, opt = trained()
    mt = MemTracker(source)
    mt.track_external(mod, opt, torch.empty(9))
    del mod, opt
    gc.collect()
    with mt:
        assert nonzero(reading(mt)) == {}


@every_source
def test_a_container_given_may_change_afterwards(source):
    """What counts is what was in it then."""
    batch = [torch.empty(2)]
    mt = MemTracker(source)
    mt.track_external(batch)
    other = torch.empty(50)
    batch.append(other)
    with mt:
        assert now(mt, "Other") == 8


def test_a_container_that_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises((TypeError, ValueError, RecursionError)):
        MemTracker().track_external(endless)


# ---- containers of any kind ----


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
