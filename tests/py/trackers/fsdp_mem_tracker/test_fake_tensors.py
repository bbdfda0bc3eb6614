"""FSDP2 by the dispatcher, with fake and with real tensors: totals are PyTorch's, and those of a meter that adds up the
sizes of all live storages after each operator and each resize. FSDP2 frees and refills storages without an operator."""

import contextlib
import gc
import weakref
from collections.abc import Iterator

import modscope
import pytest
import torch.distributed as dist
from fsdp_helpers import Block, shard_blocks
from helpers import needs_interception
from memory_helpers import CPU
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker as Theirs
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = [needs_interception, pytest.mark.filterwarnings("ignore")]
WIDTH = 32


@pytest.fixture(autouse=True)
def world(request: pytest.FixtureRequest) -> Iterator[None]:
    """4 ranks, or as many as the test's parameter says."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=getattr(request, "param", 4))
    yield
    dist.destroy_process_group()


class Meter(TorchDispatchMode):
    """The most bytes that all storages had together, after any operator or resize."""

    def __init__(self, model, opt, x):
        super().__init__()
        self._storages, self._mode, self.peak = {}, active_fake_mode(), 0
        states = [value for state in opt.state.values() for value in state.values()]
        self._measure([*model.parameters(), *model.buffers(), *states, x])

    def now(self):
        live = {key: storage for key, ref in self._storages.items() if (storage := ref()) is not None}
        self._storages = {key: self._storages[key] for key in live}
        return sum(storage.nbytes() for storage in live.values())

    def _measure(self, seen):
        for tensor in tree_leaves(seen):
            if isinstance(tensor, torch.Tensor):
                self._add(getattr(tensor, "_local_tensor", tensor).untyped_storage())
        self.peak = max(self.peak, self.now())

    def _add(self, storage):
        known = self._storages.get(storage._cdata)
        if known is None or known() is None:
            self._storages[storage._cdata] = weakref.ref(storage)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if active_fake_mode() is self._mode:
            self._measure((result, args, kwargs))
        return result

    def __enter__(self):
        original = self._original = torch.UntypedStorage.resize_

        def resize_(storage, size):
            original(storage, size)
            self._add(storage)
            self.peak = max(self.peak, self.now())

        torch.UntypedStorage.resize_ = resize_
        return super().__enter__()

    def __exit__(self, *exc):
        torch.UntypedStorage.resize_ = self._original
        return super().__exit__(*exc)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block(WIDTH)

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


MODELS = {
    "linear": lambda: nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)]),
    "blocks": lambda: nn.Sequential(*[Block(WIDTH) for _ in range(3)], nn.Linear(WIDTH, 8)),
    "checkpointed": lambda: nn.Sequential(*[Checkpointed() for _ in range(3)]),
}
OPTIONS = {
    "plain": {},
    "mixed precision": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
    "half precision": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)},
    "kept after forward": {"reshard_after_forward": False},
    "resharded over 2": {"reshard_after_forward": 2},
}


@pytest.fixture(autouse=True, scope="module")
def warm() -> None:
    """The first operators on DTensors of a process hold memory for a while."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    with job("linear", "plain", True, 1):
        pass
    dist.destroy_process_group()


def step(model, opt, x):
    model(x).sum().backward()
    opt.step()
    opt.zero_grad()


@contextlib.contextmanager
def job(kind, options, fake, steps_before):
    """A model, its optimizer and a batch, after some steps."""
    with FakeTensorMode() if fake else contextlib.nullcontext():
        torch.manual_seed(0)
        model = MODELS[kind]()
        with unset_fake_temporarily():  # FSDP2 computes with the mesh's ranks
            shard_blocks(model, **OPTIONS[options])
        opt, x = torch.optim.Adam(model.parameters()), torch.randn(4, WIDTH)
        for _ in range(steps_before):
            step(model, opt, x)
        gc.collect()
        yield model, opt, x


def plain(snapshot):
    """By words, without enums."""
    return {str(getattr(key, "value", key)): value for key, value in snapshot.get(CPU, {}).items()}


def measure(tracker_type, *where):
    """Bytes at the peak and after the step, by words."""
    with job(*where) as (model, opt, x):
        tracker = tracker_type(model, opt)
        tracker.track_inputs((x,))
        with tracker:
            step(model, opt, x)
        gc.collect()
        return plain(tracker.get_tracker_snapshot("peak")), plain(tracker.get_tracker_snapshot()), tracker


def metered(*where):
    with job(*where) as (model, opt, x):
        meter = Meter(model, opt, x)
        with meter:
            step(model, opt, x)
        gc.collect()
        return meter.peak, meter.now()


CASES = [(kind, options, 1, 4) for kind in MODELS for options in OPTIONS]
CASES += [(kind, "plain", 0, 4) for kind in MODELS] + [("blocks", "mixed precision", 1, 64)]


@pytest.mark.parametrize("kind, options, steps_before, world", CASES, indirect=["world"])
def test_fake_totals_are_pytorch_s_and_the_meter_s(kind, options, steps_before):
    where = (kind, options, True, steps_before)
    peak, now, _ = measure(modscope.FSDPMemTracker, *where)
    their_peak, their_now, _ = measure(Theirs, *where)
    assert (peak["Total"], now["Total"]) == metered(*where) == (their_peak["Total"], their_now["Total"])
    assert now == their_now
    # Theirs call gradients Temp and smaller shards activations; and what is freed later, at another moment of the peak.
    moved = {"Unsharded Grad", "Temp", "Sharded Param", "Unsharded Param", "Activation", "OptState"}
    assert {k: v for k, v in peak.items() if k not in moved} == {k: v for k, v in their_peak.items() if k not in moved}
    assert peak["Inputs"] == 4 * 4 * WIDTH


def test_fake_states_are_those_of_real_tensors():
    """Without peaks, at which the allocator holds what an operator allocates inside."""
    found = []
    for fake in (False, True):
        measure(modscope.FSDPMemTracker, "linear", "plain", fake, 1)
        *_, tracker = measure(modscope.FSDPMemTracker, "linear", "plain", fake, 1)
        found.append(
            {
                (stats.mod_fqn, str(state)): [plain(one) for one in taken]
                for stats in tracker.memory_tracking.values()
                for state, taken in stats.snapshots.items()
                if "Peak" not in state
            }
        )
    assert len(found[0]) == 8 * 8 and found[0] == found[1]


def test_the_issue_s_model():
    """8 x Linear(1024) over 8 ranks, without the batch and what the optimizer holds: torch's tracker says 24 MiB."""
    with FakeTensorMode():
        model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)])
        with unset_fake_temporarily():
            shard_blocks(model)
        trackers = [kind(model) for kind in (modscope.FSDPMemTracker, Theirs)]
        for tracker in trackers:
            with tracker:
                model(torch.ones(1, 1024)).sum().backward()
                model.zero_grad()
        ours, theirs = (plain(tracker.get_tracker_snapshot("peak")) for tracker in trackers)
    assert ours["Total"] == theirs["Total"]
    assert ours["Unsharded Param"] == theirs["Unsharded Param"] == 4 << 20


@pytest.mark.parametrize("fake", [False, True])
def test_a_memtracker_by_the_dispatcher_that_was_given_nothing_sees_what_is_refilled(fake):
    """It learns of the empty storages, which were made before it, when FSDP2 refills them."""
    with job("linear", "plain", fake, 1) as (model, opt, x):
        mt = modscope.MemTracker("dispatcher")
        with mt:
            model[0](x)
        assert mt.get_kind_snapshot("peak")[CPU]["Unsharded Param"] == 4 * WIDTH * (WIDTH + 1)


def test_a_fake_collective_that_is_waited_for_is_counted_once():
    with FakeTensorMode(), modscope.MemTracker() as mt:
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(torch.ones(100), 4, "0")
        waited = torch.ops._c10d_functional.wait_tensor(gathered)
        assert waited is gathered
        del gathered
        assert mt.get_tracker_snapshot()[CPU]["Total"] == 1600 == mt.get_tracker_snapshot("peak")[CPU]["Total"] - 400
