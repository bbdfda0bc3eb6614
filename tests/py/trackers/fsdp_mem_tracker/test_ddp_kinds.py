"""The kind Bucket: the buckets of DistributedDataParallel equal those that its own Reducer lists, to the byte."""

import csv
import os
import pickle
import re
import time
from collections.abc import Iterator

import modscope
import pytest
import torch.distributed as dist
import warm_python
from helpers import SUPPORT, needs_interception, python_path
from memory_helpers import CPU, wrong_sums
from modscope.__main__ import main
from modscope._job.job import compare_ranks, find_job, sums_by_kind
from modscope._job.read import RankIdentity, read_rank
from modscope._show.ranks_text import job_text
from modscope._show.terminal import Screen
from modscope._trackers.mem_tracker import ledger_of
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

pytestmark = [needs_interception, pytest.mark.filterwarnings("ignore")]
WIDTH = 64


@pytest.fixture(autouse=True, scope="module")
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def blocks(count=3) -> nn.Sequential:
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(count)]
    )


def listed_by_reducer(model) -> list[int]:
    """The bytes of the buckets, by copies that the Reducer makes of them."""
    return [bucket.buffer().nbytes for bucket in model.reducer._get_zeros_like_grad_buckets()]


def known(mt) -> int:
    """What the ledger counts as buckets now, without a claim pass."""
    return dict(zip(modscope.Kind, ledger_of(mt).kinds()[0][1:]))["Bucket"]


def settled(mt, expected: int) -> int:
    """What the ledger counts as buckets, once that is as expected or two minutes have passed: gloo's thread holds the
    Work that it executed, and so its buckets, until it has returned from there, which is after the waiter was woken."""
    end = time.monotonic() + 120
    while known(mt) != expected and time.monotonic() < end:
        time.sleep(0.01)
    return known(mt)


OPTIONS = {
    "plain": {},
    "small buckets": {"bucket_cap_mb": 0.05},
    "bucket views": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_buckets_equal_those_of_the_reducer(options):
    given = OPTIONS[options]
    mt = modscope.MemTracker()
    gradients = sum(p.nbytes for p in blocks().parameters())
    counts = set()
    with mt:
        model = DistributedDataParallel(blocks(), **given)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        held = listed_by_reducer(model)
        assert known(mt) == sum(held) == gradients
        for _ in range(3):
            model(torch.randn(4, WIDTH)).sum().backward()
            held = listed_by_reducer(model)
            counts.add(len(held))
            assert settled(mt, gradients) == sum(held) == gradients
            assert mt.get_kind_snapshot()[CPU]["Bucket"] == gradients
            assert mt.get_module_kinds()[CPU] == {"DistributedDataParallel": {"Bucket": gradients}}
            copies = 1 if given.get("gradient_as_bucket_view") else 2
            assert mt.get_tracker_snapshot()[CPU]["Gradient"] == copies * gradients
            opt.step()
            opt.zero_grad()
            assert mt.get_kind_snapshot()[CPU] == {"Bucket": gradients}
        assert wrong_sums(mt) == []
        assert mt.get_kind_snapshot("peak")[CPU]["Bucket"] == gradients
        assert mt.get_module_kinds("peak")[CPU] == {"DistributedDataParallel": {"Bucket": gradients}}
        del model, opt
        assert settled(mt, 0) == 0
    if options == "small buckets":
        assert counts == {1, 6}  # they are rebuilt in the second forward


def test_accumulation_without_sync_keeps_the_buckets():
    mt = modscope.MemTracker()
    with mt:
        model = DistributedDataParallel(blocks())
        for _ in range(2):
            with model.no_sync():
                model(torch.randn(4, WIDTH)).sum().backward()
            buckets = sum(listed_by_reducer(model))
            assert settled(mt, buckets) == buckets
            model(torch.randn(4, WIDTH)).sum().backward()
            assert mt.get_kind_snapshot()[CPU]["Bucket"] == sum(listed_by_reducer(model))


def test_the_blocks_are_those_that_a_hook_of_the_program_gets(tmp_path):
    """A communication hook is given each bucket's tensor."""
    addresses = {}

    def hook(state, bucket):
        addresses[bucket.buffer().data_ptr()] = bucket.buffer().nbytes
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])

    mt = modscope.MemTracker()
    with mt, modscope.record(tmp_path / "run.msc"):
        model = DistributedDataParallel(blocks(), bucket_cap_mb=0.1)
        model.register_comm_hook(None, hook)
        for _ in range(2):
            addresses.clear()
            model(torch.randn(4, WIDTH)).sum().backward()
        assert len(addresses) > 1
    capture = modscope.load(tmp_path / "run.msc")
    snapshot = capture.snapshot(capture.event_count)
    found = [block for block in snapshot.blocks() if block.kind == "Bucket"]
    assert sorted(block.bytes for block in found) == sorted(addresses.values())
    assert {(block.category, block.module) for block in found} == {("Gradient", "DistributedDataParallel")}


def test_tables_of_a_moment_have_a_column_for_each_kind_that_holds_something(tmp_path):
    with modscope.record(tmp_path / "run.msc"):
        model = DistributedDataParallel(blocks())
        model(torch.randn(4, WIDTH)).sum().backward()
    assert main(["export", str(tmp_path / "run.msc"), "-o", str(tmp_path / "peak.csv"), "--at", "peak"]) == 0
    rows = list(csv.DictReader((tmp_path / "peak.csv").read_text().splitlines()))
    snapshot = modscope.load(tmp_path / "run.msc").snapshot("peak")
    assert list(rows[0])[-2:] == ["is_lower_bound", "Bucket"]
    assert sum(int(row["Bucket"]) for row in rows) == snapshot.kinds["cpu"]["Bucket"] == sum(listed_by_reducer(model))
    assert all(int(row["Bucket"]) <= int(row["Gradient"]) for row in rows)


def test_the_kind_is_a_frame_of_torch_s_memory_snapshot(tmp_path):
    with modscope.record(tmp_path / "run.msc"):
        model = DistributedDataParallel(blocks())
        model(torch.randn(4, WIDTH)).sum().backward()
    assert main(["export", str(tmp_path / "run.msc"), "-o", str(tmp_path / "run.pickle"), "--device", "cpu"]) == 0
    traces = pickle.loads((tmp_path / "run.pickle").read_bytes())["device_traces"]
    made = [entry for trace in traces for entry in trace if entry["action"] == "alloc"]
    frames = [
        (entry["size"], [frame["name"] for frame in entry["frames"] if frame["filename"] in ("category", "kind")])
        for entry in made
    ]
    assert [size for size, names in frames if names == ["Gradient", "Bucket"]] == listed_by_reducer(model)


def test_buckets_that_are_older_than_the_tracker():
    model = DistributedDataParallel(blocks())
    for _ in range(2):
        model(torch.randn(4, WIDTH)).sum().backward()
    mt = modscope.MemTracker()
    with mt:
        model(torch.randn(4, WIDTH)).sum().backward()
        assert mt.get_kind_snapshot()[CPU]["Bucket"] == sum(listed_by_reducer(model))
        assert modscope._native.ddp_intercepted()
    assert not modscope._native.ddp_intercepted()
    model(torch.randn(4, WIDTH)).sum().backward()


def test_results_are_the_same_to_the_bit():
    def run(tracked):
        torch.manual_seed(1)
        model = DistributedDataParallel(blocks())
        opt = torch.optim.Adam(model.parameters())
        for _ in range(3):
            with modscope.MemTracker() if tracked else torch.enable_grad():
                model(torch.randn(4, WIDTH)).sum().backward()
                opt.step()
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(one, other) for one, other in zip(run(False), run(True)))


def test_ranks_are_compared_by_kind(tmp_path):
    """Rank 1 has gradients in its buckets, rank 0 has both."""
    ranks = []
    for rank, views in enumerate((False, True)):
        with modscope.record(tmp_path / "run.msc", overwrite=True):
            model = DistributedDataParallel(blocks(), gradient_as_bucket_view=views)
            model(torch.randn(4, WIDTH)).sum().backward()
            model.zero_grad(set_to_none=False)
            del model
        ranks.append(read_rank("x", modscope.load(tmp_path / "run.msc"))._replace(identity=RankIdentity(rank, 2)))
    gradients = sum(p.nbytes for p in blocks().parameters())
    assert [sums_by_kind(rank)[list(modscope.Kind).index("Bucket")] for rank in ranks] == [gradients] * 2
    (difference,) = compare_ranks(ranks).differences
    assert {word for _, word, _, _ in difference.rows if word in ("Bucket", "Gradient")} == {"Gradient"}
    assert sum(before - after for _, word, before, after in difference.rows if word == "Gradient") == gradients
    text = "\n".join(job_text(find_job(ranks), Screen(100, False)))
    assert re.search(r"^    Bucket  +\S+ KiB +\S+ KiB +0 B +all alike$", text, re.MULTILINE), text


SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from test_ddp_kinds import WIDTH, blocks, known, listed_by_reducer, settled
from torch.nn.parallel import DistributedDataParallel
import modscope

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.05}, {"static_graph": True}):
    mt = modscope.MemTracker()
    with mt:
        model = DistributedDataParallel(blocks(), **options)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            if step == 1 and "static_graph" not in options:
                with model.no_sync():
                    model(torch.randn(4, WIDTH)).sum().backward()
            model(torch.randn(4, WIDTH)).sum().backward()
            buckets = sum(listed_by_reducer(model))
            assert settled(mt, buckets) == buckets > 0
            assert mt.get_kind_snapshot()[torch.device("cpu")]["Bucket"] == known(mt)
            opt.step(); opt.zero_grad()
    sums = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(sums, sum(p.double().sum() for p in model.parameters()).float())
    assert sums[0] == sums[1]
dist.destroy_process_group()
print("checked")
"""


@pytest.mark.slow
def test_two_processes_over_gloo(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    here = os.path.dirname(__file__)
    words = [str(script), str(tmp_path / "store")]
    outputs = warm_python.run_ranks(words, tmp_path, 2, PYTHONPATH=python_path(here, SUPPORT))
    assert all(out.startswith("checked") for out in outputs)
