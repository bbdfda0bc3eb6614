"""On a real GPU: the figures of torch.cuda and of torch's own MemoryTracker, and backward in autograd's own threads."""

import pytest
from memory_tracker_helpers import Net, monitored, names, positions
from modscope import MemoryTracker, ModuleTracker

import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

MIB = 1 << 20


def test_figures_are_torch_cuda_s():
    net = Net(256).cuda()
    with monitored(net) as tracker:
        kept = [net(torch.randn(64, 256, device="cuda"))]
        stats = torch.cuda.memory_stats()
        last = tracker._op_index - 1
        kept.append(torch.empty(7 * MIB, dtype=torch.uint8, device="cuda"))
    for rows, key in (
        (tracker.memories_allocated, "allocated_bytes"),
        (tracker.memories_active, "active_bytes"),
        (tracker.memories_reserved, "reserved_bytes"),
    ):
        assert rows[last][1] == stats[f"{key}.all.current"] / MIB
    assert tracker.memories_allocated[last + 1][1] == torch.cuda.memory_allocated() / MIB


def test_the_cache_stays_as_it_is():
    net = Net(256).cuda()
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_stats()
    with monitored(net):
        assert torch.cuda.memory_stats() == before


def test_operators_and_figures_are_those_of_torch_s_tracker():
    theirs = pytest.importorskip("torch.distributed._tools.memory_tracker").MemoryTracker()
    net = Net(256).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    ours = MemoryTracker()
    theirs.start_monitor(net)
    ours.start_monitor(net)
    for _ in range(2):
        net(torch.randn(64, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    ours.stop()
    theirs.stop()
    for figure in ("memories_allocated", "memories_active", "memories_reserved"):
        pairs = zip(getattr(theirs, figure).values(), getattr(ours, figure).values(), strict=True)
        assert [(a[1], a[0].split(".")[-2:]) for a, _ in pairs] == [
            (b[1], b[0].split(".")[-2:]) for b in getattr(ours, figure).values()
        ]
    assert ours._markers == theirs._markers and ours._operator_names == theirs._operator_names


def test_backward_runs_in_another_thread_and_has_its_modules():
    import threading

    net, threads = Net(256).cuda(), set()
    net.first.weight.register_post_accumulate_grad_hook(lambda p: threads.add(threading.get_ident()))
    with monitored(net) as tracker, ModuleTracker():
        for _ in range(2):
            net(torch.randn(64, 256, device="cuda")).sum().backward()
    assert threads and threading.get_ident() not in threads
    assert positions(tracker, "threshold_backward.default") == ["rest.1.backward"] * 2
    assert positions(tracker, "mm.default") == (["rest.0.backward"] * 2 + ["first.backward"]) * 2
    accumulated = [name for name in names(tracker) if ".add_." in name]
    assert all(name.startswith(("first.backward", "rest.0.backward")) for name in accumulated)


def test_memory_that_a_stream_still_uses_is_active():
    net = Net(256).cuda()
    stream = torch.cuda.Stream()
    with monitored(net) as tracker:
        x = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            x.record_stream(stream)
        del x
        y = torch.empty(1, device="cuda")
    last = tracker._op_index - 1
    assert tracker.memories_active[last][1] - tracker.memories_allocated[last][1] >= 32
    torch.cuda.synchronize()
    del y
