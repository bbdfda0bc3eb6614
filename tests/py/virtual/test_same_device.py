"""Tensors of the CPU among those of a virtual GPU: torch's message where torch refuses them, and nothing where it does
not. A forgotten ``.cuda()`` is no prediction."""

from __future__ import annotations

from virtual_helpers import needs_interception, run

pytestmark = needs_interception

NAMES = """
    import torch.nn.functional as F
    def cpu(*shape): return torch.ones(shape)
    def gpu(*shape): return torch.ones(shape, device="cuda")
    here, there = torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.long, device="cuda")
    mask = torch.ones(4, dtype=torch.bool)
    TWO = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    def got(argument, kernel, device="cpu", others="cuda:0"):
        return (f"RuntimeError: Expected all tensors to be on the same device, but got {argument} is on {device}, "
                f"different from other tensors on {others} (when checking argument in method wrapper_CUDA_{kernel})")
"""


def test_kernels_that_want_one_device_name_the_argument() -> None:
    run(
        NAMES
        + """
    assert error(nn.Linear(4, 4).cuda(), cpu(2, 4)) == got("mat1", "addmm")
    assert error(nn.Embedding(4, 4).cuda(), here) == got("index", "_index_select")
    assert error(nn.LayerNorm(4).cuda(), cpu(2, 4)) == got("weight", "_native_layer_norm", "cuda:0", "cpu")
    assert error(nn.BatchNorm1d(4), gpu(2, 4)) == got("weight", "_native_batch_norm")
    assert error(F.cross_entropy, gpu(2, 4), here) == got("target", "nll_loss_forward")
    assert error(torch.cat, [gpu(2), cpu(2)]) == error(torch.stack, [gpu(2), cpu(2)]) == got("tensors", "cat")
    assert error(torch.gather, gpu(4), 0, here) == got("index", "gather")
    assert error(gpu(4).scatter_add_, 0, there, cpu(2)) == got("src", "scatter_add_")
    assert error(torch.mm, gpu(2, 2), cpu(2, 2)) == got("mat2", "mm")
    assert error(torch.mm, gpu(2, 2), gpu(2, 2), out=cpu(2, 2)) == got("self", "mm_out_out", "cuda:0", "cpu")
    assert error(torch.clamp, gpu(4), cpu()) == got("min", "clamp_Tensor")  # single numbers, too
    attention = F.scaled_dot_product_attention
    assert error(attention, *[gpu(1, 2, 4, 8)] * 3, attn_mask=cpu(4, 4)) == got(
        "attn_bias", "__scaled_dot_product_efficient_attention")
    """
    )


def test_elementwise_operators_take_only_single_numbers_of_the_cpu() -> None:
    run(
        NAMES
        + """
    assert error(torch.add, gpu(4), cpu(4)) == error(torch.add, gpu(4), cpu(1)) == error(cpu(4).add_, gpu(4)) == TWO
    assert error(cpu().add_, gpu()) == TWO  # it would be written to
    assert error(torch.where, mask, gpu(4), gpu(4)) == error(F.mse_loss, gpu(4), cpu(4)) == TWO
    assert error(gpu(4).addcmul_, gpu(4), cpu(4)) == error(gpu(4).lerp_, cpu(4), 0.5) == TWO
    assert error(torch.sin, gpu(4), out=cpu(4)) == TWO
    assert error(torch._foreach_add_, [gpu(4), gpu(4)], [gpu(4), cpu(4)]) == TWO
    assert error(torch.sum, gpu(4, 4), 0, out=cpu(4)) == (
        "RuntimeError: Expected out tensor to have device cuda:0, but got cpu instead")
    results = [gpu(4) * cpu(), cpu() / gpu(4), torch.where(mask.cuda(), cpu(), gpu(4)), gpu(4).addcmul_(gpu(4), cpu()),
               gpu(4).lerp_(gpu(4), cpu()), cpu() + gpu(), gpu(4) ** torch.tensor(2), gpu(4).masked_fill(mask.cuda(), cpu())]
    assert {str(result.device) for result in results} == {"cuda:0"}
    torch._foreach_mul_([gpu(4), gpu(4)], [cpu(), gpu()])
    torch._foreach_mul_([gpu(4)], cpu())
    """
    )


def test_functions_with_a_check_of_their_own() -> None:
    run(
        NAMES
        + """
    batch = cpu(1, 3, 8, 8)
    assert error(nn.Conv2d(3, 4, 3).cuda(), batch) == (
        "RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same or "
        "input should be a MKLDNN tensor and weight is a dense tensor")
    assert error(F.conv2d, batch.cuda(), gpu(4, 3, 3, 3), cpu(4)) == (
        "RuntimeError: Input type (torch.cuda.FloatTensor) and bias type (torch.FloatTensor) should be the same")
    assert error(F.scaled_dot_product_attention, gpu(1, 1, 2, 8), cpu(1, 1, 2, 8), gpu(1, 1, 2, 8)) == (
        "RuntimeError: Expected query, key, and value to have the same device type, but got query.device: cuda:0 "
        "key.device: cpu and value.device: cuda:0 instead.")
    assert error(nn.LSTM(4, 4).cuda(), cpu(3, 2, 4)) == (
        "RuntimeError: Input and parameter tensors are not at the same device, found input tensor at cpu and parameter "
        "tensor at cuda:0")
    assert error(nn.GRU(4, 4).cuda(), gpu(3, 2, 4), cpu(1, 2, 4)) == (
        "RuntimeError: Input and hidden tensors are not at the same device, found input tensor at cuda:0 and hidden "
        "tensor at cpu")
    assert error(gpu(4).masked_fill, mask, 0) == (
        "RuntimeError: expected self and mask to be on the same device, but got mask on cpu and self on cuda:0")
    assert error(gpu(4).index_fill_, 0, here, 1) == (
        "RuntimeError: index_fill_(): self and index value tensors should have same device type, but got self tensor "
        "device type cuda:0 and index value tensor device type cpu")
    assert error(lambda: cpu(4)[there]) == (
        "RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    assert error(gpu(4).__setitem__, there, cpu(2)) == TWO
    """
    )


def test_indices_copies_and_lengths_may_be_on_the_cpu() -> None:
    run(
        NAMES
        + """
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
    assert gpu(4)[here].shape == gpu(4, 4)[here, there].shape == (2,) and gpu(4)[mask].is_cuda
    x = gpu(4)
    x[here], x[mask], x[0], x[:2] = gpu(2), cpu(1), cpu(), cpu(2)
    y = cpu(4)
    y[0], y[1:] = gpu(), gpu(3)
    y.fill_(gpu())
    x.fill_(cpu()).copy_(cpu(4)).bernoulli_(cpu(4)).index_fill_(0, there, cpu())
    torch._foreach_copy_([x], [cpu(4)])
    packed = pack_padded_sequence(gpu(2, 3, 4), torch.tensor([3, 2]), batch_first=True)
    assert pad_packed_sequence(nn.LSTM(4, 4).cuda()(packed)[0])[0].is_cuda
    loss = F.ctc_loss(gpu(5, 2, 4).log_softmax(2), torch.ones(2, 2, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([2, 2]))
    assert loss.is_cuda and torch.tensor_split(gpu(4), torch.tensor([2]))[0].is_cuda
    """
    )


def test_optimizers_keep_numbers_on_the_cpu_but_no_states() -> None:
    run(
        NAMES
        + """
    def trained(**options):
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters(), **options)
        model(gpu(2, 4)).sum().backward()
        optimizer.step()
        return optimizer
    for options in ({"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True},
                    {"fused": True, "lr": torch.tensor(0.1)}, {"foreach": False, "lr": torch.tensor(0.1)}):
        trained(**options).step()
    optimizer = trained()
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].cpu()  # as a checkpoint that was loaded by hand
    assert error(optimizer.step) == TWO
    """
    )
