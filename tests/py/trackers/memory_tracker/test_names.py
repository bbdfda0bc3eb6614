"""Each operator has the name of the module that ran it, in forward and in backward."""

import modscope
import pytest
from helpers import Boom, make
from memory_tracker_helpers import Net, monitored, names, positions
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


def test_operators_in_forward_have_the_names_of_named_modules():
    net, x = Net(), torch.randn(3, 8)
    with monitored(net) as tracker, torch.no_grad():
        net(x)
    assert names(tracker) == [
        "first.forward.t.default_0",
        "first.forward.addmm.default_0",
        "rest.0.forward.t.default_1",
        "rest.0.forward.addmm.default_1",
        "rest.1.forward.relu.default_0",
        ".forward.add.Tensor_0",
    ]


def test_operators_in_backward_belong_to_the_module_that_made_the_node():
    net = Net()
    out = net(torch.randn(3, 8, requires_grad=True))
    with monitored(net) as tracker:
        del out
        net(torch.randn(3, 8, requires_grad=True)).sum().backward()
    assert positions(tracker, "threshold_backward.default") == ["rest.1.backward"]
    assert positions(tracker, "mm.default") == ["rest.0.backward"] * 2 + ["first.backward"] * 2


def test_a_gradient_is_accumulated_by_the_module_that_owns_the_parameter():
    net = Net()
    with monitored(net) as tracker:
        for _ in range(2):
            net(torch.randn(3, 8)).sum().backward()
    accumulated = [name for name in names(tracker) if ".add_." in name or ".backward.add." in name]
    assert accumulated and all(name.startswith(("first.backward", "rest.0.backward")) for name in accumulated)


def test_gradients_of_two_models_of_one_class_are_accumulated_by_their_own_modules():
    first, second = Net(), Net()
    with monitored(first) as of_first, monitored(second) as of_second:
        for _ in range(2):
            first(torch.randn(3, 8)).sum().backward()
            second(torch.randn(3, 8)).sum().backward()
    inside, outside = (
        ["rest.0.backward"] * 2 + ["first.backward"] * 2,
        ["Net.rest.0.backward"] * 2 + ["Net.first.backward"] * 2,
    )
    assert positions(of_first, "add_.Tensor") == inside + outside
    assert positions(of_second, "add_.Tensor") == outside + inside


def test_operators_outside_modules_have_only_their_phase():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    with monitored(net) as tracker:
        net(torch.randn(3, 8)).sum().backward()
        optimizer.step()
    assert positions(tracker, "randn.default") == [""]
    assert positions(tracker, "expand.default") == ["backward"]  # of the sum
    assert set(positions(tracker, "add_.Tensor")) == {"optimizer"}


def test_a_module_outside_the_root_module_has_its_own_name():
    net, loss = Net(), nn.MSELoss()
    with monitored(net) as tracker:
        loss(net(torch.randn(3, 8)), torch.zeros(3, 8)).backward()
    assert positions(tracker, "mse_loss.default") == ["MSELoss.forward"]
    assert positions(tracker, "mse_loss_backward.default") == ["MSELoss.backward"]


def test_the_root_module_may_be_a_part_of_what_is_called():
    net = Net()
    outer = make("Outer", lambda m, x: m.inner(x) * 3, inner=net)
    with monitored(net) as tracker:
        outer(torch.randn(3, 8))
    assert positions(tracker, "addmm.default") == ["first.forward", "rest.0.forward"]
    assert positions(tracker, "mul.Tensor") == ["Outer.forward"]


def test_a_part_of_the_root_module_may_be_called_alone():
    net = Net()
    with monitored(net) as tracker:
        net.rest(torch.randn(3, 8))
    assert positions(tracker, "relu.default") == ["rest.1.forward"]
    assert tracker._markers == {}


def test_another_model_of_the_same_class_is_not_taken_for_the_root_module():
    net, other = Net(), Net()
    with monitored(net) as tracker:
        other(torch.randn(3, 8))
        net(torch.randn(3, 8))
    assert positions(tracker, "addmm.default") == [
        "Net.first.forward",
        "Net.rest.0.forward",
        "first.forward",
        "rest.0.forward",
    ]


def test_a_module_that_is_added_while_monitoring_is_named_like_the_others():
    net = Net()
    with monitored(net) as tracker:
        net.rest.append(nn.Tanh())
        net(torch.randn(3, 8))
    assert positions(tracker, "tanh.default") == ["rest.2.forward"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_forward_is_forward_and_moves_no_marker(reentrant):
    net = make("Root", lambda m, x: checkpoint(m.part, x, use_reentrant=reentrant), part=Net())
    with monitored(net) as tracker:
        net(torch.randn(3, 8, requires_grad=True)).sum().backward()
    assert positions(tracker, "addmm.default") == ["part.first.forward", "part.rest.0.forward"] * 2
    assert positions(tracker, "mm.default") == ["part.rest.0.backward"] * 2 + ["part.first.backward"] * 2
    assert (
        tracker._markers["fw_start"]
        < tracker._markers["fw_bw_boundary"]
        < names(tracker).index("part.first.forward.addmm.default_2")
    )


def test_a_recomputed_root_module_moves_no_marker():
    net = Net()
    with monitored(net) as tracker:
        checkpoint(net, torch.randn(3, 8, requires_grad=True), use_reentrant=False).sum().backward()
    assert len(positions(tracker, "relu.default")) == 2
    assert tracker._markers["fw_bw_boundary"] < names(tracker).index("rest.1.forward.relu.default_1")


def test_numbers_go_on_over_iterations_and_markers_are_of_the_last_one():
    net = Net()
    with monitored(net) as tracker:
        for _ in range(3):
            begins = tracker._op_index + 1  # randn comes first
            net(torch.randn(3, 8)).sum().backward()
    assert [name.rpartition("_")[2] for name in names(tracker) if ".relu." in name] == ["0", "1", "2"]
    assert tracker._markers == {"fw_start": begins, "fw_bw_boundary": begins + 6}
    assert tracker._operator_names["relu.default"] == 3 and tracker._operator_names["never"] == 0
    assert tracker._op_index == len(tracker.memories_allocated) == sum(tracker._operator_names.values())


def test_the_current_module_is_that_of_the_thread_that_reads():
    seen = []
    net = make(
        "Root",
        lambda m, x: m.part(x),
        part=make("Part", lambda m, x: (seen.append(tracker._cur_module_name), x * 2)[1]),
    )
    x = torch.randn(3, requires_grad=True)
    with monitored(net) as tracker:
        out = net(x)
        out.register_hook(lambda grad: seen.append(tracker._cur_module_name))
        seen.append(tracker._cur_module_name)
        out.sum().backward()
    assert seen == ["part.forward", "", "part.backward"]
    assert tracker._cur_module_name == "part.backward"  # the last operator ran there


def test_an_exception_in_the_model_leaves_the_names_right():
    def fail(module, x):
        raise Boom

    net = make("Root", lambda m, x: m.good(x) if m.training else m.bad(x * 2), good=Net(), bad=make("Bad", fail))
    x = torch.randn(3, 8)
    with monitored(net) as tracker:
        net.eval()
        with pytest.raises(Boom):
            net(x)
        x + 1
        net.train()
        net(x).sum().backward()
    assert positions(tracker, "mul.Tensor") == [".forward"]
    assert positions(tracker, "add.Tensor") == ["", "good.forward"]
    assert positions(tracker, "relu.default") == ["good.rest.1.forward"]


def test_an_operator_that_raises_is_not_recorded_and_its_error_is_the_program_s():
    net = Net()
    with monitored(net) as tracker:
        with pytest.raises(RuntimeError, match="size"):
            torch.zeros(2) + torch.zeros(3)
    assert positions(tracker, "zeros.default") == ["", ""] and not positions(tracker, "add.Tensor")


def test_detach_is_not_recorded_as_in_torch():
    with monitored(Net()) as tracker:
        torch.zeros(2).detach()
    assert names(tracker) == [".zeros.default_0"]


def test_higher_order_operators_run_as_without_the_tracker():
    cond = pytest.importorskip("torch._higher_order_ops.cond").cond_op
    x = torch.ones(3)
    with monitored(Net()) as tracker:
        out = cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (x,))
    assert torch.equal(out[0] if isinstance(out, (tuple, list)) else out, x + 1)
    assert tracker.lost == 0


def test_a_custom_function_s_operators_belong_to_the_module_that_called_it():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

    net = make("Root", lambda m, x: m.part(x), part=make("Part", lambda m, x: Double.apply(x)))
    with monitored(net) as tracker:
        net(torch.randn(3, requires_grad=True)).sum().backward()
    assert positions(tracker, "mul.Tensor") == ["part.forward", "part.backward"]


def test_drop_in_gives_torch_s_name_to_this_tracker():
    theirs = pytest.importorskip("torch.distributed._tools.memory_tracker")
    tools = pytest.importorskip("torch.distributed._tools")
    before = theirs.MemoryTracker
    with modscope.drop_in():
        assert theirs.MemoryTracker is tools.MemoryTracker is modscope.MemoryTracker
    assert theirs.MemoryTracker is tools.MemoryTracker is before
