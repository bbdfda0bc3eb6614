"""On a GPU autograd runs nodes in threads of its own. The answers are the same there."""

import threading

import pytest
from helpers import NOWHERE, Events, assert_paired, at, leaf, look, make, mlp, on_grad, pair
from modscope import ModTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def grad_input():
    return torch.randn(3, 4, device="cuda", requires_grad=True)


def double(t, log):
    return leaf(lambda m, x: on_grad(t, log, x * 2))


BACK = [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")]


def test_nodes_on_the_device_thread(t):
    log, threads = [], []
    loss = pair(double(t, log), double(t, log))(grad_input()).sum()
    loss.register_hook(lambda g: threads.append(threading.get_ident()))
    loss.backward()
    assert log == BACK
    assert threads != [threading.get_ident()], "not on a thread of its own: this test tests nothing"
    assert look(t) == NOWHERE


def test_the_calling_thread_waits_elsewhere(t):
    """While the device thread runs a node, this thread runs a forward."""
    log = []
    inner = pair(double(t, log), leaf())

    def body(m, x):
        log.append(look(t))
        inner(grad_input()).sum().backward()
        log.append(look(t))
        return x

    make("Top", body)(1)
    assert log[0] == log[2] == at("forward", "Top")
    assert log[1].current == "Mod.a" and {"Global", "Mod", "Mod.a"} <= log[1].parents
    assert log[1].is_bw and log[1].phase == "backward"


def test_parameters_are_in_their_owner(t):
    log = []
    mod = pair(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
    mod.a.weight.register_post_accumulate_grad_hook(lambda p: log.append(look(t)))
    on_grad(t, log, mod.b.weight)
    mod(grad_input()).sum().backward()
    assert set(log) == set(BACK)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute_on_the_device_thread(t, reentrant):
    log = []
    mod = make(
        "Mod",
        lambda m, x: checkpoint(lambda x: m.b(m.a(x)), x, use_reentrant=reentrant),
        a=leaf(lambda m, x: log.append(look(t)) or x.sin()),
        b=leaf(lambda m, x: log.append(look(t)) or x.sin()),
    )
    for _ in range(2):
        log.clear()
        mod(grad_input()).sum().backward()
        assert log[2:] == [at("recompute", "Mod", "Mod.a"), at("recompute", "Mod", "Mod.b")]
        assert look(t) == NOWHERE


def test_an_exception_on_the_device_thread(t):
    log = []

    def body(m, x):
        y = x * 2
        y.register_hook(lambda g: 1 / 0)
        return y

    with pytest.raises(ZeroDivisionError):
        pair(leaf(body), leaf())(grad_input()).sum().backward()
    assert look(t) == NOWHERE
    pair(double(t, log), double(t, log))(grad_input()).sum().backward()
    assert log == BACK


def test_backwards_of_several_threads(t):
    wrong = []

    def work(i):
        log = []
        mod = make(f"Mod{i}", lambda m, x: m.a(x), a=double(t, log))
        for _ in range(20):
            mod(grad_input()).sum().backward()
        if log != [at("backward", f"Mod{i}", f"Mod{i}.a")] * 20:
            wrong.append((i, log))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert wrong == []


def test_both_devices_in_one_graph(t):
    log = []
    cpu = leaf(lambda m, x: on_grad(t, log, x.cpu().sin()))
    gpu = leaf(lambda m, x: on_grad(t, log, x.cuda().cos()))
    pair(gpu, cpu)(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert log == BACK


def test_several_streams(t):
    log = []
    mod = pair(double(t, log), double(t, log))
    streams = [torch.cuda.Stream() for _ in range(3)]
    losses = []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            losses.append(mod(grad_input()).sum())
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    for loss in losses:
        loss.backward()
    assert log == BACK * 3


@pytest.mark.parametrize("hooks", [False, True])
def test_results_are_the_same_to_the_bit(hooks):
    def train(t):
        torch.manual_seed(0)
        mod = mlp(3, 16).cuda()
        opt = torch.optim.AdamW(mod.parameters())
        for _ in range(3):
            x = torch.randn(8, 16, device="cuda", requires_grad=True)
            if t is None:
                checkpoint(mod, x, use_reentrant=False).square().sum().backward()
                opt.step()
            else:
                with t:
                    checkpoint(mod, x, use_reentrant=False).square().sum().backward()
                    opt.step()
            opt.zero_grad()
        return [p.detach() for p in mod.parameters()]

    t = ModTracker()
    if hooks:
        Events(t).register()
    assert all(torch.equal(a, b) for a, b in zip(train(None), train(t)))


def test_hooks_on_the_device_thread(mt):
    events = Events(mt).register()
    mod = pair(nn.Linear(4, 4), nn.Identity()).cuda()
    x = grad_input()
    for _ in range(3):
        events.clear()
        mod(x).sum().backward()
        assert_paired(events)
        assert events.count("pre_bw") == 3
        assert all(inside for _, _, inside, _ in events.log)


def test_memory_on_the_device_does_not_grow(mt):
    Events(mt)
    mod, x = mlp(2, 16).cuda(), torch.randn(8, 16, device="cuda", requires_grad=True)

    def step():
        mod(x).sum().backward()
        mod.zero_grad()
        x.grad = None

    for _ in range(5):
        step()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        step()
    assert torch.cuda.memory_allocated() == before
