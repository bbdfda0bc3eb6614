"""RuntimeEstimator: times by module, orders, both ways to estimate, and what happens where they cannot be used."""

import contextlib
import io

import pytest
from estimated_models import Container, Frozen, Net, Twice, batch, fake, runtimes_of, step
from modscope import RuntimeEstimator
from torch.utils.checkpoint import checkpoint
from virtual_helpers import needs_interception, run

import torch

ORDERS = ("mod_fw_pre_order", "mod_fw_post_order", "mod_bw_pre_order", "mod_bw_post_order")
COST_MODEL = "operator-level-cost-model"


def hooks_of(model):
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [getattr(module, name) for module in model.modules() for name in names]


def theirs(build, monkeypatch):
    """torch's estimator, where each operator takes 1 ms: without a GPU it knows no times."""
    from torch.distributed._tools import runtime_estimator

    def one(cls, func, args, kwargs):
        return func(*args, **(kwargs or {})), 1.0

    monkeypatch.setattr(runtime_estimator.RuntimeEstimator, "_roofline_estimate", classmethod(one))
    with fake(), contextlib.redirect_stdout(io.StringIO()):
        model, x = build(), batch()
        estimator = runtime_estimator.RuntimeEstimator()
        with estimator(COST_MODEL):
            step(model, x)
    return estimator


@pytest.mark.parametrize("build", [Net, Container])
def test_orders_and_modules_are_those_of_torch_where_torch_works(build, monkeypatch):
    expected, found = theirs(build, monkeypatch), runtimes_of(build)
    assert {name: getattr(found, name) for name in ORDERS} == {name: getattr(expected, name) for name in ORDERS}
    assert set(found.mod_runtimes) == set(expected.mod_runtimes)
    assert found.lost == 0


@pytest.mark.parametrize("build", [Frozen, Twice])
def test_models_on_which_torch_fails_or_is_not_complete(build):
    found = runtimes_of(build)
    root = build.__name__
    times = found.mod_runtimes
    assert times["Global"]["fw"] + times["Global"]["bw"] == pytest.approx(found.total_runtime)
    assert 0 < times[f"{root}.head"]["fw"] < times[root]["fw"] <= times["Global"]["fw"]
    if build is Twice:
        assert found.mod_fw_pre_order.count("Twice.block") == 2
    else:
        assert times["Frozen.blocks.0"]["bw"] == 0.0 < times["Frozen.blocks.1"]["bw"]


def test_a_module_called_twice_takes_twice_as_long():
    once, twice = runtimes_of(lambda: Net(1)), runtimes_of(Twice)
    assert twice.mod_runtimes["Twice.block"]["fw"] == pytest.approx(2 * once.mod_runtimes["Net.blocks.0"]["fw"])


def test_a_product_takes_the_time_that_the_model_of_the_gpu_says():
    from modscope._virtual.gpus import find_gpu
    from modscope._virtual.time.roofline import Roofline

    size = 1024
    with fake():
        a = torch.randn(size, size)
        estimator = RuntimeEstimator(gpu_type="NVIDIA A100")
        with estimator(COST_MODEL):
            a.mm(a)
    gpu = find_gpu("a100")
    x = torch.empty(size, size, device="meta")
    spec = ((size, size), (size, 1), torch.float32)
    expected = Roofline(gpu, gpu.speed).seconds(torch.ops.aten.mm.default, (x, x), {}, spec)
    assert estimator.total_runtime == pytest.approx(1e3 * expected)
    assert 1e3 * 2 * size**3 / 19.5e12 < estimator.total_runtime  # torch's estimate is below the floor


def test_views_and_new_tensors_take_no_time():
    with fake():
        x = torch.randn(8, 8)
        estimator = RuntimeEstimator()
        with estimator(COST_MODEL):
            x.t().unsqueeze(0)
            torch.empty(100)
            x.detach()
    assert estimator.total_runtime == 0.0


def test_what_a_checkpoint_runs_again_counts_as_backward():
    class Checkpointed(Net):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    plain, again = runtimes_of(Net).mod_runtimes, runtimes_of(Checkpointed).mod_runtimes
    added = again["Checkpointed.blocks.1"]["bw"] - plain["Net.blocks.1"]["bw"]
    assert again["Checkpointed.blocks.1"]["fw"] == pytest.approx(plain["Net.blocks.1"]["fw"])
    assert 0 < added <= plain["Net.blocks.1"]["fw"] * 1.0001


def test_nothing_is_left_on_the_model_and_what_was_recorded_stays():
    with fake():
        model, x = Net(), batch()
        before = [dict(hooks) for hooks in hooks_of(model)]
        estimator = RuntimeEstimator()
        with pytest.raises(ZeroDivisionError), estimator(COST_MODEL):
            model(x)
            1 / 0
        total = estimator.total_runtime
        step(model, x)
        assert (estimator.total_runtime, hooks_of(model)) == (total, before)
        with estimator(COST_MODEL):
            step(model, x)
        assert estimator.total_runtime > total
        assert estimator.mod_fw_pre_order.count("Net") == 1


def test_display(capsys):
    estimator = runtimes_of(Net, gpu_type="t4")
    assert "total_time: " in (line := capsys.readouterr().out) and "Tesla T4" in line
    estimator.display_modulewise_stats(depth=2)
    text = capsys.readouterr().out
    assert "Pre-Forward Execution Order: \nNet\nNet.head\nPre-Backward" in text
    assert "Net.head fw: " in text and "Net.blocks.0" not in text


def test_bad_input():
    estimator = RuntimeEstimator()
    with pytest.raises(NotImplementedError, match="by-guessing not supported: use 'operator-level-cost-model'"):
        estimator("by-guessing")
    with pytest.raises(AssertionError, match=r"No FakeTensorMode found: .*virtual_gpu"), estimator(COST_MODEL):
        pass
    with fake():
        if not torch.cuda.is_available():
            with pytest.raises(RuntimeError, match="there is none: use 'operator-level-cost-model'"):
                estimator("operator-level-benchmark").__enter__()
        with pytest.raises(ValueError, match="is not a GPU that is known"):
            RuntimeEstimator(gpu_type="AMD MI300X")(COST_MODEL).__enter__()
        with pytest.raises(ValueError, match="it is not known how fast"):
            RuntimeEstimator(gpu_type="24GiB")(COST_MODEL).__enter__()
        with estimator(COST_MODEL), pytest.raises(RuntimeError, match="active already"):
            estimator.__enter__()
    assert RuntimeEstimator().mod_runtimes == {} and RuntimeEstimator().total_runtime == 0.0


# ---- on the virtual GPU ----

VIRTUAL = """
    import contextlib
    import modscope
    from torch._subclasses.fake_tensor import FakeTensorMode

    ROWS = 1 << 19  # so many that the device is busy longer than the host needs to launch

    def make():
        with torch.device("cuda"):
            return nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 64)), torch.randn(ROWS, 64)

    def run(mode, fake):
        with FakeTensorMode() if fake else contextlib.nullcontext():
            model, x = make()
            estimator = modscope.RuntimeEstimator()
            with contextlib.redirect_stdout(io.StringIO()), estimator(mode):
                model(x).sum().backward()
        assert estimator.lost == 0
        return estimator

    def close(a, b):
        return 0 < a < 1.01 * b and b < 1.01 * a

    device = run("operator-level-cost-model", False).mod_runtimes["Sequential"]
    fake = run("operator-level-cost-model", True)
    assert close(device["fw"], fake.mod_runtimes["Sequential"]["fw"])
    assert close(device["bw"], fake.mod_runtimes["Sequential"]["bw"])

    # Each operator runs on the virtual GPU, and its events have the virtual time.
    measured = run("operator-level-benchmark", True)
    assert not measured._estimation.not_measured
    assert 0.8 < measured.total_runtime / fake.total_runtime < 1.25

    operators = modscope.SACEstimator()
    model, x = make()
    with operators("operator-level-cost-model"):
        model(x)
    stats = operators.sac_mod_stats["Sequential"]
    assert stats.func_names == ["t", "addmm", "native_layer_norm", "t", "addmm"]
    assert stats.memory == [0, ROWS * 256 * 4, ROWS * 256 * 4 + 2 * ROWS * 4, 0, 0]
    assert stats.view_like_ops == [0, 3] and close(sum(stats.runtimes), device["fw"])
"""


@needs_interception
def test_on_a_virtual_gpu_the_times_are_those_of_its_clock():
    run(VIRTUAL)
