"""FSDP2 and DDP on a real GPU, with NCCL as the only rank and with torch's fake process group as rank 0 of 64.

At many moments of three steps, the trackers' Total and its peak equal torch.cuda.memory_stats() to the byte, and every
kind equals the sum over FSDP2's own tensors. MODSCOPE_RANKS_DEVICE=cpu runs everything else on the CPU, with gloo
instead of NCCL."""

import collections
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import modscope
import pytest
import torch.distributed as dist
from fsdp_helpers import KINDS, Block, block_bytes, held_by_fsdp, shard_blocks
from helpers import needs_interception
from memory_helpers import CPU, wrong_sums
from modscope._torch.devices import devices
from modscope._trackers.mem_tracker import ledger_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

DEVICE = torch.device("cuda", 0) if os.environ.get("MODSCOPE_RANKS_DEVICE") != "cpu" else CPU
ON_GPU = DEVICE.type == "cuda"
pytestmark = [
    needs_interception,
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("ignore"),
]
REAL = "nccl" if ON_GPU else "gloo"
WIDTH = 48  # so that every block is smaller than 1 MiB: larger ones may be larger than their bytes rounded up
LIMIT = 60.0  # seconds that a thread of NCCL's or gloo's may hold what it has reduced


@pytest.fixture(scope="module", params=[REAL, "fake"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The number of ranks of the process group."""
    if request.param == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    else:
        store = tmp_path_factory.mktemp("store") / "store"
        dist.init_process_group(REAL, init_method=f"file://{store}", rank=0, world_size=1)
    if ON_GPU:  # cuBLAS keeps its workspace, and NCCL makes its communicator, at the first use
        x = torch.ones(8, 8, device=DEVICE, requires_grad=True)
        (x @ x).sum().backward()
        dist.all_reduce(torch.ones(8, device=DEVICE))
        torch.cuda.synchronize()
    yield dist.get_world_size()
    dist.destroy_process_group()


def mesh(world: int) -> Any:
    return init_device_mesh(DEVICE.type, (world,))


def known(mt: modscope.MemTracker, device: torch.device) -> dict[str, int]:
    """The kinds that the ledger counts now, without a claim pass; inputs are none of FSDP2's."""
    raw = dict(zip(devices(), ledger_of(mt).kinds())).get(device, ())
    return {kind: value for kind, value in zip(modscope.Kind, raw[1:]) if value and kind in (*KINDS, "All Reduce")}


class Beside:
    """Two active trackers, torch's statistics and FSDP2's own tensors: all must agree at every check."""

    def __init__(self) -> None:
        self.mt, self.fsdp = modscope.MemTracker(), None
        self.model: Any = None
        self.seen: set[str] = set()
        self.moments = 0
        self.compared = {DEVICE, CPU}  # the devices whose kinds are compared

    def enter(self, model: nn.Module, opt: torch.optim.Optimizer, *inputs: torch.Tensor) -> "Beside":
        self.model = model
        self.mt.track_external(model, opt, *inputs)
        self.fsdp = modscope.FSDPMemTracker(model, opt)
        self.fsdp.track_inputs(inputs)
        return self

    def trackers(self) -> list[Any]:
        return [self.mt] if self.fsdp is None else [self.mt, self.fsdp]

    def totals(self, when: str) -> list[int]:
        return [tracker.get_tracker_snapshot(when)[DEVICE]["Total"] for tracker in self.trackers()]

    def __enter__(self) -> "Beside":
        gc.collect()
        for tracker in self.trackers():
            tracker.__enter__()
            tracker.reset_peak()
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
            self.before, self.held = torch.cuda.memory_allocated(), self.totals("current")
        return self

    def __exit__(self, *exc: Any) -> None:
        for tracker in reversed(self.trackers()):
            tracker.__exit__(*exc)

    def differences(self) -> list[Any]:
        """Every way in which they do not agree now."""
        found: list[Any] = []
        for device in self.compared:
            expected = held_by_fsdp(self.model, device)
            self.seen |= set(expected)
            passed = self.mt.get_kind_snapshot().get(device, {})
            sources = {
                "without a pass": known(self.mt, device),
                "in a pass": {k: v for k, v in passed.items() if k in (*KINDS, "All Reduce")},
            }
            found += [(device, name, kinds, expected) for name, kinds in sources.items() if kinds != expected]
            if self.fsdp:
                sums = self.fsdp.get_tracker_snapshot().get(device, {})
                wrong = {
                    kind: sums.get(kind, 0) for kind in KINDS if kind in sums and sums[kind] != expected.get(kind, 0)
                }
                found += [(device, "FSDPMemTracker", wrong, expected)] if wrong else []
        if ON_GPU:
            stats = torch.cuda.memory_stats()
            for when in ("current", "peak"):
                theirs = stats[f"allocated_bytes.all.{when}"] - self.before
                ours = [total - held for total, held in zip(self.totals(when), self.held)]
                found += [(when, ours, theirs)] if ours != [theirs] * len(ours) else []
        return found

    def __call__(self, when: str) -> None:
        if self.model is None:
            return
        end = time.monotonic() + LIMIT
        while (found := self.differences()) and time.monotonic() < end:
            time.sleep(0.01)
        assert found == [], when
        self.moments += 1


def train(model: nn.Module, check: Beside, x: torch.Tensor | None = None, steps: int = 3) -> None:
    x = torch.randn(4, WIDTH, device=DEVICE) if x is None else x
    opt = torch.optim.Adam(model.parameters())
    with check.enter(model, opt, x):
        check("before")
        for _ in range(steps):
            loss = model(x).square().mean()
            check("after the forward")
            loss.backward()
            check("after the backward")
            opt.step()
            check("after the optimizer step")
            opt.zero_grad()
            x.grad = None
            del loss
            check("after zero_grad")
        assert wrong_sums(check.mt) == []
        peak = check.mt.get_tracker_snapshot("peak")[DEVICE]
        assert peak["Total"] == max(one["Total"] for one in (peak, check.mt.get_tracker_snapshot()[DEVICE]))
        kinds, by_module = check.mt.get_kind_snapshot("peak")[DEVICE], check.mt.get_module_kinds("peak")[DEVICE]
        for kind in kinds:
            assert sum(of.get(kind, 0) for of in by_module.values()) == kinds[kind]


def blocks(check: Beside, count: int = 3) -> nn.Sequential:
    return nn.Sequential(*[Block(WIDTH, check) for _ in range(count)], nn.Linear(WIDTH, 8))


OPTIONS = {
    "plain": lambda world: {},
    "kept after forward": lambda world: {"reshard_after_forward": False},
    "mixed precision": lambda world: {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    },
    "resharded over 8": lambda world: {"reshard_after_forward": 8},
    "CPU offload": lambda world: {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "pinned CPU offload": lambda world: {"offload_policy": CPUOffloadPolicy(pin_memory=True)},
    "HSDP": lambda world: {
        "mesh": init_device_mesh(DEVICE.type, (8, 8) if world == 64 else (1, 1), mesh_dim_names=("replicate", "shard"))
    },
}


@pytest.mark.parametrize("options", OPTIONS)
def test_totals_equal_memory_stats_and_kinds_fsdp_s_own_tensors(world, options):
    if world == 1 and options == "resharded over 8" or not ON_GPU and options == "pinned CPU offload":
        pytest.skip("not possible here")
    check = Beside()
    if options == "pinned CPU offload":  # pinned memory does not come from the CPU's allocator
        check.compared = {DEVICE}
    given = {"mesh": mesh(world), **OPTIONS[options](world)}
    train(shard_blocks(blocks(check), **given), check)
    assert check.moments > 30
    not_here = {"All Gather"} if world == 1 else set()  # the only rank gathers nothing
    not_here |= {"Sharded Param", "Sharded Grad"} if options == "pinned CPU offload" else set()
    assert set(KINDS) - not_here <= check.seen


def test_modules_that_are_sharded_together(world):
    check = Beside()
    model = blocks(check)
    for layers in ([model[0], model[1]], [model[2], model[3]], model):
        fully_shard(layers, mesh=mesh(world))
    train(model, check)
    assert check.moments > 30


class Checkpointed(nn.Module):
    def __init__(self, check: Beside) -> None:
        super().__init__()
        self.inner = Block(WIDTH, check)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def test_checkpointed_blocks(world):
    check = Beside()
    model = shard_blocks(nn.Sequential(*[Checkpointed(check) for _ in range(3)]), mesh=mesh(world))
    train(model, check, torch.randn(4, WIDTH, device=DEVICE, requires_grad=True))
    assert check.moments > 30


def test_gradients_that_are_accumulated_without_a_reduction(world):
    check = Beside()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard_blocks(blocks(check), mesh=mesh(world), mp_policy=policy)
    x = torch.randn(4, WIDTH, device=DEVICE)
    with check.enter(model, torch.optim.SGD(model.parameters()), x):
        for last in (False, False, True):
            model.set_requires_gradient_sync(last)
            model(x).sum().backward()
            check("after a backward")
            assert ("Unsharded Grad" in held_by_fsdp(model, DEVICE)) is not last
    assert check.moments > 10


# ---- DDP ----


@pytest.fixture
def reducing(world: int) -> int:
    if dist.get_backend() == "fake":
        pytest.skip("torch's fake process group cannot reduce for DDP")
    return world


def settled(read: Callable[[], int], expected: int, elements: int) -> int:
    """What is read, once it is as expected or a time has passed, with all-reduces of so many elements meanwhile: NCCL
    holds buckets that were replaced until a thread has seen that their work is done, and another collective is
    launched."""
    end = time.monotonic() + LIMIT
    while read() != expected and time.monotonic() < end:
        release_finished_work(elements)
    return read()


def release_finished_work(elements: int = 1) -> None:
    dist.all_reduce(torch.ones(elements, device=DEVICE))
    if ON_GPU:
        torch.cuda.synchronize()
    time.sleep(0.05)


def listed_by_reducer(model: Any) -> list[int]:
    """The bytes of the buckets, by copies that the Reducer makes of them."""
    return [bucket.buffer().nbytes for bucket in model.reducer._get_zeros_like_grad_buckets()]


@pytest.mark.parametrize(
    "options", [{}, {"bucket_cap_mb": 0.05}, {"gradient_as_bucket_view": True}, {"static_graph": True}], ids=str
)
def test_buckets_equal_those_of_the_reducer(reducing, options, tmp_path):
    net = nn.Sequential(*[Block(WIDTH) for _ in range(3)]).to(DEVICE)
    x = torch.randn(4, WIDTH, device=DEVICE)
    gradients, launched, steps = sum(p.nbytes for p in net.parameters()), [], 3
    check = Beside()
    check.model = net
    check.mt.track_external(net, x)
    for _ in range(3):  # so that what a test before this one reduced is not held any more
        release_finished_work()
    with check, modscope.record(tmp_path / "run.msc"):
        model = DistributedDataParallel(net, device_ids=[0] if ON_GPU else None, **options)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            launched.append(len(listed_by_reducer(model)))
            model(x).sum().backward()
            check("after the backward")
            held = listed_by_reducer(model)
            buckets = sum(block_bytes(bytes, DEVICE) for bytes in held)
            assert sum(held) == gradients
            assert (
                settled(lambda: check.mt.get_kind_snapshot()[DEVICE]["Bucket"], buckets, len(list(net.parameters())))
                == buckets
            )
            assert check.mt.get_module_kinds()[DEVICE] == {"DistributedDataParallel": {"Bucket": buckets}}
            opt.step()
            opt.zero_grad()
            check("after the step")
        assert wrong_sums(check.mt) == []
    reduced = [
        one for one in modscope.load(tmp_path / "run.msc").collectives() if one.step and one.kind == "all_reduce"
    ]
    # without the map of used parameters
    found = [one for one in reduced if one.bytes != 4 * len(list(net.parameters()))]
    assert {(one.group.backend, one.group.size) for one in found} == {(REAL, reducing)}
    for step in range(1, steps + 1):
        assert sum(one.bytes for one in found if one.step == step) == gradients
    assert len([one for one in found if one.step == 1]) == launched[0]
    assert len([one for one in found if one.step == steps]) == len(held)


# ---- collectives ----

WORDS = {
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
}


def kind_of(operator: Any) -> str:
    name = str(operator).split(".")[-1].strip("_')>")
    return next(kind for word, kind in WORDS.items() if name.startswith(word))


@pytest.mark.parametrize("options", ["plain", "HSDP"])
def test_a_capture_has_the_collectives_that_comm_debug_mode_counts(world, options, tmp_path):
    model = shard_blocks(
        nn.Sequential(*[Block(WIDTH) for _ in range(2)]), **{"mesh": mesh(world), **OPTIONS[options](world)}
    )
    opt, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, WIDTH, device=DEVICE)
    expected: collections.Counter[str] = collections.Counter()
    with modscope.record(tmp_path / "run.msc"):
        for _ in range(2):
            with CommDebugMode() as counted:
                model(x).sum().backward()
            opt.step()
            opt.zero_grad()
            for operator, count in counted.get_comm_counts().items():
                expected[kind_of(operator)] += count
    found = modscope.load(tmp_path / "run.msc").collectives()
    assert collections.Counter(one.kind for one in found) == expected
    if world > 1 or options == "HSDP":
        assert found and {one.group.backend for one in found} <= {REAL, "fake"}


def test_a_capture_has_the_collectives_that_are_called(world, tmp_path):
    rows = [torch.ones(128 // world, device=DEVICE) for _ in range(world)]
    x, one = torch.ones(128, device=DEVICE), rows[0]
    calls = [
        ("all_reduce", lambda: dist.all_reduce(x)),
        ("broadcast", lambda: dist.broadcast(x, 0)),
        ("reduce", lambda: dist.reduce(x, 0)),
        ("all_gather", lambda: dist.all_gather(rows, one)),
        ("all_gather", lambda: dist.all_gather_into_tensor(x, one)),
        ("reduce_scatter", lambda: dist.reduce_scatter_tensor(one, x)),
        ("all_reduce", lambda: dist.all_reduce(x, async_op=True).wait() if world == 1 else dist.all_reduce(x)),
    ]
    if ON_GPU or world > 1:  # gloo has none of these
        calls.append(("reduce_scatter", lambda: dist.reduce_scatter(one, rows)))
        calls.append(("all_to_all", lambda: dist.all_to_all_single(x, x.clone())))
    with modscope.record(tmp_path / "run.msc"):
        for _, call in calls:
            call()
        dist.barrier()
    found = modscope.load(tmp_path / "run.msc").collectives()
    assert [(each.kind, each.bytes) for each in found] == [*((kind, 512) for kind, _ in calls), ("barrier", 0)]
    assert {(each.group.name, each.group.size) for each in found} == {("default_pg", world)}


# ---- lines ----

PROGRAM = """\
import traceback
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 64, device=DEVICE)

    def forward(self, x, noted):
        hidden, stack = torch.relu(self.inner(x)), traceback.extract_stack()
        noted.append((hidden, stack))
        return hidden.exp()

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, noted):
        ctx.noted = noted
        result, stack = x * 2, traceback.extract_stack()
        noted.append((result, stack))
        return result

    @staticmethod
    def backward(ctx, grad):
        result, stack = grad * 2, traceback.extract_stack()
        ctx.noted.append((result, stack))
        return result, None

def main(noted, kept):
    net = Net()
    [noted.append((torch.empty(1000 + i, device=DEVICE), traceback.extract_stack())) for i in range(3)]
    x = torch.ones(40, 64, device=DEVICE, requires_grad=True)
    loss = Twice.apply(net(x, noted), noted).sum()
    loss.backward()
    kept += [(net.inner.weight, 7, "Net.__init__"), (x, 31, "main"), (loss, 32, "main")]
    kept += [(net.inner.weight.grad, 33, "AddmmBackward0"), (net.inner.bias.grad, 33, "AddmmBackward0")]
    return net, x
"""


def own_frames(stack: Any, file: str) -> list[tuple[int | None, str]]:
    return [(frame.lineno, frame.name) for frame in reversed(stack) if frame.filename == file]


def test_lines_equal_those_of_traceback_and_of_torch_s_memory_history(tmp_path):
    """Also in autograd's thread of the device, where only the node's class is known, or the line of a custom
    function."""
    file, names = str(tmp_path / "program.py"), {"DEVICE": DEVICE}
    (tmp_path / "program.py").write_text(PROGRAM)
    exec(compile(PROGRAM, file, "exec"), names)
    noted: list[Any] = []
    kept: list[Any] = []
    history: dict[int, Any] = {}
    with modscope.MemTracker(stacks=16) as mt, modscope.record(tmp_path / "run.msc", stacks=16):
        if ON_GPU:
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
        held = names["main"](noted, kept)
        if ON_GPU:
            segments = torch.cuda.memory._snapshot()["segments"]
            torch.cuda.memory._record_memory_history(enabled=None)
            history = {
                block["address"]: block.get("frames", [])
                for segment in segments
                for block in segment["blocks"]
                if block["state"] == "active_allocated"
            }
        ledger, stacks = ledger_of(mt), {}
        for tensor, stack in noted:
            found = [
                (line, function.rpartition(".")[2])
                for name, function, line, *_ in ledger.stack(tensor.data_ptr())
                if name == file
            ]
            assert found == own_frames(stack, file), stack
            stacks[block_bytes(tensor.untyped_storage().nbytes(), DEVICE), found[0][0]] = found
        for tensor, line, name in kept:
            node, *frames = [(of, function, number) for of, function, number, *_ in ledger.stack(tensor.data_ptr())] + [
                (None, None, None)
            ]
            if name.endswith("Backward0"):
                assert node[:2] == (None, name)
                assert frames[0] in ((None, None, None), (file, "main", line))  # a thread of the device runs no Python
            else:
                assert node == (file, name, line)
        # Where torch's own history has a frame of the program, the innermost one is ours.
        compared = 0
        for tensor in [*(tensor for tensor, _ in noted), *(tensor for tensor, *_ in kept)]:
            theirs = [
                (frame["filename"], frame["line"])
                for frame in history.get(tensor.untyped_storage().data_ptr(), [])
                if frame["filename"] == file
            ]
            if theirs:
                assert (
                    next((of, line) for of, _, line, *_ in ledger.stack(tensor.data_ptr()) if of is not None)
                    == theirs[0]
                )
                compared += 1
        assert compared >= len(noted) + 2 or not ON_GPU
    capture = modscope.load(tmp_path / "run.msc")
    shown = {}
    for block in capture.snapshot(capture.event_count).blocks():
        if block.place and block.place.file == file:
            own = [
                (frame.line, frame.function.rpartition(".")[2]) for frame in block.place.frames if frame.file == file
            ]
            shown[block.bytes, block.place.line] = own
    assert {key: shown.get(key) for key in stacks} == stacks
    assert len(stacks) >= 4 and held


def test_doctor_finds_nothing_wrong():
    ran = subprocess.run([sys.executable, "-m", "modscope", "doctor"], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    rows = {
        line[2:17].strip(): line[18:]
        for line in ran.stdout.splitlines()
        if line.startswith("  ") and line[2:17].strip()
    }
    for point in ("FSDP2", "DDP", "Python lines", "collectives", "memory blocks", "saved tensors"):
        assert rows[point].startswith("verified"), ran.stdout
