"""torch's own tools have the same results with modscope's trackers as with torch's, on programs where torch's
trackers are right."""

import contextlib
import io

import modscope
import pytest
from helpers import leaf, make
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import torch
from torch import nn

distributed_tools = pytest.importorskip("torch.distributed._tools")
mem_tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
runtime_estimator = pytest.importorskip("torch.distributed._tools.runtime_estimator")
sac_estimator = pytest.importorskip("torch.distributed._tools.sac_estimator")
# torch's own, which drop_in replaces under their names: with it they use modscope's trackers
TORCH_MEM_TRACKER = mem_tracker.MemTracker
TORCH_RUNTIME_ESTIMATOR = runtime_estimator.RuntimeEstimator
TORCH_SAC_ESTIMATOR = sac_estimator.SACEstimator


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self, width=8, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Checkpointed(Net):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


class Attention(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Encoder(nn.Module):
    """Without dropout layers: torch's own tracker never leaves a module that returns its input."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(Attention(), Block(8)) for _ in range(2)])

    def forward(self, x):
        return self.layers(x).mean(1)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (4, 8)),
    "net": (Net, (4, 8)),
    "encoder": (Encoder, (2, 3, 8)),
}
# In older versions torch's own tracker does not report the end of a backward that reaches no input.
REPORTS_ALL = hasattr(distributed_tools.ModTracker(), "_post_bw_callbacks_to_enqueue")
EITHER_INPUT = [
    pytest.param(False, marks=pytest.mark.skipif(not REPORTS_ALL, reason="torch's own is wrong here")),
    True,
]

each_model = pytest.mark.parametrize("build,shape", MODELS.values(), ids=MODELS.keys())


def given(shape, requires_grad):
    """An input that is not a leaf: for a leaf, torch's own tracker creates views, which its tools then count."""
    return torch.randn(shape, requires_grad=True) * 1 if requires_grad else torch.randn(shape)


def both(run):
    """The results with torch's trackers and with modscope's."""
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = run()
        torch.manual_seed(0)
        with modscope.drop_in():
            ours = run()
    return theirs, ours


@each_model
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("input_grad", [False, True])
def test_flop_counter(build, shape, backward, input_grad):
    def run():
        mod, x = build(), given(shape, input_grad)
        with FlopCounterMode(display=False) as counter:
            y = mod(x).sum()
            if backward:
                y.backward()
        return {k: {str(op): n for op, n in v.items()} for k, v in counter.get_flop_counts().items()}

    theirs, ours = both(run)
    assert ours == theirs
    assert len(ours) > 1 and sum(ours["Global"].values()) > 0


def test_flop_counter_is_right_after_an_exception():
    """A program after which torch's own tracker is wrong for the rest of the process."""

    def throw(m, x):
        raise ValueError

    with modscope.drop_in(), FlopCounterMode(display=False) as counter:
        with pytest.raises(ValueError):
            make("Bad", lambda m, x: m.a(x), a=leaf(throw))(1)
        nn.Linear(4, 4)(torch.ones(1, 4))
    assert set(counter.get_flop_counts()) == {"Global", "Linear"}


@each_model
@pytest.mark.parametrize("input_grad", [False, True])
def test_debug_mode(build, shape, input_grad):
    DebugMode = pytest.importorskip("torch.utils._debug_mode").DebugMode

    def run():
        mod, x = build(), given(shape, input_grad)
        with DebugMode(record_nn_module=True) as debug:
            mod(x).sum().backward()
        return debug.debug_string()

    theirs, ours = both(run)
    assert ours == theirs
    assert "nn.Mod" in ours


def snapshots(tracker):
    """All stats of MemTracker, by module name."""
    return {
        stats.mod_fqn: (
            {
                str(s): [{str(d): {str(k): v for k, v in snap.items()} for d, snap in each.items()} for each in snaps]
                for s, snaps in stats.snapshots.items()
            },
            stats.parameter_mem,
            stats.buffer_mem,
            stats.input_mem,
            stats.output_mem,
            {str(d): v for d, v in stats.local_peak.items()},
        )
        for stats in tracker.memory_tracking.values()
    }


@pytest.mark.parametrize(
    "build,shape", [MODELS["mlp"], MODELS["net"], (Checkpointed, (4, 8))], ids=["mlp", "net", "checkpointed"]
)
@pytest.mark.parametrize("input_grad", EITHER_INPUT)
def test_mem_tracker(build, shape, input_grad):
    def run():
        mod = build()
        opt = torch.optim.Adam(mod.parameters(), foreach=True)
        tracker = TORCH_MEM_TRACKER()
        tracker.track_external(mod, opt)
        results = []
        with tracker:
            # Only one step with input gradients: the hooks of torch's own tracker keep those of the first step alive.
            for _ in range(1 if input_grad else 2):
                x = given(shape, input_grad)
                mod(x).sum().backward()
                opt.step()
                opt.zero_grad()
                results.append(snapshots(tracker))
                tracker.reset_mod_stats()
        peak = tracker.get_tracker_snapshot("peak")
        results.append({str(d): {str(k): v for k, v in snap.items()} for d, snap in peak.items()})
        return results

    theirs, ours = both(run)
    assert ours == theirs
    assert len(ours[0]) == sum(1 for m in build().modules() if not isinstance(m, nn.ModuleList))


def flops_as_time(func, args, kwargs):
    """A cost that needs no GPU: an operator's flops."""
    out = func(*args, **(kwargs or {}))
    count = flop_registry.get(func._overloadpacket)
    return out, float(count(*args, **(kwargs or {}), out_val=out)) if count else 0.0


@pytest.fixture
def no_gpu_needed(monkeypatch):
    for estimator in (TORCH_RUNTIME_ESTIMATOR, modscope.RuntimeEstimator):  # torch's calls the one with its name
        monkeypatch.setattr(estimator, "_roofline_estimate", staticmethod(flops_as_time))


@each_model
@pytest.mark.parametrize("input_grad", EITHER_INPUT)
def test_runtime_estimator(build, shape, input_grad, no_gpu_needed):
    def run():
        with FakeTensorMode():
            mod, x = build(), given(shape, input_grad)
            estimator = TORCH_RUNTIME_ESTIMATOR()
            with estimator("operator-level-cost-model"):
                mod(x).sum().backward()
        times = {k: {p: v for p, v in times.items() if v} for k, times in estimator.mod_runtimes.items()}
        return (
            {k: v for k, v in times.items() if v},
            estimator.mod_fw_pre_order,
            estimator.mod_fw_post_order,
            estimator.mod_bw_pre_order,
            estimator.mod_bw_post_order,
            estimator.total_runtime,
        )

    theirs, ours = both(run)
    assert ours[0] == theirs[0]
    assert ours[1:3] == theirs[1:3]
    assert sorted(ours[3]) == sorted(theirs[3])
    assert sorted(ours[4]) == sorted(theirs[4])
    assert ours[5] == theirs[5] > 0


@each_model
def test_sac_estimator(build, shape, no_gpu_needed):
    def run():
        with FakeTensorMode():
            mod, x = build(), given(shape, True)
            estimator = TORCH_SAC_ESTIMATOR()
            with estimator("operator-level-cost-model"):
                mod(x)
        # saved_autograd_ops is left out: it compares addresses of storages that were freed.
        return (
            {
                k: {n: v for n, v in vars(s).items() if n != "saved_autograd_ops"}
                for k, s in estimator.sac_mod_stats.items()
            },
            {k: (m.recomputed_ops, m.stored_ops) for k, m in estimator.sac_mod_greedy_order_meta.items()},
        )

    theirs, ours = both(run)
    assert ours == theirs
    assert ours[0]


# ---- drop_in itself ----


def classes():
    import torch.distributed._tools.mod_tracker as mod_tracker
    import torch.utils.flop_counter as flop_counter
    import torch.utils.module_tracker as module_tracker

    return [
        mod_tracker.ModTracker,
        module_tracker.ModuleTracker,
        flop_counter.ModuleTracker,
        mem_tracker.ModTracker,
        runtime_estimator.ModTracker,
        sac_estimator.ModTracker,
        distributed_tools.ModTracker,
    ]


def test_drop_in_swaps_and_restores():
    before = classes()
    with modscope.drop_in():
        assert isinstance(FlopCounterMode(display=False).mod_tracker, modscope.ModuleTracker)
        assert isinstance(TORCH_MEM_TRACKER()._mod_tracker, modscope.ModTracker)
        assert mem_tracker.MemTracker is distributed_tools.MemTracker is modscope.MemTracker
    assert classes() == before
    assert not isinstance(FlopCounterMode(display=False).mod_tracker, modscope.ModuleTracker)


def test_an_estimator_of_torch_s_from_before_takes_modscope_s_times():
    with FakeTensorMode(), modscope.drop_in(), contextlib.redirect_stdout(io.StringIO()):
        mod, x = Net(), torch.randn(4, 8)
        theirs, ours = TORCH_RUNTIME_ESTIMATOR(), modscope.RuntimeEstimator()
        for estimator in (theirs, ours):
            with estimator("operator-level-cost-model"):
                mod(x)
    assert theirs.total_runtime == pytest.approx(ours.total_runtime) and ours.total_runtime > 0


def test_drop_in_restores_after_an_exception():
    before = classes()
    with pytest.raises(ZeroDivisionError), modscope.drop_in():
        1 / 0
    assert classes() == before


def test_drop_in_nests():
    before = classes()
    with modscope.drop_in():
        inside = classes()
        with modscope.drop_in():
            assert classes() == inside
        assert classes() == inside
    assert classes() == before


def test_a_client_made_inside_is_used_outside():
    with modscope.drop_in():
        counter = FlopCounterMode(display=False)
    with counter:
        nn.Linear(4, 4)(torch.ones(1, 4))
    assert set(counter.get_flop_counts()) == {"Global", "Linear"}
