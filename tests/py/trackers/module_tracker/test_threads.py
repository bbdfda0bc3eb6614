"""Each thread has its own calls; a backward finds the calls that created its nodes in any thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import NOWHERE, UNKNOWN, at, grad_input, leaf, look, make, on_grad, pair

import torch
from torch import nn


def in_thread(fn, *args):
    """Run in a new thread, and raise its exception here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn, *args).result(timeout=600)


def double(t, log):
    return leaf(lambda m, x: on_grad(t, log, x * 2))


def test_another_thread_is_somewhere_else(t):
    seen = []

    def body(m, x):
        seen.append(in_thread(look, t))
        seen.append(look(t))

    make("Mod", body)(1)
    assert seen == [NOWHERE, at("forward", "Mod")]


def test_a_forward_in_a_thread(t):
    seen = []
    mod = pair(leaf(), leaf(lambda m, x: seen.append(look(t)) or x))
    in_thread(mod, torch.ones(1))
    assert seen == [at("forward", "Mod", "Mod.b")]
    assert in_thread(look, t) == NOWHERE


def test_forwards_side_by_side(t):
    """All threads wait inside their modules, so all calls are open at once; no thread sees another's call."""
    n = 8
    barrier = threading.Barrier(n, timeout=600)
    seen = {}

    def body(m, x):
        barrier.wait()
        seen[m.index] = look(t)
        barrier.wait()
        return x

    mods = []
    for i in range(n):
        inner = leaf(body)
        inner.index = i
        mods.append(make(f"Mod{i}", lambda m, x: m.a(x), a=inner))
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(lambda mod: mod(1), mods))
    assert seen == {i: at("forward", f"Mod{i}", f"Mod{i}.a") for i in range(n)}


def test_one_module_in_many_threads(t):
    n = 4
    barrier = threading.Barrier(n, timeout=600)
    seen = []

    def body(m, x):
        barrier.wait()
        seen.append(look(t))
        return x

    mod = make("Mod", lambda m, x: m.a(x), a=leaf(body))
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(mod, range(n)))
    assert seen == [at("forward", "Mod", "Mod.a")] * n


def test_backward_on_another_thread(t):
    log = []
    loss = pair(double(t, log), double(t, log))(grad_input()).sum()
    in_thread(loss.backward)
    assert log == [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")]


def test_forward_on_another_thread(t):
    log = []
    mod = pair(double(t, log), double(t, log))
    loss = in_thread(lambda: mod(grad_input()).sum())
    loss.backward()
    assert log == [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")]


def test_both_on_threads_that_end(t):
    log = []
    mod = pair(double(t, log), double(t, log))
    for _ in range(20):
        loss = in_thread(lambda: mod(grad_input()).sum())
        in_thread(loss.backward)
    assert log == [at("backward", "Mod", "Mod.b"), at("backward", "Mod", "Mod.a")] * 20


def test_numbers_of_threads_do_not_collide(t):
    """Node numbers begin at 0 in each thread: the same number belongs to another module in each."""
    log = {}
    losses = []

    def forward(i):
        log[i] = []
        mod = make(f"Mod{i}", lambda m, x: m.a(x), a=double(t, log[i]))
        losses.append((i, mod(grad_input()).sum()))

    for i in range(6):
        in_thread(forward, i)
    for i, loss in reversed(losses):
        loss.backward()
    assert log == {i: [at("backward", f"Mod{i}", f"Mod{i}.a")] for i in range(6)}


def test_one_graph_made_by_two_threads(t):
    log = []
    one = make("One", lambda m, x: m.a(x), a=double(t, log))
    two = make("Two", lambda m, x: m.a(x), a=double(t, log))
    x = grad_input()
    (in_thread(one, x) * in_thread(two, x) + one(x)).sum().backward()
    assert sorted(r.stack for r in log) == [("One", "One.a"), ("One", "One.a"), ("Two", "Two.a")]


def test_forward_here_while_backward_there(t):
    log, seen = [], []
    go, done = threading.Event(), threading.Event()

    def wait(grad):
        go.set()
        assert done.wait(600)
        log.append(look(t))

    def body(m, x):
        y = x * 2
        y.register_hook(wait)
        return y

    loss = make("Back", lambda m, x: m.a(x), a=leaf(body))(grad_input()).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    assert go.wait(600)
    make("Front", lambda m, x: seen.append(look(t)))(1)
    seen.append(look(t))
    done.set()
    thread.join(600)
    assert seen == [at("forward", "Front"), NOWHERE]
    assert log == [at("backward", "Back", "Back.a")]


def test_many_threads_at_once(t):
    """Sixteen threads, each its own model, forward and backward, many times."""
    wrong = []

    def work(i):
        log = []
        mod = make(f"Mod{i}", lambda m, x: m.b(m.a(x)), a=double(t, log), b=nn.Linear(4, 4))
        right = at("backward", f"Mod{i}", f"Mod{i}.a")
        for _ in range(40):
            mod(grad_input()).sum().backward()
        wrong.extend(r for r in log if r != right)
        return len(log)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == [40] * 16
    assert wrong == []


def test_many_short_threads(t):
    """More ended threads than are kept: the answer is right, or "unknown"."""
    log = []
    mod = pair(double(t, log), leaf())
    losses = []
    for _ in range(400):
        thread = threading.Thread(target=lambda: losses.append(mod(grad_input()).sum()))
        thread.start()
        thread.join()
    for loss in losses:
        loss.backward()
    assert len(log) == 400
    right = {"Global", "Mod", "Mod.a"}
    assert all(set(r.parents) in (right, UNKNOWN) for r in log)
    assert all(set(r.parents) == right for r in log[-50:])


def test_a_thread_that_ends_inside_a_call(t):
    """A daemon thread waits in a forward for ever; the other threads are not affected."""
    stop = threading.Event()
    inside = threading.Event()

    def body(m, x):
        inside.set()
        stop.wait(600)

    mod = make("Stuck", body)
    thread = threading.Thread(target=mod, args=(1,), daemon=True)
    thread.start()
    assert inside.wait(600)
    assert look(t) == NOWHERE
    log = []
    pair(double(t, log), leaf())(grad_input()).sum().backward()
    assert log == [at("backward", "Mod", "Mod.a")]
    stop.set()
    thread.join(600)


def test_an_exception_in_a_thread(t):
    def work():
        with pytest.raises(ZeroDivisionError):
            pair(leaf(), leaf(lambda m, x: 1 / 0))(1)
        return look(t)

    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(work).result() for _ in range(3)] == [NOWHERE] * 3


def test_entered_in_one_thread_left_in_another(tracker_type, torch_as_found):
    tracker = tracker_type()
    in_thread(tracker.__enter__)
    seen = []
    mod = make("Mod", lambda m, x: seen.append(look(tracker)))
    mod(1)
    in_thread(tracker.__exit__, None, None, None)
    mod(1)
    assert seen == [at("forward", "Mod"), NOWHERE]


def test_left_while_another_thread_is_inside(tracker_type, torch_as_found):
    tracker = tracker_type()
    inside, left = threading.Event(), threading.Event()
    seen = []

    def body(m, x):
        inside.set()
        assert left.wait(600)
        seen.append(look(tracker))

    mod = make("Mod", lambda m, x: m.a(x), a=leaf(body))
    with tracker:
        thread = threading.Thread(target=mod, args=(1,))
        thread.start()
        assert inside.wait(600)
    left.set()
    thread.join(600)
    assert seen == [NOWHERE]
    with tracker:
        make("Solo", lambda m, x: seen.append(look(tracker)))(1)
    assert seen[1] == at("forward", "Solo")


def test_entered_and_left_while_others_run(tracker_type, torch_as_found):
    stop = threading.Event()
    failed = []

    def work():
        mod = pair(nn.Linear(4, 4), nn.Linear(4, 4))
        while not stop.is_set():
            try:
                mod(grad_input()).sum().backward()
            except BaseException as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        tracker = tracker_type()
        seen = []
        mod = make("Mod", lambda m, x: seen.append(look(tracker)))
        for _ in range(100):
            with tracker:
                mod(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(600)
    assert failed == []
    assert set(seen) == {at("forward", "Mod")} and len(seen) == 100
