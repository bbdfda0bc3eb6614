"""A network so small that every figure can be worked out on paper.

batch 32 x 8 --a--> 32 x 16 --b--> 32 x 16 --c--> 32 x 4      (float32: 4 bytes)

x   1024 bytes    given to track_external: Other
h   2048          a's output; nobody needs it once b has run
r   2048          b's output; relu keeps it for its gradient, and so does c
y    512          c's output; the caller keeps it
a   weight 512, bias 64;   c   weight 256, bias 16;   together 848"""

import pytest
from helpers import make
from memory_helpers import every_source, nonzero, of_module, reading
from modscope import MemTracker

import torch
from torch import nn

X, H, R, Y = 1024, 2048, 2048, 512
A, C = 512 + 64, 256 + 16
P = A + C


class Scene:
    """The network, its input, and a tracker that was given both; what is held inside is written down."""

    def __init__(self, source):
        self.log = {}
        self.mod = make("Net", self.forward, a=nn.Linear(8, 16), b=nn.ReLU(), c=nn.Linear(16, 4))
        self.x = torch.randn(32, 8)
        self.gradient = torch.ones(32, 4)
        self.mt = MemTracker(source)
        self.mt.track_external(self.mod, self.x, self.gradient)

    def note(self, when):
        self.log[when] = nonzero(reading(self.mt))

    def forward(self, m, x):
        self.note("begin")
        h = m.a(x)
        self.note("after a")
        r = m.b(h)
        self.note("after b")
        del h
        self.note("h is gone")
        y = m.c(r)
        self.note("after c")
        return y


def figures(**categories):
    known = {"Parameter": P, "Other": X + Y}  # the gradient given to backward is as large as y
    found = {**known, **{key: value for key, value in categories.items() if value}}
    return {**found, "Total": sum(found.values())}


@every_source
def test_forward_at_each_point(source):
    s = Scene(source)
    with s.mt:
        y = s.mod(s.x)
        s.note("returned")
        del y
        s.note("dropped")
    assert s.log == {
        "begin": figures(),
        "after a": figures(Activation=H),
        "after b": figures(Activation=H + R),
        "h is gone": figures(Activation=R),
        "after c": figures(Activation=R + Y),
        "returned": figures(Activation=R + Y),
        "dropped": figures(),
    }


@every_source
def test_the_peak_of_forward(source):
    s = Scene(source)
    with s.mt:
        s.mod(s.x)
        assert nonzero(reading(s.mt, "peak")) == figures(Activation=H + R)
        assert nonzero(reading(s.mt)) == figures()


@every_source
def test_without_gradients_nothing_is_left(source):
    s = Scene(source)
    with s.mt, torch.no_grad():
        y = s.mod(s.x)
        s.note("returned")
    assert s.log["after c"] == figures(Activation=R + Y)
    assert s.log["returned"] == figures(Activation=Y)
    del y


@every_source
def test_who_holds_what_after_forward(source):
    s = Scene(source)
    with s.mt:
        y = s.mod(s.x)
        found = {fqn: nonzero(of_module(s.mt, fqn)) for fqn in ("Global", "Net", "Net.a", "Net.b", "Net.c")}
    assert found == {
        "Global": {"Other": X + Y, "Total": X + Y},
        "Net": {},
        "Net.a": {"Parameter": A, "Total": A},
        "Net.b": {"Activation": R, "Total": R},
        "Net.c": {"Parameter": C, "Activation": Y, "Total": C + Y},
    }
    del y


@every_source
def test_who_held_what_at_the_peak_of_forward(source):
    s = Scene(source)
    with s.mt:
        y = s.mod(s.x)
        found = {fqn: nonzero(of_module(s.mt, fqn, "peak")) for fqn in ("Net.a", "Net.b", "Net.c")}
    assert found == {
        "Net.a": {"Parameter": A, "Activation": H, "Total": A + H},
        "Net.b": {"Activation": R, "Total": R},
        "Net.c": {"Parameter": C, "Total": C},
    }
    del y


@every_source
def test_after_backward(source):
    """r was freed with the graph; the caller still holds y."""
    s = Scene(source)
    with s.mt:
        y = s.mod(s.x)
        y.backward(s.gradient)
        assert nonzero(reading(s.mt)) == figures(Activation=Y, Gradient=P)
        assert nonzero(of_module(s.mt, "Net.a")) == {"Parameter": A, "Gradient": A, "Total": 2 * A}
        assert nonzero(of_module(s.mt, "Net.c")) == {"Parameter": C, "Gradient": C, "Activation": Y, "Total": 2 * C + Y}


@every_source
def test_the_peak_of_backward(source):
    """When relu computes the gradient of h, the gradients of r and of c's parameters are held, and so is r."""
    s = Scene(source)
    with s.mt:
        y = s.mod(s.x)
        y.backward(s.gradient)
    assert nonzero(reading(s.mt, "peak")) == figures(Activation=R + Y, Gradient=C, Temp=R + H)
    assert nonzero(of_module(s.mt, "Net.b", "peak")) == {"Activation": R, "Temp": H, "Total": R + H}
    assert nonzero(of_module(s.mt, "Net.c", "peak")) == {
        "Parameter": C,
        "Gradient": C,
        "Activation": Y,
        "Temp": R,
        "Total": 2 * C + Y + R,
    }


@every_source
def test_a_gradient_that_nobody_keeps_is_temporary(source):
    """When the gradient of r is ready, c is done: its parameters have their gradients."""
    s = Scene(source)
    with s.mt:
        leaf = torch.randn(32, 16, requires_grad=True)
        r = leaf.clone()
        r.register_hook(lambda grad: s.note("gradient of r"))
        y = s.mod.c(r)
        y.backward(s.gradient)
    # The leaf and r are made outside modules.
    assert s.log["gradient of r"] == figures(Other=X + Y + R + R, Activation=Y, Gradient=C, Temp=R)


@every_source
def test_adam(source):
    """Two moments as large as the parameters, and for each of four parameters a step count of 4 bytes."""
    s = Scene(source)
    opt = torch.optim.Adam(s.mod.parameters())
    with s.mt:
        s.mod(s.x).backward(s.gradient)
        opt.step()
        assert nonzero(reading(s.mt)) == figures(Gradient=P, Optstate=2 * P + 16)
        assert nonzero(of_module(s.mt, "Net.a")) == {
            "Parameter": A,
            "Gradient": A,
            "Optstate": 2 * A + 8,
            "Total": 4 * A + 8,
        }
        opt.zero_grad()
        assert nonzero(reading(s.mt)) == figures(Optstate=2 * P + 16)


@every_source
def test_a_second_step_holds_what_the_first_did(source):
    s = Scene(source)
    opt = torch.optim.SGD(s.mod.parameters(), lr=0.1, momentum=0.9)
    with s.mt:
        for _ in range(3):
            s.mod(s.x).backward(s.gradient)
            assert reading(s.mt)["Gradient"] == P
            opt.step()
            assert nonzero(reading(s.mt)) == figures(Gradient=P, Optstate=P)
            opt.zero_grad()


@every_source
def test_a_batch_and_a_loss_made_outside_modules_are_other(source):
    with MemTracker(source) as mt:
        batch = torch.randn(32, 8)
        loss = (batch * 2).sum()
        assert nonzero(reading(mt)) == {"Other": X + 4, "Total": X + 4}
        assert nonzero(of_module(mt, "Global")) == {"Other": X + 4, "Total": X + 4}
    del loss


@every_source
@pytest.mark.parametrize("dtype, size", [(torch.float64, 8), (torch.bfloat16, 2)])
def test_bytes_follow_the_element_size(source, dtype, size):
    mod = nn.Linear(8, 16, dtype=dtype)
    x = torch.randn(32, 8, dtype=dtype)
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt:
        y = mod(x)
        assert nonzero(reading(mt)) == {
            "Parameter": size * (8 * 16 + 16),
            "Other": size * 32 * 8,
            "Activation": size * 32 * 16,
            "Total": size * (144 + 256 + 512),
        }
    del y
