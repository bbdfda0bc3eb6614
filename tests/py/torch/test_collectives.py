"""Collectives in captures: as torch's CommDebugMode counts them, with the bytes of the tensors."""

import collections
import ctypes
import json
import os
import pathlib

import modscope
import pytest
import warm_python
from helpers import INTERCEPTION
from modscope import _native
from modscope.__main__ import main
from modscope._torch import collectives as _collectives
from modscope._torch.collectives import describe_ranks
from perfetto_readers import READ

import torch

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="collectives are intercepted on Linux on x86-64")

# What CommDebugMode calls the operators.
KINDS = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
}


def fake_backend():
    """torch's backend whose collectives do nothing, as rank 0 of 2."""
    kind = torch._C._distributed_c10d.FakeProcessGroup
    return getattr(kind, "_create_internal", kind)(0, 2)


FAKE = """
import json, sys, torch, torch.distributed as dist, modscope
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)
    def forward(self, x):
        return self.down(self.up(x))

def sharded():
    mesh = init_device_mesh("cpu", (64,))
    model = nn.Sequential(Net(), Net())
    for net in model:
        fully_shard(net, mesh=mesh)
    return fully_shard(model, mesh=mesh)

def tensor_parallel():
    mesh = init_device_mesh("cpu", (8, 8), mesh_dim_names=("data", "tensor"))
    return parallelize_module(Net(), mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
counts = {}
for make in sharded, tensor_parallel:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    total = counts[make.__name__] = {}
    with modscope.record(f"{sys.argv[1]}/{make.__name__}.msc"):
        for _ in range(2):
            with CommDebugMode() as counted:
                model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            for operator, count in counted.get_comm_counts().items():
                name = str(operator).split(".")[-1].strip("')>")
                total[name] = total.get(name, 0) + count

# Each kind once, by hand, without a model
with modscope.record(f"{sys.argv[1]}/by_hand.msc"):
    x, rows = torch.ones(64, dtype=torch.float64), [torch.ones(1, dtype=torch.float64) for _ in range(64)]
    dist.all_reduce(x), dist.broadcast(x, 0), dist.reduce(x, 0), dist.all_gather(rows, rows[0])
    dist.all_gather_into_tensor(x, rows[0]), dist.reduce_scatter(rows[0], rows), dist.reduce_scatter_tensor(rows[0], x)
    dist.all_to_all_single(x, x), dist.gather(rows[0], rows, 0), dist.scatter(rows[0], rows, 0)
    dist.send(x, 1), dist.recv(x, 1), dist.barrier()
    pair = dist.new_group([0, 9])
    dist.all_reduce(rows[0], group=pair)
    try:
        dist.all_reduce(x.to_sparse(), group=pair)
    except Exception as error:
        print("raised", type(error).__name__, file=sys.stderr)
    functional.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], pair)
    functional.all_gather_into_tensor_coalesced([x, x], pair)
seen = modscope._native.last_collective()[0]
dist.all_reduce(x)
assert modscope._native.last_collective()[0] == seen  # nothing is left in torch's tables
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """Captures of a rank of 64 over torch's fake backend, and CommDebugMode's counts."""
    folder = tmp_path_factory.mktemp("fake")
    (folder / "fake.py").write_text(FAKE)
    ran = warm_python.run(["fake.py", str(folder)], folder)
    assert ran.returncode == 0, ran.stderr
    return folder, json.loads(ran.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sharded", "tensor_parallel"])
def test_counts_are_those_of_comm_debug_mode(fake, name):
    folder, counts = fake
    expected = collections.Counter()
    for operator, count in counts[name].items():
        expected[KINDS[operator]] += count
    found = collections.Counter(one.kind for one in modscope.load(folder / f"{name}.msc").collectives())
    assert found == expected and found


@pytest.mark.slow
def test_fsdp_s_collectives_belong_to_the_modules_whose_parameters_they_move(fake):
    capture = modscope.load(fake[0] / "sharded.msc")
    found = capture.collectives()
    whole = 2 * 64 * 128 * 4  # the parameters of one net
    assert {one.bytes for one in found} == {whole}
    assert {one.group for one in found} == {("default_pg", "fake", "0-63", 64)}
    assert [one.time for one in found] == sorted(one.time for one in found)
    assert all(one.seconds is None for one in found)
    for step in 1, 2:
        of_step = [(one.kind, one.module.rpartition(".")[2], one.phase) for one in found if one.step == step]
        assert [name for kind, name, phase in of_step if phase == "forward"] == ["0", "1"]
        assert [name for kind, name, phase in of_step if kind == "all_gather" and phase != "forward"] == ["1", "0"]
        assert [name for kind, name, phase in of_step if kind == "reduce_scatter"] == ["1", "0"]


@pytest.mark.slow
def test_every_kind_has_the_bytes_of_its_tensors(fake):
    found = modscope.load(fake[0] / "by_hand.msc").collectives()
    kinds = (
        "all_reduce broadcast reduce all_gather all_gather reduce_scatter reduce_scatter all_to_all gather "
        "scatter send recv barrier"
    )
    assert [one.kind for one in found[:13]] == kinds.split()
    assert [one.bytes for one in found[:12]] == [64 * 8] * 12 and found[12].bytes == 0
    assert found[13].kind == "all_reduce" and found[13].bytes == 8
    assert found[13].group.ranks == "0,9" and found[13].group.size == 2
    # torch counts what a rank gets out, of both
    coalesced = [(one.kind, one.bytes) for one in found if one.group.size == 2][-2:]
    assert coalesced == [("reduce_scatter", 2 * 32 * 8), ("all_gather", 2 * 128 * 8)]
    assert {one.module for one in found} == {"Global"} and {one.step for one in found} == {0}


@pytest.mark.slow
def test_the_summary_has_a_row_for_each_kind_and_group(fake, capsys):
    main(["summary", str(fake[0] / "sharded.msc")])
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Collectives, each step"))
    assert lines[at + 1].split() == ["all_gather", "4", "256.00", "KiB", "64", "ranks", "(0-63)", "FSDPSequential.*"]
    assert lines[at + 2].split()[:4] == ["reduce_scatter", "2", "128.00", "KiB"]
    main(["summary", str(fake[0] / "by_hand.msc")])
    assert "2 ranks (0,9)" in capsys.readouterr().out


DDP = """
import os, sys, torch, torch.distributed as dist, modscope
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store", rank=rank, world_size=2)
with modscope.record(f"{sys.argv[1]}/rank{rank}.msc"):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 5)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 30)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with model.no_sync():
        model(torch.ones(2, 30)).sum().backward()
    try:
        dist.all_reduce(torch.ones(3, dtype=torch.uint16))
    except RuntimeError as error:  # gloo has no sums of this type: a C++ exception passes through us
        print("raised")
    dist.all_reduce(torch.ones(7))
    sent = torch.ones(11, dtype=torch.int8)
    dist.send(sent, 1) if rank == 0 else dist.recv(sent, 0)
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ddp_s_reducer_over_gloo_is_seen(tmp_path):
    (tmp_path / "ddp.py").write_text(DDP)
    outputs = warm_python.run_ranks(["ddp.py", str(tmp_path)], tmp_path, 2)
    assert all("raised" in out for out in outputs), outputs
    parameters = (30 * 30 + 30 + 30 * 5 + 5) * 4
    for rank in range(2):
        found = modscope.load(tmp_path / f"rank{rank}.msc").collectives()
        in_backward = [one for one in found if one.phase == "backward"]
        assert {one.kind for one in in_backward} == {"all_reduce"}
        for step in 1, 2, 3:
            assert sum(one.bytes for one in in_backward if one.step == step) == parameters
        assert {one.module.partition(".")[0] for one in in_backward} == {"DistributedDataParallel"}
        assert {one.group for one in found} == {("default_pg", "gloo", "0-1", 2)}
        assert [(one.kind, one.bytes) for one in found[-3:]] == [
            ("all_reduce", 28),
            ("send", 11) if rank == 0 else ("recv", 11),
            ("barrier", 0),
        ]
        before = [one for one in found if one.step == 0]
        assert "broadcast" in {one.kind for one in before}  # of the parameters, when the model is wrapped


@pytest.mark.slow
def test_virtual_ranks_have_collectives_with_their_time(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "dist.init_process_group('nccl')\n"
        "model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda()\n"
        "for layer in model: fully_shard(layer)\n"
        "fully_shard(model)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(8, 1024, device='cuda')).sum().backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
    )
    command = [
        "-m",
        "modscope",
        "predict",
        "--gpu",
        "h100",
        "--ranks",
        "64",
        "--seconds",
        "0",
        "-o",
        "x.msc",
        "--json",
        "x.json",
    ]
    ran = warm_python.run([*command, str(script)], tmp_path)
    assert ran.returncode == 0, ran.stderr
    capture = modscope.load(tmp_path / "x.rank0.msc")
    found = [one for one in capture.collectives() if one.step == 2]
    assert collections.Counter(one.kind for one in found) == {"all_gather": 8, "reduce_scatter": 4}
    assert {one.bytes for one in found} == {4 * 1024 * 1024}
    assert {(one.group.backend, one.group.ranks, one.group.size) for one in found} == {("nccl", "0-63", 64)}
    assert all(one.seconds for one in found)
    for one, after in zip(found, found[1:]):  # one after another on the links
        assert after.time >= one.time + one.seconds - 2e-6
    told = json.loads((tmp_path / "x.json").read_text())["ranks"]["collective_bytes"]
    totals = collections.Counter()
    for one in capture.collectives():
        totals[one.kind] += one.bytes
    assert {kind: totals[kind] for kind in told} == told


@pytest.mark.slow
@pytest.mark.parametrize("reader", READ)
def test_a_perfetto_trace_has_a_track_of_them(fake, reader):
    capture = modscope.load(fake[0] / "sharded.msc")
    target = fake[0] / f"{reader}.pftrace"
    assert main(["export", str(fake[0] / "sharded.msc"), "-o", str(target)]) == 0
    shown = READ[reader](target).on("collectives")
    expected = capture.collectives()
    assert [mark.name for mark in shown] == [one.kind for one in expected]
    for mark, one in zip(shown, expected):
        assert mark.args["bytes"] == one.bytes and mark.args["module"] == one.module and mark.args["step"] == one.step
        assert mark.args["ranks"] == "0-63" and mark.args["group size"] == 64
        assert mark.ts // 1000 == round(one.time * 1e6)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0], "0"),
        ([0, 1], "0-1"),
        (range(64), "0-63"),
        (range(0, 64, 8), "0-56:8"),
        ([1, 5, 6, 7], "1,5-7"),
        ([0, 9], "0,9"),
        ([], ""),
    ],
)
def test_ranks_are_described_in_short(ranks, text):
    assert describe_ranks(list(ranks)) == text


def test_a_program_without_torch_distributed_has_none(tmp_path):
    file = pathlib.Path(tmp_path) / "x.msc"
    with modscope.record(file):
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
    capture = modscope.load(file)
    assert capture.collectives() == [] and capture.collective_totals() == []
    assert _native.collectives_unknown() is None


@pytest.mark.parametrize(
    ("library", "name", "version"),
    [
        ("libtorch_cpu", "16ProcessGroupGloo", "2.6"),
        ("libtorch_cuda", "16ProcessGroupNCCL", "2.6"),
        ("libtorch_cuda", "5nccl216ProcessGroupNCCL", "2.15"),
        ("libtorch_cuda", "5nccl220ProcessGroupNCCLLazy", "2.15"),
    ],
)
def test_the_functions_of_a_backend_are_replaced_and_restored(library, name, version):
    """Without a GPU no collective of NCCL can be launched: this reads the table of its class."""
    path = pathlib.Path(torch.__file__).parent / "lib" / f"{library}.so"
    if not path.exists() or torch.torch_version.TorchVersion(torch.__version__) < version:
        return  # this torch has no such backend
    table = (ctypes.c_void_p * 80).in_dll(ctypes.CDLL(str(path), os.RTLD_NOLOAD), f"_ZTVN4c10d{name}E")
    _collectives.prepare()
    _native.intercept_collectives(False)
    before = list(table)
    _native.intercept_collectives(True)
    replaced = sum(one != other for one, other in zip(before, table))
    _native.intercept_collectives(False)
    assert replaced >= 15 and list(table) == before
    assert _native.collectives_not_found() == []


def test_a_backend_s_collectives_are_seen_as_they_are_launched():
    _collectives.prepare()
    backend = fake_backend()
    assert _collectives.verify(backend)
    seen = _native.last_collective()[0]
    backend.allreduce([torch.ones(2)])
    assert _native.last_collective()[0] == seen  # nobody records


def test_verifying_collectives_adds_nothing_to_the_figures_of_a_tracker():
    backend = fake_backend()
    with modscope.MemTracker() as tracker:
        kept = torch.ones(2)
        before = tracker.peak
        assert _collectives.verify(backend) and tracker.peak == before and before[kept.device].bytes == 8
