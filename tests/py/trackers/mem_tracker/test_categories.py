"""Parameter, Buffer and Gradient are what the objects themselves hold, each storage counted once, however they got
it and whenever they drop it."""

import pytest
from helpers import make, mlp
from memory_helpers import (
    at_peak,
    bytes_of,
    every_source,
    gradient_bytes,
    held,
    held_by,
    nonzero,
    now,
    of_module,
    parameter_bytes,
    reading,
    state_bytes,
    tracker_of,
    wrong_sums,
)
from modscope import MemTracker

import torch
from torch import nn

# ---- gradients ----


@every_source
def test_accumulating_over_two_backwards(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    with tracker_of(source, mod, x) as mt:
        mod(x).sum().backward()
        once = reading(mt)
        mod(x).sum().backward()
        assert reading(mt) == once
        assert once["Gradient"] == gradient_bytes(mod) == parameter_bytes(mod)
        assert once["Temp"] == once["Activation"] == 0


@every_source
def test_a_retained_graph_holds_its_activations_until_it_goes(source):
    mod, x = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid()), torch.randn(4, 8)
    with tracker_of(source, mod, x) as mt:
        loss = mod(x).sum()
        before = now(mt, "Activation")
        assert before == 4 * 16 * 4  # the sigmoid keeps what it returned
        for _ in range(3):
            loss.backward(retain_graph=True)
            assert now(mt, "Activation") == before
            assert now(mt, "Gradient") == parameter_bytes(mod)
        loss.backward()
        assert now(mt, "Activation") == 0 and now(mt, "Other") == x.nbytes + 4  # the loss is made outside modules
        assert now(mt, "Temp") == 0


@every_source
@pytest.mark.parametrize("way", ["none", "zeros"])
def test_zero_grad(source, way):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1)
    with tracker_of(source, mod, x) as mt:
        mod(x).sum().backward()
        opt.zero_grad(set_to_none=way == "none")
        assert now(mt, "Gradient") == gradient_bytes(mod) == (0 if way == "none" else parameter_bytes(mod))
        assert now(mt, "Other") == bytes_of(x)


@every_source
def test_a_gradient_that_its_parameter_dropped_but_something_else_holds_is_other(source):
    mod = nn.Linear(8, 8, bias=False)
    with tracker_of(source, mod) as mt:
        mod(torch.randn(4, 8)).sum().backward()
        kept = mod.weight.grad
        assert now(mt, "Gradient") == 256 and now(mt, "Other") == 0
        mod.weight.grad = None
        assert now(mt, "Gradient") == 0 and now(mt, "Other") == 256
        mod.weight.grad = kept
        assert now(mt, "Gradient") == 256 and now(mt, "Other") == 0
        mod.weight.grad = kept = None
        assert now(mt) == parameter_bytes(mod)


@every_source
def test_a_gradient_put_there_by_hand(source):
    mod = nn.Linear(8, 8)
    with tracker_of(source, mod) as mt:
        mod.weight.grad = torch.zeros(8, 8)
        assert now(mt, "Gradient") == 256 and now(mt, "Activation") == 0


@every_source
def test_the_gradient_of_what_is_no_parameter_is_not_counted_as_one(source):
    mod, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    with tracker_of(source, mod, x) as mt:
        mod(x).sum().backward()
        assert now(mt, "Gradient") == parameter_bytes(mod)
        assert now(mt) == 2 * parameter_bytes(mod) + bytes_of(x, x.grad)


@every_source
def test_gradients_that_only_autograd_grad_gives_are_temporary(source):
    mod, x = nn.Linear(8, 8), torch.randn(4, 8)
    with tracker_of(source, mod, x) as mt:
        grads = torch.autograd.grad(mod(x).sum(), list(mod.parameters()))
        assert now(mt, "Gradient") == 0
        assert now(mt, "Temp") == bytes_of(*grads) == parameter_bytes(mod)


@every_source
def test_frozen_parameters_have_no_gradient(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    mod[0].requires_grad_(False)
    with tracker_of(source, mod, x) as mt:
        mod(x).sum().backward()
        assert now(mt, "Gradient") == parameter_bytes(mod[2])
        assert nonzero(of_module(mt, "Sequential.0")) == {"Parameter": 288, "Total": 288}


@every_source
def test_sparse_gradients(source):
    """Indices of 8 bytes and rows of 16."""
    mod = nn.Embedding(100, 4, sparse=True)
    with tracker_of(source, mod) as mt:
        mod(torch.tensor([1, 5, 7])).sum().backward()
        grad = mod.weight.grad
        assert now(mt, "Gradient") == bytes_of(grad._indices(), grad._values()) == 3 * 8 + 3 * 16


# ---- parameters and buffers ----


@every_source
def test_shared_parameters_count_once(source):
    table = nn.Embedding(10, 8)
    head = nn.Linear(8, 10, bias=False)
    head.weight = table.weight
    mod = make("Tied", lambda m, i: m.head(m.table(i)), table=table, head=head)
    with tracker_of(source, mod) as mt:
        mod(torch.tensor([1, 2])).sum().backward()
        assert now(mt, "Parameter") == now(mt, "Gradient") == 320
        assert mt.memory_tracking[mod].parameter_mem == 320
        assert mt.memory_tracking[head].parameter_mem == mt.memory_tracking[table].parameter_mem == 320
        assert wrong_sums(mt) == []


@every_source
def test_parameters_that_are_views_of_one_storage(source):
    whole = torch.zeros(100)
    mod = make("Flat", lambda m, x: x * m.a.sum() * m.b.sum())
    mod.a, mod.b = nn.Parameter(whole[:10]), nn.Parameter(whole[10:30])
    with tracker_of(source, mod) as mt:
        mod(torch.ones(1))
        assert now(mt, "Parameter") == 400
        assert mt.memory_tracking[mod].parameter_mem == 400


@every_source
def test_batch_norm_has_buffers(source):
    mod = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    opt = torch.optim.SGD(mod.parameters(), lr=0.1, momentum=0.9)
    with tracker_of(source, mod, opt) as mt:
        for _ in range(2):
            mod(torch.randn(2, 3, 8, 8)).sum().backward()
            opt.step()
        assert now(mt, "Buffer") == 4 * (8 + 8) + 8
        assert held(mt) == held_by([mod], [opt])
        assert nonzero(of_module(mt, "Sequential.1"))["Buffer"] == 72


@every_source
def test_parameters_made_inside(source):
    """They are Parameters as soon as a module holds them."""
    with MemTracker(source) as mt:
        mod = nn.Linear(8, 8)
        assert now(mt, "Parameter") == 288 and now(mt, "Other") == 0
        mod(torch.randn(4, 8)).sum().backward()
        assert held(mt) == held_by([mod]) and now(mt, "Activation") == 0


@every_source
def test_a_parameter_replaced_by_another(source):
    mod = nn.Linear(8, 8, bias=False)
    with tracker_of(source, mod) as mt:
        old = mod.weight
        mod.weight = nn.Parameter(torch.zeros(8, 16))
        assert now(mt, "Parameter") == 512
        assert now(mt, "Other") == 256
        del old
        assert now(mt, "Other") == 0


@every_source
def test_a_model_changes_its_type(source):
    mod = mlp(2, 8)
    size = parameter_bytes(mod)
    with tracker_of(source, mod) as mt:
        mod.bfloat16()
        assert nonzero(reading(mt)) == {"Parameter": size // 2, "Total": size // 2}
        mod.double()
        assert nonzero(reading(mt)) == {"Parameter": size * 2, "Total": size * 2}


@every_source
def test_a_lazy_module(source):
    mod = nn.LazyLinear(8)
    with tracker_of(source, mod) as mt:
        mod(torch.randn(4, 16)).sum().backward()
        assert now(mt, "Parameter") == now(mt, "Gradient") == 4 * (8 * 16 + 8)


@every_source
def test_parametrized_weights(source):
    mod = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    x = torch.randn(4, 8)
    with tracker_of(source, mod, x) as mt:
        mod(x).sum().backward()
        assert held(mt) == held_by([mod])
        assert now(mt, "Parameter") == 4 * (64 + 8 + 8)


# ---- the peak ----


@every_source
def test_the_peak_says_what_became_of_its_blocks(source):
    """The peak is reached when the last gradient is allocated, before it is claimed as a gradient."""
    mod, x = nn.Linear(64, 64, bias=False), torch.randn(1, 64)
    with tracker_of(source, mod, x) as mt:
        mod(x).sum().backward()
        assert at_peak(mt, "Gradient") == at_peak(mt, "Parameter") == parameter_bytes(mod)


@every_source
def test_the_peak_in_the_first_step_knows_optimizer_state(source):
    mod, x = nn.Linear(64, 64, bias=False), torch.randn(1, 64)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1, momentum=0.9)
    with tracker_of(source, mod, x) as mt:
        mod(x).sum().backward()
        opt.step()
        assert at_peak(mt, "Optstate") == state_bytes(opt) == parameter_bytes(mod)
