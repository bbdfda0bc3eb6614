"""Backward hooks find a module's tensors in keyword arguments, in nested containers, in dataclasses and in types
registered with pytree."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
from helpers import Events, grad_input, leaf, make
from torch.utils import _pytree as pytree

import torch
from torch import nn

Point = namedtuple("Point", ["a", "b"])


@dataclass
class Record:
    x: Any
    other: Any = None


@dataclass(frozen=True)
class Frozen:
    x: Any


@dataclass
class Slotted:
    __slots__ = ("x",)
    x: Any


class Registered:
    def __init__(self, x: Any) -> None:
        self.hidden = x


pytree.register_pytree_node(Registered, lambda r: ([r.hidden], None), lambda xs, _: Registered(*xs))


class Output(OrderedDict):
    """As Hugging Face's ModelOutput: keys are attributes too, and indices work."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


@dataclass
class DataOutput(OrderedDict):
    """As Hugging Face's: a dataclass and an OrderedDict at once."""

    loss: Any = None
    x: Any = None

    def __post_init__(self) -> None:
        for name in ("loss", "x"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


def _registered(r: Registered) -> Any:
    return r.hidden


# how to wrap a tensor, and how to unwrap it
CONTAINERS = {
    "tensor": (lambda x: x, lambda c: c),
    "tuple": (lambda x: (x,), lambda c: c[0]),
    "list": (lambda x: [1, x], lambda c: c[1]),
    "dict": (lambda x: {"k": x}, lambda c: c["k"]),
    "defaultdict": (lambda x: defaultdict(list, k=x), lambda c: c["k"]),
    "nested": (lambda x: {"k": [None, {"l": ("s", [x])}]}, lambda c: c["k"][1]["l"][1][0]),
    "namedtuple": (lambda x: Point(1, x), lambda c: c.b),
    "dataclass": (Record, lambda c: c.x),
    "frozen dataclass": (Frozen, lambda c: c.x),
    "dataclass with slots": (Slotted, lambda c: c.x),
    "dataclass in a dataclass": (lambda x: Record(None, Record([x])), lambda c: c.other.x[0]),
    "list of dataclasses": (lambda x: [Record(x)], lambda c: c[0].x),
    "pytree": (Registered, _registered),
    "pytree in a dict": (lambda x: {"k": Registered(x)}, lambda c: c["k"].hidden),
    "model output": (lambda x: Output(loss=None, x=x), lambda c: c["x"]),
    "dataclass model output": (lambda x: DataOutput(x=x), lambda c: c.x),
    "structseq": (lambda x: torch.return_types.max((x, x.detach())), lambda c: c.values),
}
each_container = pytest.mark.parametrize("put,take", CONTAINERS.values(), ids=CONTAINERS.keys())


def events_of(mt, mod, call):
    """The backward events of `mod` alone; gradients that its post_bw got."""
    events = Events(mt).register("pre_bw", "post_bw")
    call(mod)
    grads = [rest[0] for kind, _, rest in events.args if kind == "post_bw"]
    return [kind for kind, _ in events.names()], grads


@each_container
def test_inputs(mt, put, take):
    x = grad_input() * 1
    mod = leaf(lambda m, c: take(c) * 2)
    kinds, grads = events_of(mt, mod, lambda m: m(put(x)).sum().backward())
    assert kinds == ["pre_bw", "post_bw"]
    assert len(grads[0]) == 1 and any(torch.equal(g, torch.full_like(x, 2)) for g in grads[0][0] if g is not None)


@each_container
def test_inputs_by_keyword(mt, put, take):
    x = grad_input() * 1
    mod = leaf(lambda m, flag, *, c: take(c) * 2)
    kinds, grads = events_of(mt, mod, lambda m: m(True, c=put(x)).sum().backward())
    assert kinds == ["pre_bw", "post_bw"]
    assert len(grads[0]) == 1 and any(torch.equal(g, torch.full_like(x, 2)) for g in grads[0][0] if g is not None)


@each_container
def test_outputs(mt, put, take):
    x = grad_input() * 1
    mod = leaf(lambda m, x: put(x * 2))
    kinds, grads = events_of(mt, mod, lambda m: take(m(x)).sum().backward())
    assert kinds == ["pre_bw", "post_bw"]
    assert torch.equal(grads[0][0][0], torch.full_like(x, 2))


@each_container
def test_through_a_chain(mt, put, take):
    """A module gets the same container object that the previous module returned."""
    mod = make(
        "Mod", lambda m, x: take(m.b(m.a(x))), a=leaf(lambda m, x: put(x * 2)), b=leaf(lambda m, c: put(take(c) * 3))
    )
    events = Events(mt).register("pre_bw", "post_bw")
    mod(grad_input() * 1).sum().backward()
    order = events.names()
    for fqn in ("Mod", "Mod.a", "Mod.b"):
        assert order.count(("pre_bw", fqn)) == order.count(("post_bw", fqn)) == 1
        assert order.index(("pre_bw", fqn)) < order.index(("post_bw", fqn))
    assert order.index(("pre_bw", "Mod.b")) < order.index(("post_bw", "Mod.b")) < order.index(("post_bw", "Mod.a"))
    assert order.index(("pre_bw", "Mod.b")) < order.index(("pre_bw", "Mod.a"))


@each_container
def test_passed_through_untouched(mt, put, take):
    x = grad_input() * 1
    kinds, _ = events_of(mt, nn.Identity(), lambda m: take(m(put(x))).sum().backward())
    assert kinds == ["pre_bw", "post_bw"]


def test_containers_are_given_to_hooks_as_they_are(mt):
    events = Events(mt).register("pre_fw", "post_fw")
    given = Record(grad_input())
    out = leaf(lambda m, c: {"k": c})(given)
    assert events.args[0][2][0][0] is given
    assert events.args[1][2][1] is out


def test_containers_without_tensors(mt):
    events = Events(mt).register()
    leaf(lambda m, *a, **k: [a, k])({}, [], None, k=Record(1))
    assert events.names() == [("pre_fw", "Leaf"), ("post_fw", "Leaf")]


def test_a_container_that_holds_itself(mt):
    events = Events(mt).register()
    loop: list[Any] = [grad_input()]
    loop.append(loop)
    leaf(lambda m, c: c[0] * 2)(loop).sum().backward()
    assert events.count("pre_bw") == 1
    loop.clear()


def test_tensors_that_cannot_require_grad(mt):
    events = Events(mt).register()
    leaf(lambda m, x, i: x[i])(grad_input() * 1, torch.tensor([0, 1])).sum().backward()
    assert [kind for kind, _ in events.names()] == ["pre_fw", "post_fw", "pre_bw", "post_bw"]


def test_parameters_and_subclasses_of_tensor_count(mt):
    class Mine(torch.Tensor):
        pass

    x = grad_input().detach().as_subclass(Mine).requires_grad_()
    kinds, grads = events_of(mt, leaf(), lambda m: m(x).sum().backward())
    assert kinds == ["pre_bw", "post_bw"] and len(grads[0][0]) == 1


def test_a_dataclass_with_an_unset_field(mt):
    @dataclass
    class Unset:
        x: Any
        later: Any = field(init=False)

    kinds, _ = events_of(mt, leaf(lambda m, c: c.x * 2), lambda m: m(Unset(grad_input() * 1)).sum().backward())
    assert kinds == ["pre_bw", "post_bw"]


def test_a_container_that_cannot_be_opened(mt):
    """If a container that only modscope inspects raises, the program is not affected."""

    class Shut:
        def __init__(self, x: Any) -> None:
            self.x = x

    def refuse(shut: Shut) -> Any:
        raise ValueError("shut")

    pytree.register_pytree_node(Shut, refuse, lambda xs, _: Shut(*xs))
    kinds, _ = events_of(mt, leaf(lambda m, c: c.x * 2), lambda m: m(Shut(grad_input() * 1)).sum().backward())
    assert kinds == ["pre_bw", "post_bw"]
