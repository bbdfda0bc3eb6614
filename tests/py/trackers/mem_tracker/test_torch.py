"""Compared with torch's own: its MemTracker has the same figures where it is right, and its tool for memory
statistics accepts modscope's."""

from types import SimpleNamespace

import pytest
from helpers import make, mlp, needs_interception
from memory_helpers import CPU, at_peak, every_source, now, parameter_bytes, reading
from modscope import MemTracker

import torch
from torch import nn

TorchMemTracker = pytest.importorskip(
    "torch.distributed._tools.mem_tracker", reason="this torch has no MemTracker"
).MemTracker


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.act, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


MODELS = {
    "mlp": lambda: mlp(3, 16),
    "residual": lambda: nn.Sequential(Residual(16), Residual(16)),
    "with buffers": lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)),
}


def train_and_read(mt, kind):
    """The readings of a tracker of either kind during one step."""
    torch.manual_seed(0)
    mod, x = MODELS[kind](), torch.randn(8, 16)
    opt = torch.optim.Adam(mod.parameters(), foreach=True)
    mt.track_external(mod, opt, x)
    readings = {}
    with mt:
        loss = mod(x).square().sum()
        readings["forward"] = reading(mt)
        loss.backward()
        del loss
        readings["backward"] = reading(mt)
        opt.step()
        readings["step"] = reading(mt)
        opt.zero_grad()
        readings["zero"] = reading(mt)
    return readings, mod


def without_other(held):
    """torch's counts what is made outside modules as Activation, ours as Other unless autograd keeps it."""
    held = dict(held)
    held["Activation"] += held.pop("Other")
    return held


@every_source
@pytest.mark.parametrize("kind", MODELS)
def test_the_same_categories_at_each_point(source, kind):
    ours, theirs = train_and_read(MemTracker(source), kind)[0], train_and_read(TorchMemTracker(), kind)[0]
    assert {point: without_other(held) for point, held in ours.items()} == {
        point: without_other(held) for point, held in theirs.items()
    }


@every_source
@pytest.mark.parametrize("kind", MODELS)
def test_the_same_peak_of_forward_and_backward(source, kind):
    peaks = []
    for mt in (MemTracker(source), TorchMemTracker()):
        torch.manual_seed(0)
        mod, x = MODELS[kind](), torch.randn(8, 16)
        mt.track_external(mod, x)
        with mt:
            mod(x).square().sum().backward()
        peaks.append(at_peak(mt))
    assert peaks[0] >= peaks[1]  # torch's does not see what lives inside one operator
    if source == "dispatcher":
        assert peaks[0] == peaks[1]


@every_source
@pytest.mark.parametrize("kind", MODELS)
def test_the_same_statistics_of_modules(source, kind):
    def facts(mt):
        _, mod = train_and_read(mt, kind)
        return {
            stats.mod_fqn: (
                stats.parameter_mem,
                stats.buffer_mem,
                stats.input_mem,
                stats.output_mem,
                {state: reading_of(stats, state) for state in ("Pre-Forward", "Post-Forward", "Pre-Backward")},
            )
            for stats in (mt.memory_tracking[part] for part in mod.modules())
        }

    def reading_of(stats, state):
        entries = [{str.__str__(key): value for key, value in entry[CPU].items()} for entry in stats.snapshots[state]]
        return [without_other(entry) for entry in entries]

    assert facts(MemTracker(source)) == facts(TorchMemTracker())


@every_source
def test_torchs_client_takes_our_statistics(source):
    """It makes a deep copy, looks up its modules, and needs every state of every module."""
    aggregate_stats = pytest.importorskip(
        "torch.distributed._tools.ilp_utils", reason="not in this torch"
    ).aggregate_stats
    mod = make("Net", lambda m, x: m.c(m.b(m.a(x))), a=nn.Linear(8, 16), b=nn.ReLU(), c=nn.Linear(16, 4))
    x = torch.randn(32, 8, requires_grad=True)
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt:
        mod(x).backward(torch.ones(32, 4))
    names = [stats.mod_fqn for stats in mt.memory_tracking.values()]
    times = SimpleNamespace(
        mod_runtimes={name: {"fw": 1.0, "bw": 2.0} for name in names},
        mod_fw_pre_order=names,
        mod_bw_pre_order=names,
        mod_fw_post_order=names,
        mod_bw_post_order=names,
    )
    savings = SimpleNamespace(pwlf_sac_tradeoff_curve=lambda: None, sac_mod_tradeoff_stats={})
    info = aggregate_stats(mod, mt, times, savings, CPU)
    found = {stat["fqn"]: stat for stat in info["mod_stats"]}
    assert list(found) == ["Net", "Net.a", "Net.b", "Net.c"]
    assert [found[name]["param_per_module"] for name in found] == [848, 576, 0, 272]
    assert [found[name]["input_per_module"] for name in found] == [1024, 1024, 2048, 2048]
    assert [found[name]["output_per_module"] for name in found] == [512, 2048, 2048, 512]
    assert [found[name]["act_fw_per_module"] for name in found] == [2048, 0, 0, 0]
    assert found["Net.a"]["grad_total"] == 272
    assert found["Net"]["grad_total"] == 0


@needs_interception
def test_torchs_tracker_inside_ours():
    """Its dispatch mode and hooks do not disturb modscope's tracker, nor the other way round."""
    mod, x = mlp(2, 8), torch.randn(4, 8)
    with MemTracker("allocator") as ours, TorchMemTracker() as theirs:
        mod(x).sum().backward()
        assert now(ours, "Gradient") == now(theirs, "Gradient") == parameter_bytes(mod)
        assert now(ours, "Parameter") == now(theirs, "Parameter")


@needs_interception
def test_ours_inside_torchs_tracker():
    mod, x = mlp(2, 8), torch.randn(4, 8)
    with TorchMemTracker() as theirs, MemTracker("allocator") as ours:
        mod(x).sum().backward()
        assert now(ours, "Gradient") == now(theirs, "Gradient") == parameter_bytes(mod)
