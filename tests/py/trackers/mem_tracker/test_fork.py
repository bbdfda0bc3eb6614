"""Processes: a fork in the middle, the workers of a DataLoader, and two ranks of DDP."""

import os
import subprocess
import sys

import pytest
import warm_python
from helpers import INTERCEPTION, SUPPORT, in_child, leaf, make, mlp, python_path
from memory_helpers import bytes_of, every_source, held, held_by, now, of_module, wrong_sums
from modscope import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import torch

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@every_source
def test_a_child_goes_on_from_what_it_inherited(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt:
        kept = torch.zeros(10)

        def child():
            assert held(mt) == held_by([mod]) and now(mt, "Other") == x.nbytes + 40
            with torch.no_grad():
                out = mod(x)
            assert now(mt, "Activation") == bytes_of(out)
            assert of_module(mt, "Sequential.3")["Activation"] == bytes_of(out)
            assert wrong_sums(mt) == []

        in_child(child)
        assert now(mt, "Other") == x.nbytes + 40
        mod(x).sum().backward()
        assert held(mt) == held_by([mod])
        assert wrong_sums(mt) == []
    del kept


@every_source
def test_a_child_does_not_disturb_its_parent(source):
    with MemTracker(source) as mt:
        kept = torch.zeros(10)

        def child():
            more = torch.zeros(1000)
            kept.resize_(500)
            assert now(mt) == 4000 + 2000
            del more

        in_child(child)
        assert now(mt) == 40
        kept = None
        assert now(mt) == 0


@every_source
def test_a_fork_inside_a_forward(source):
    mt = MemTracker(source)

    def body(m, x):
        def child():
            kept = torch.zeros(10)
            assert of_module(mt, "Top.a")["Activation"] == 40
            del kept

        in_child(child)
        return torch.zeros(20)

    with mt:
        out = make("Top", lambda m, x: m.a(x), a=leaf(body))(1)
        assert of_module(mt, "Top.a")["Activation"] == 80
    del out


@every_source
def test_a_child_leaves_and_enters(source):
    mt = MemTracker(source)
    with mt:
        kept = torch.zeros(10)

        def child():
            mt.__exit__(None, None, None)
            made = torch.zeros(10)
            assert now(mt) == 40
            with mt:
                assert now(mt) == 0
                more = torch.zeros(5)
                assert now(mt) == 20
            del made, more

        in_child(child)
        assert now(mt) == 40
    del kept


@pytest.mark.slow
def test_a_fork_while_other_threads_allocate():
    """Whatever lock another thread holds at the fork, the child does not wait for it."""
    import threading

    stop = threading.Event()

    def work():
        while not stop.is_set():
            [torch.empty(8) for _ in range(50)]

    def child():
        kept = torch.zeros(10)
        assert now(mt) >= 40
        del kept

    threads = [threading.Thread(target=work) for _ in range(3)]
    with MemTracker() as mt:
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                in_child(child)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert now(mt) == 0


PREPARING = """
import os, signal, threading
import torch
from modscope import MemTracker
from modscope._torch import interception as _interception

inside, choose = threading.Event(), _interception._choose

def choose_slowly():
    inside.set()
    threading.Event().wait(0.5)
    choose()

def enter():  # allocates nothing: it may be inside the tracker when the fork comes
    with MemTracker():
        pass

_interception._choose = choose_slowly
thread = threading.Thread(target=enter)
thread.start()
inside.wait()
if (pid := os.fork()) == 0:
    signal.alarm(300)
    with MemTracker() as mt:
        kept = torch.zeros(1000)
        assert mt.get_tracker_snapshot()[torch.device("cpu")]["Total"] == 4000
    os._exit(7)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), _interception.results()["tensors"])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not INTERCEPTION and not hasattr(TorchDispatchMode, "_should_skip_dynamo"),
    reason="at the first operator under a dispatch mode this torch imports dynamo, which a child cannot if a "
    "thread that it does not have imports it",
)
def test_a_fork_while_another_thread_enters_the_first_tracker():
    """The child neither waits for that thread nor finds the interception points in the middle of their tests."""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", PREPARING], capture_output=True, text=True, timeout=600)
    assert ran.stdout == "7 learned\n", ran


class Items(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.full((10,), float(i))


@every_source
def test_workers_of_a_data_loader(source):
    """Batches arrive in shared memory, so torch's allocator holds nothing of them in this process."""
    mod, sums = mlp(1, 10), []
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        for batch in DataLoader(Items(), batch_size=2, num_workers=2, timeout=600, multiprocessing_context="fork"):
            mod(batch).sum().backward()
            sums.append(float(batch.sum()))
            assert held(mt) == held_by([mod])
            if source == "allocator":
                assert now(mt, "Activation") == now(mt, "Temp") == 0
        del batch
        assert now(mt) == sum(held_by([mod]).values())
    assert sums == [10.0, 50.0, 90.0]


DDP = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from helpers import mlp
from memory_helpers import *
from modscope import MemTracker

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)

def train(source, view):
    torch.manual_seed(0)
    mod = DistributedDataParallel(mlp(3, 16), gradient_as_bucket_view=view)
    opt = torch.optim.Adam(mod.parameters())
    x = torch.randn(4, 16) + rank
    mt = None if source is None else MemTracker(source)
    if mt is not None:
        mt.track_external(mod, opt, x)
        mt.__enter__()
    for _ in range(3):
        mod(x).square().sum().backward()
        opt.step()
        if mt is not None:
            expected = held_by([mod], [opt])
            buckets = sum(mt.get_kind_snapshot().get(torch.device("cpu"), {}).values())
            assert buckets == expected["Parameter"] or source == "dispatcher"  # which does not see the first ones
            if not view:
                expected["Gradient"] += buckets  # they hold a copy
            assert held(mt) == expected, (held(mt), expected)
            assert wrong_sums(mt) == []
        opt.zero_grad(set_to_none=not view)
    if mt is not None:
        assert of_module(mt, "DistributedDataParallel.0")["Parameter"] == 4 * (256 + 16)
        mt.__exit__(None, None, None)
    return [p.detach().clone() for p in mod.parameters()]

for view in (False, True):
    plain = train(None, view)
    for source in SOURCES:
        tracked = train(source, view)
        assert all(torch.equal(a, b) for a, b in zip(plain, tracked))
dist.destroy_process_group()
print("fine")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this torch has no gloo"
)
def test_two_ranks_of_ddp(tmp_path):
    """Parameters, gradients (of their own and in the buckets) and state on both ranks; the same results."""
    outputs = warm_python.run_ranks(["-c", DDP, str(tmp_path / "meet")], tmp_path, 2, PYTHONPATH=python_path(SUPPORT))
    assert all(out.endswith("fine\n") for out in outputs), outputs
