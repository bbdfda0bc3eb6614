"""``FSDPMemTracker``: PyTorch's interface, its figures where they are right, and FSDP2's own tensors where they are
not."""

import gc
import warnings
from collections.abc import Iterator

import modscope
import pytest
import torch.distributed as dist
from fsdp_helpers import Block, cpu_mesh, held_by_fsdp, shard_blocks
from helpers import needs_interception
from memory_helpers import CPU
from modscope import FSDPMemTracker
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker as Theirs
from torch.distributed._tools.fsdp2_mem_tracker import _FSDPModState, _FSDPRefType
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import torch
from torch import nn

pytestmark = needs_interception
WIDTH = 48


@pytest.fixture(autouse=True, scope="module")
def fake_ranks() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def job(**options):
    gc.collect()  # otherwise the models of other tests may be freed in the middle of this one
    torch.manual_seed(0)
    model = shard_blocks(nn.Sequential(*[Block(WIDTH) for _ in range(3)], nn.Linear(WIDTH, 8)), **options)
    return model, torch.optim.Adam(model.parameters()), torch.randn(4, WIDTH)


def step(model, opt, x):
    model(x).sum().backward()
    opt.step()
    opt.zero_grad()


def track(tracker_type, steps=1, **options):
    model, opt, x = job(**options)
    tracker = tracker_type(model, opt)
    tracker.track_inputs((x,))
    with warnings.catch_warnings(), tracker:
        warnings.simplefilter("ignore")
        for _ in range(steps):
            step(model, opt, x)
    return model, tracker


def plain(snapshot):
    """By words, without enums."""
    return {str(getattr(key, "value", key)): value for key, value in snapshot[CPU].items()}


def words(enum):
    return [member.value for member in enum]


@pytest.mark.parametrize(
    "options",
    [{}, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, {"reshard_after_forward": False}],
)
def test_the_figures_are_pytorch_s_where_those_are_right(options):
    (ours_model, ours), (theirs_model, theirs) = (track(kind, **options) for kind in (FSDPMemTracker, Theirs))
    for type in ("current", "peak"):
        assert list(plain(ours.get_tracker_snapshot(type))) == list(plain(theirs.get_tracker_snapshot(type)))
    # At the peak theirs call unsharded gradients Temp.
    our_peak, their_peak = (plain(tracker.get_tracker_snapshot("peak")) for tracker in (ours, theirs))
    if not options:
        assert our_peak["Total"] == their_peak["Total"]
        assert our_peak["Unsharded Grad"] > 0 == their_peak["Unsharded Grad"]
        assert our_peak["Unsharded Grad"] + our_peak["Temp"] == their_peak["Temp"]
    our_stats, their_stats = (
        {one.mod_fqn: one for one in tracker.memory_tracking.values()} for tracker in (ours, theirs)
    )
    assert set(our_stats) == set(their_stats) and len(our_stats) == 4
    compared = 0
    for fqn, stats in their_stats.items():
        for state, taken in stats.snapshots.items():
            found = our_stats[fqn].snapshots[state.value]
            assert len(found) == len(taken)
            if state in (_FSDPModState.PEAK_FW, _FSDPModState.PEAK_BW, _FSDPModState.AFT_POST_BW):
                continue  # theirs: peaks before storages are known, and gradients that are freed already
            assert plain(found[0]) == plain(taken[0]), (fqn, state)
            compared += 1
    assert compared == 4 * 7


def test_the_interface_has_pytorch_s_words():
    _, tracker = track(FSDPMemTracker)
    snapshot = tracker.get_tracker_snapshot()
    assert [str(key) for key in snapshot[CPU]] == [*words(_FSDPRefType), "Total"]
    states = {str(state) for stats in tracker.memory_tracking.values() for state in stats.snapshots}
    assert states == set(words(_FSDPModState)) - {"Pre-Forward AC", "Post-Forward AC"}
    for stats in tracker.memory_tracking.values():
        for taken in stats.snapshots.values():
            for one in taken:
                assert sum(value for key, value in one[CPU].items() if key != "Total") == one[CPU]["Total"]
        peaks = [
            max(one[CPU]["Total"] for one in taken) for state, taken in stats.snapshots.items() if "Backward" in state
        ]
        assert stats.local_peak[CPU] == max(peaks)


def test_a_tracker_has_no_states_of_an_earlier_one():
    model, opt, x = job()
    for _ in range(2):
        tracker = FSDPMemTracker(model, opt)
        with tracker:
            step(model, opt, x)
        assert {len(taken) for stats in tracker.memory_tracking.values() for taken in stats.snapshots.values()} == {1}


def test_any_number_of_steps_and_a_reset():
    model, opt, x = job()
    tracker = FSDPMemTracker(model, opt)
    tracker.track_inputs((x,))
    with tracker:
        for _ in range(3):
            step(model, opt, x)
        stats = tracker.memory_tracking[model[0]]
        assert {len(taken) for taken in stats.snapshots.values()} == {1}  # of the latest step
        tracker.reset_mod_stats()
        assert not tracker.memory_tracking
        step(model, opt, x)
        assert len(tracker.memory_tracking) == 4
    step(model, opt, x)
    assert len(tracker.memory_tracking) == 4  # as it was when the tracker was left
    with tracker:
        step(model, opt, x)
    assert len(tracker.memory_tracking) == 4


def test_states_of_checkpointed_modules():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fully_shard(Block(WIDTH), mesh=cpu_mesh())

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    model = fully_shard(nn.Sequential(Checkpointed(), Checkpointed()), mesh=cpu_mesh())
    tracker = FSDPMemTracker(model)
    with tracker, set_checkpoint_early_stop(False):
        model(torch.randn(4, WIDTH, requires_grad=True)).sum().backward()
    states = tracker.memory_tracking[model[0].inner].snapshots
    assert len(states["Pre-Forward AC"]) == len(states["Post-Forward AC"]) == 1
    assert states["Pre-Forward AC"][0][CPU]["Unsharded Param"] > 0


def test_after_pre_forward_a_module_s_parameters_are_unsharded():
    model, opt, x = job()
    tracker = FSDPMemTracker(model, opt)
    seen = {}
    handle = model[1].up.register_forward_pre_hook(lambda module, args: seen.update(held_by_fsdp(model)))
    with tracker:
        step(model, opt, x)
    handle.remove()
    found = tracker.memory_tracking[model[1]].snapshots["After Pre-Forward"][0][CPU]
    assert seen["Unsharded Param"] > 0
    assert {kind: found[kind] for kind in seen} == seen


def test_grouped_modules_work_after_the_tracker_was_left():
    """PyTorch's leaves hooks behind, which raise."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(WIDTH) for _ in range(4)])
    fully_shard([model[0], model[1]], mesh=cpu_mesh())
    fully_shard(model, mesh=cpu_mesh())
    opt, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, WIDTH)
    with FSDPMemTracker(model, opt) as tracker:
        step(model, opt, x)
        step(model, opt, x)
    step(model, opt, x)
    assert model[0] in tracker.memory_tracking and model[1] in tracker.memory_tracking


def test_only_fsdp_modules():
    with pytest.raises(AssertionError, match="only supports FSDP modules"):
        FSDPMemTracker(nn.Linear(2, 2))


def test_inputs_are_counted_as_such(capsys):
    model, opt, x = job()
    y = {"more": [torch.randn(100), 3]}
    tracker = FSDPMemTracker(model, opt)
    tracker.track_inputs((x, y))
    tracker.track_external(torch.randn(1000))  # does nothing
    with tracker:
        assert tracker.get_tracker_snapshot()[CPU]["Inputs"] == x.nbytes + 400
        step(model, opt, x)
    tracker.display_snapshot("peak", units="KiB", tabulate=True)
    tracker.display_modulewise_snapshots(depth=3, units="KiB", tabulate=True)
    shown = capsys.readouterr().out
    assert "Unsharded Param" in shown and "After Pre-Backward # 1" in shown and "Module:  FSDPSequential.1" in shown


def test_an_exception_in_the_model_leaves_nothing_behind():
    model, opt, x = job()
    tracker = FSDPMemTracker(model, opt)
    with pytest.raises(RuntimeError), tracker:
        model(torch.randn(4, WIDTH + 1))
    assert not modscope._native.fsdp_intercepted()
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    model._get_fsdp_state()._state_ctx.iter_forward_root = None
    with tracker:
        assert tracker.get_kind_snapshot()[CPU].keys() >= {"Sharded Param"}


def test_drop_in():
    import torch.distributed._tools as tools

    with modscope.drop_in():
        assert tools.FSDPMemTracker is FSDPMemTracker
    assert tools.FSDPMemTracker is Theirs
