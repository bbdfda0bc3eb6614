"""A process that forks while it is tracked: nothing crashes or hangs, and both processes stay right."""

import os
import threading

import pytest
from helpers import NOWHERE, at, grad_input, in_child, leaf, look, make, on_grad, pair
from torch.utils.data import DataLoader, Dataset

import torch
from torch import nn

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def walk(loss):
    """Whether torch allows a backward here: not in a child, once device threads were started."""
    try:
        loss.backward()
    except RuntimeError as error:
        assert "Autograd-and-Fork" in str(error)
        return False
    return True


def right(t):
    log = []

    def body(m, x):
        log.append(look(t))
        return on_grad(t, log, x * 2)

    walked = walk(make("Mod", lambda m, x: m.a(x), a=leaf(body))(grad_input()).sum())
    assert [r.current for r in log] == ["Mod.a"] * (1 + walked)
    assert [r.phase for r in log] == ["forward", "backward"][: 1 + walked]


def test_between_calls(t):
    right(t)

    def child():
        assert look(t) == NOWHERE
        right(t)

    in_child(child)
    right(t)


def test_inside_a_forward(t):
    seen = []

    def body(m, x):
        def child():
            assert look(t) == at("forward", "Top", "Top.a")
            right(t)
            assert look(t) == at("forward", "Top", "Top.a")

        in_child(child)
        seen.append(look(t))
        return x

    make("Top", lambda m, x: m.a(x), a=leaf(body))(1)
    assert seen == [at("forward", "Top", "Top.a")]
    right(t)


def test_inside_a_backward(t):
    seen = []

    def fork(grad):
        in_child(lambda: check(look(t)))
        seen.append(look(t))

    def check(reading):
        assert reading == at("backward", "Mod", "Mod.a")

    def body(m, x):
        y = x * 2
        y.register_hook(fork)
        return y

    pair(leaf(body), leaf())(grad_input()).sum().backward()
    assert seen == [at("backward", "Mod", "Mod.a")]
    right(t)


def test_a_child_walks_its_parents_graph(t):
    log = []
    loss = pair(leaf(lambda m, x: on_grad(t, log, x * 2)), leaf())(grad_input()).sum()

    def child():
        assert not walk(loss) or log == [at("backward", "Mod", "Mod.a")]

    in_child(child)
    loss.backward()
    assert log == [at("backward", "Mod", "Mod.a")]


def test_a_child_leaves_the_tracker(tracker_type, torch_as_found):
    tracker = tracker_type()
    with tracker:

        def child():
            tracker.__exit__(None, None, None)
            assert look(tracker) == NOWHERE
            with tracker:
                right(tracker)

        in_child(child)
        right(tracker)


@pytest.mark.slow
def test_while_other_threads_run(mt):
    """Whatever lock another thread holds at the fork, the child does not wait for it."""
    stop = threading.Event()

    def forward(losses):
        losses.append(pair(nn.ReLU(), nn.ReLU())(grad_input()).sum())

    def work():
        while not stop.is_set():
            losses = []
            for _ in range(4):
                thread = threading.Thread(target=forward, args=(losses,))
                thread.start()
                thread.join()
            for loss in losses * 2:
                loss.backward(retain_graph=True)

    def child():
        names = iter(range(100))
        thread = threading.Thread(target=lambda: make(f"New{next(names)}", lambda m, x: x)(1))
        thread.start()
        thread.join()
        make(f"New{next(names)}", lambda m, x: m.a(x), a=leaf())(torch.ones(1))
        assert look(mt) == NOWHERE

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join(600)
    right(mt)


class Items(Dataset):
    """Each item is the position of a model in the worker process."""

    def __init__(self, t):
        self.t = t
        self.mod = make("Item", lambda m, i: (float(i), sorted(t.parents), t.phase))

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return self.mod(i)


def test_workers_of_a_data_loader(t):
    seen = []
    loader = DataLoader(Items(t), batch_size=None, num_workers=2, timeout=600, multiprocessing_context="fork")

    def body(m, x):
        seen.append(look(t))
        return x * 2

    mod = make("Mod", body)
    items = []
    for item in loader:
        items.append(item)
        mod(grad_input()).sum().backward()
    assert [tuple(item) for item in items] == [(float(i), ["Global", "Item"], "forward") for i in range(6)]
    assert seen == [at("forward", "Mod")] * 6


def test_a_data_loader_made_inside_a_forward(t):
    loader = DataLoader(list(range(4)), batch_size=2, num_workers=1, timeout=600, multiprocessing_context="fork")
    seen = []

    def body(m):
        seen.append(sum(int(batch.sum()) for batch in loader))
        seen.append(look(t))

    make("Mod", body)()
    assert seen == [6, at("forward", "Mod")]
