"""SACEstimator: the operators of modules, the greedy order, the trade-off curve, and their text."""

import contextlib
import dataclasses
import io
import random

import pytest
from estimated_models import ROWS, WIDTH, Block, Container, Frozen, Net, Twice, batch, fake, operators_of
from modscope import SACEstimator, SACGreedyOrderMeta, SACStats, SACTradeOffStats
from modscope._trackers import piecewise_fit
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

COST_MODEL = "operator-level-cost-model"
BYTES = ROWS * WIDTH * 4  # of the batch


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.fc(x).relu_().cos_() + 1


class Several(nn.Module):
    """Dropout, attention, an argument that is changed, and two outputs."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.block = Block()

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, ROWS // 2, 3, 4, -1).permute(2, 0, 3, 1, 4).unbind()
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(ROWS, WIDTH)
        y = nn.functional.dropout(y, 0.1)
        x.add_(1)
        return self.block(y), y


def theirs(build, monkeypatch):
    """torch's estimator. An operator takes as many ms as a number made of its name says."""
    from torch.distributed._tools import runtime_estimator, sac_estimator

    def numbered(cls, func, args, kwargs):
        return func(*args, **(kwargs or {})), float(random.Random(str(func)).randint(1, 9))

    monkeypatch.setattr(runtime_estimator.RuntimeEstimator, "_roofline_estimate", classmethod(numbered))
    with fake():
        model, x = build(), batch()
        estimator = sac_estimator.SACEstimator()
        with estimator(COST_MODEL):
            model(x)
    return estimator


# ---- beside torch's ----


@pytest.mark.parametrize("build", [Net, Container])
def test_statistics_and_order_are_those_of_torch_where_torch_is_right(build, monkeypatch):
    expected, found = theirs(build, monkeypatch), operators_of(build)
    assert list(found.sac_mod_stats) == list(expected.sac_mod_stats) and found.lost == 0
    for fqn, stats in expected.sac_mod_stats.items():
        mine = dataclasses.asdict(found.sac_mod_stats[fqn])
        wanted = dataclasses.asdict(stats)
        for each in (mine, wanted):  # torch tells what is saved by addresses, also of storages that were freed
            del each["runtimes"], each["saved_autograd_ops"]
        assert mine == wanted, fqn
        order, wanted_order = order_of(SACStats(**dataclasses.asdict(stats))), expected.sac_mod_greedy_order_meta[fqn]
        assert dataclasses.asdict(order) == dataclasses.asdict(wanted_order), fqn


def order_of(stats):
    from modscope._trackers.sac_estimator import _greedy_order

    return _greedy_order(stats)


def test_what_autograd_saves():
    stats = operators_of(Net).sac_mod_stats["Net.blocks.0"]
    assert stats.func_names == ["native_layer_norm", "t", "addmm", "relu", "t", "addmm", "add"]
    assert stats.saved_autograd_ops == [0, 1, 3, 4]


def test_a_block_that_is_changed_in_place_counts_once(monkeypatch):
    wrong = theirs(InPlace, monkeypatch).sac_mod_stats["InPlace"]
    stats = operators_of(InPlace).sac_mod_stats["InPlace"]
    assert stats.func_names == wrong.func_names == ["t", "addmm", "relu_", "cos_", "add"]
    assert stats.inplace_ops == wrong.inplace_ops == [(2, 1), (3, 1)]
    assert wrong.memory == [0, 4 * BYTES, 4 * BYTES, 4 * BYTES, 0]
    assert stats.memory == [0, 4 * BYTES, 0, 0, 0]


def test_what_torch_guesses_is_known():
    """The results that a module returns are those that it returns; attention without dropout draws nothing; what is
    changed in place but comes from outside is stored."""
    stats = operators_of(Several).sac_mod_stats["Several"]
    named = list(zip(stats.func_names, stats.memory))
    assert [name for i, name in enumerate(stats.func_names) if i in stats.rand_ops] == ["bernoulli_"]
    multiplied = stats.func_names.index("mul")  # by the mask of dropout: the second output
    assert named[multiplied] == ("mul", 0) and named[-1] == ("add", 0)
    argument = stats.func_names.index("add_")
    assert (argument, argument) in stats.inplace_ops and stats.memory[argument] == 0
    order = order_of(stats)
    assert order.stored_ops == {argument}
    together = next(each for each in order.msps_meta if "bernoulli_" in each.func_names)
    assert together.func_names == {"empty_like", "bernoulli_", "div_"} and together.memory == BYTES


# ---- models on which torch fails ----


def test_of_a_module_called_twice_figures_are_sums():
    once = operators_of(lambda: Net(1)).sac_mod_stats["Net.blocks.0"]
    twice = operators_of(Twice).sac_mod_stats["Twice.block"]
    assert twice.func_names == once.func_names
    assert twice.memory == [2 * each for each in once.memory]
    assert twice.runtimes == pytest.approx([2 * each for each in once.runtimes])


def test_calls_with_other_operators_follow_one_another():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.GELU())

        def forward(self, x):
            x = self.inner(x)
            self.inner[2] = nn.Tanh()
            return self.inner(x)

    stats = operators_of(Either).sac_mod_stats["Either.inner"]
    assert stats.func_names == ["t", "addmm", "relu_", "gelu", "t", "addmm", "relu_", "tanh"]
    assert stats.view_like_ops == [0, 4] and stats.inplace_ops == [(2, 1), (6, 5)]


def test_a_module_that_calls_itself_is_one_call():
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, depth=2):
            return self(self.layer(x), depth - 1) if depth else x

    assert operators_of(Recursive).sac_mod_stats["Recursive"].func_names == ["t", "addmm"] * 2


def test_containers_of_one_layer_and_of_nothing_have_an_empty_curve(capsys):
    class Nothing(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = nn.Identity()

        def forward(self, x):
            return self.child(x)

    class Both(Container):
        def forward(self, x):
            return super().forward(self.nothing(x))

        def __init__(self):
            super().__init__()
            self.nothing = Nothing()

    estimator = operators_of(Both)
    estimator.pwlf_sac_tradeoff_curve()
    only, nothing = (estimator.sac_mod_tradeoff_stats[f"Both.{name}"] for name in ("only", "nothing"))
    assert (only.sac_memory, only.n_segments, only.slopes) == (0, 1, [0.0]) and only.sac_runtime > 0
    assert (nothing.sac_memory, nothing.sac_runtime, nothing.intercepts) == (0, 0, [0.0])
    estimator.display_modulewise_sac_stats(depth=3)
    assert "Module: Both.nothing" in capsys.readouterr().out


def test_frozen_parts_save_less():
    trained, frozen = operators_of(Net), operators_of(Frozen)
    of_trained, of_frozen = trained.sac_mod_stats["Net.blocks.0"], frozen.sac_mod_stats["Frozen.blocks.0"]
    assert of_frozen.memory == of_trained.memory
    assert of_frozen.saved_autograd_ops == [] != of_trained.saved_autograd_ops


def test_what_is_cloned_and_then_changed_is_stored():
    """torch raises for it, as it leaves clones out."""

    class Cloned(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.child(x.clone().relu_().sin_())

    stats = operators_of(Cloned).sac_mod_stats["Cloned"]
    assert stats.func_names == ["relu_", "sin_", "t", "addmm"]
    assert stats.inplace_ops == [(0, 0), (1, 0)] and stats.memory == [BYTES, 0, 0, 0]


def test_only_forwards_count():
    class Checkpointed(Net):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # a GPU's is read by operators
            return self.head(x)

    with fake():
        model, x = Checkpointed(), batch()
        estimator = SACEstimator()
        with estimator(COST_MODEL):
            model(x).sum().backward()
    plain = operators_of(Net)
    assert estimator.sac_mod_stats["Checkpointed.blocks.0"].func_names == plain.sac_mod_stats["Net.blocks.0"].func_names
    assert estimator.sac_mod_stats["Checkpointed"].memory == plain.sac_mod_stats["Net"].memory


# ---- curves ----


def squared_error(pieces, points):
    return sum((pieces.at(x) - y) ** 2 for x, y in points)


def test_pieces_through_points_that_lie_on_them_are_found():
    points = [(x / 20, 0.2 * x / 20 if x <= 12 else 0.12 + 3 * (x - 12) / 20) for x in range(21)]
    pieces = piecewise_fit.fit(points, 2)
    assert pieces.slopes == pytest.approx([0.2, 3.0], abs=1e-6)
    assert pieces.breaks == pytest.approx([0.0, 0.6, 1.0], abs=1e-6)
    assert pieces.intercepts == pytest.approx([0.0, 0.12 - 1.8], abs=1e-6)


def test_no_breaks_on_a_grid_are_better_than_those_that_were_found():
    numbers = random.Random(1)
    points = sorted((numbers.random(), numbers.random() ** 3) for _ in range(40))
    found = squared_error(piecewise_fit.fit(points, 2), points)
    for i in range(1, 200):
        at = points[0][0] + (points[-1][0] - points[0][0]) * i / 200
        error, _ = piecewise_fit._Points(points).solve([points[0][0], at])
        assert found <= error + 1e-9
    errors = [squared_error(piecewise_fit.fit(points, count), points) for count in (1, 2, 3, 4)]
    assert errors == sorted(errors, reverse=True)
    assert piecewise_fit.fit(points, 3) == piecewise_fit.fit(points[::-1], 3)


def test_the_trade_off_curve_bounds_the_cost_from_above():
    estimator = operators_of(Net)
    estimator.pwlf_sac_tradeoff_curve(n_segments=3)
    stats = estimator.sac_mod_tradeoff_stats["Net"]
    assert isinstance(stats, SACTradeOffStats) and stats.n_segments == len(stats.slopes) == 3
    assert len(stats.fit_breaks) == 4 and stats.fit_breaks == sorted(stats.fit_breaks)
    operators = estimator.sac_mod_stats["Net"]
    assert (stats.sac_memory, stats.sac_runtime) == (sum(operators.memory), sum(operators.runtimes))
    discarded, recomputed = list(stats.tradeoff_curve), list(stats.tradeoff_curve.values())
    assert discarded[-1] == pytest.approx(1.01) and recomputed[-1] == pytest.approx(1.0)
    assert discarded == sorted(discarded) and recomputed == sorted(recomputed)
    for bad in (0, True, "2"):
        with pytest.raises(ValueError, match="n_segments must be an int of 1 or more"):
            estimator.pwlf_sac_tradeoff_curve(n_segments=bad)


# ---- text, state ----


def test_display(capsys):
    estimator = operators_of(InPlace)
    estimator.display_modulewise_sac_stats(depth=1, print_tabular=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Module: InPlace" and lines[1].startswith(f"Total Memory: {4 * BYTES} B Total Runtime: ")
    assert [line for line in lines if " relu_ " in line and "False" in line][0].split()[-1] == "1"
    assert any("{1, 2, 3}" in line for line in lines)
    estimator.display_sac_stats(estimator.sac_mod_stats["InPlace"])
    assert "\t" in capsys.readouterr().out


def test_nothing_is_left_and_figures_of_earlier_uses_stay():
    with fake():
        first, second, x = Net(1), InPlace(), batch()
        estimator = SACEstimator()
        with pytest.raises(ZeroDivisionError), estimator(COST_MODEL):
            first(x)
            1 / 0
        hooks = [len(module._forward_hooks) + len(module._backward_hooks) for module in first.modules()]
        y = first(x)
        assert not any(hooks) and torch._C._len_torch_dispatch_stack() == 1  # the fake mode
        assert not torch._C._autograd._saved_tensors_hooks_is_enabled() or y.grad_fn is not None
        with estimator(COST_MODEL):
            second(x)
            assert "InPlace" in estimator.sac_mod_stats  # while it is active, too
            with pytest.raises(RuntimeError, match="active already"):
                estimator.__enter__()
    assert {"Net", "Net.blocks.0", "InPlace"} <= set(estimator.sac_mod_stats)
    assert isinstance(estimator.sac_mod_greedy_order_meta["Net"], SACGreedyOrderMeta)
    with pytest.raises(AssertionError, match="No FakeTensorMode found"), estimator(COST_MODEL):
        pass
    with pytest.raises(NotImplementedError):
        estimator("by-guessing")
    assert SACEstimator().sac_mod_stats == {}


def test_a_forward_that_raises_has_no_statistics():
    class Raising(Net):
        def forward(self, x):
            super().forward(x)
            raise KeyError("x")

    with fake():
        model, x = Raising(1), batch()
        estimator = SACEstimator()
        with contextlib.redirect_stdout(io.StringIO()), estimator(COST_MODEL), pytest.raises(KeyError):
            model(x)
    assert "Raising.blocks.0" in estimator.sac_mod_stats
