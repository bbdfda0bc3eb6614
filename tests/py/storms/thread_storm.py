"""A program of many threads: some train, some enter and leave trackers, some read figures, and the main thread forks.
`python thread_storm.py SECONDS SEED` prints how often each was done, and ends with an error if a figure was wrong."""

import collections
import faulthandler
import gc
import os
import random
import sys
import threading
import time
import traceback
import warnings

import modscope
import torch._dynamo  # The first optimizer would import it, which changes torch's globals.
from helpers import INTERCEPTION, in_child, mlp, torch_globals
from memory_helpers import CATEGORIES, now, reading, wrong_sums
from modscope import MemTracker, ModTracker
from modscope._trackers import mem_tracker
from torch.utils.checkpoint import checkpoint

import torch

WIDTH = 8
stop = threading.Event()
done: collections.Counter = collections.Counter()
errors: list[str] = []


def train(rng, mt):
    """A training loop with another model each time; the gradients are made in four ways."""
    mod = mlp(rng.randint(1, 3), WIDTH)
    opt = rng.choice([torch.optim.SGD, torch.optim.Adam])(mod.parameters(), lr=0.01)
    for _ in range(rng.randint(1, 4)):
        x = torch.randn(2, WIDTH, requires_grad=True)
        out = checkpoint(mod, x, use_reentrant=False) if rng.random() < 0.3 else mod(x)
        how = rng.choice(["backward", "create_graph", "set", "raise"])
        if how == "backward":
            out.sum().backward()
        elif how == "create_graph":
            out.square().sum().backward(create_graph=True)
        elif how == "set":
            for parameter, grad in zip(mod.parameters(), torch.autograd.grad(out.sum(), list(mod.parameters()))):
                parameter.grad = grad
        else:
            x.register_hook(lambda grad: 1 / 0)
            try:
                out.sum().backward()
            except ZeroDivisionError:  # the engine keeps the nodes that it did not run until the thread's next backward
                torch.ones(1, requires_grad=True).sum().backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        x.grad = None  # with create_graph, a gradient and its leaf hold each other


def enter_memory(rng, mt):
    with MemTracker() as own:
        kept = torch.zeros(rng.randint(1, 1000))
        assert now(own) >= 4 * kept.numel()
        del kept


def enter_modules(rng, mt):
    with ModTracker() as tracker:
        seen = []
        tracker.register_user_hooks(lambda mod, args: seen.append(tracker.parents))
        mlp(1, WIDTH)(torch.ones(1, WIDTH))
        assert any("Sequential" in name for parents in seen for name in parents)


def read(rng, mt):
    for type in ("current", "peak"):
        figures = reading(mt, type)
        assert figures["Total"] == sum(figures[name] for name in CATEGORIES), figures
        assert min(figures.values()) >= 0, figures
    mt.get_module_snapshot(children=rng.random() < 0.5)
    mt.peak
    len(mt.memory_tracking)


def record(rng, mt):
    path = f"storm.{threading.get_ident()}.msc"
    with modscope.record(path, overwrite=True):
        mlp(1, WIDTH)(torch.ones(1, WIDTH)).sum().backward()
    capture = modscope.load(path)
    assert capture.peaks and not capture.is_lower_bound
    os.unlink(path)


def work(action, seed, mt):
    rng = random.Random(seed)
    try:
        while not stop.is_set():
            action(rng, mt)
            done[action.__name__] += 1
    except BaseException:
        errors.append(traceback.format_exc())
        stop.set()


def child(mt):
    before = now(mt)
    kept = torch.zeros(10)
    assert now(mt) >= 40 and before >= 0
    with MemTracker() as own:
        more = torch.zeros(10)
        assert now(own) >= 40
    del kept, more


def storm(seconds, seed):
    globals_before, rng = torch_globals(), random.Random(seed)
    with MemTracker() as mt:
        actions = [train, train, train, enter_memory, enter_modules, read, record]
        threads = [threading.Thread(target=work, args=(action, f"{seed} {i}", mt)) for i, action in enumerate(actions)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until and not stop.is_set():
                time.sleep(rng.uniform(0, 0.1))
                in_child(lambda: child(mt))
                done["fork"] += 1
        finally:
            stop.set()
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive(), "a thread hangs"
        assert not errors, errors[0]
        gc.collect()
        assert now(mt) == 0, mt.get_module_snapshot()
        assert wrong_sums(mt) == [] and mt.lost == 0
    assert mem_tracker.active_trackers() == [] and torch_globals() == globals_before


if __name__ == "__main__":
    faulthandler.enable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(float(sys.argv[1]) + 120, exit=True)
    storm(float(sys.argv[1]), sys.argv[2])
    print("interception" if INTERCEPTION else "fallback", dict(done), f"MODSCOPE_STORM_SEED={sys.argv[2]}")
