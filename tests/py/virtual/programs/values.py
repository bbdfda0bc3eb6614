"""What is read from a virtual GPU, and sizes that depend on values. Each is run by test_programs.py."""

import torch.nn.functional as F
from modscope._virtual.operators import fakes, known

import torch

CUDA = "cuda"


def what_is_computed_reads_as_zeros():
    x = torch.randn(3, 4).cuda() + 1
    assert x.sum().item() == 0.0 and x.cpu().eq(0).all() and x.tolist() == [[0.0] * 4] * 3
    assert (x > -9).any().item() is False and not torch.allclose(x, x + 0)
    assert x.argmax().item() == 0 and x.isnan().any().item() is False
    assert torch.multinomial(x.abs(), 2).tolist() == [[0, 0]] * 3
    assert not torch.equal(x, x + 1) and torch.equal(x, x)


def values_on_the_cpu_stay():
    x = torch.arange(4.0)
    y = x.cuda()
    assert x.sum() == 6
    x.copy_(y)
    assert x.sum() == 0


def integers_keep_values_that_follow_from_the_cpu():
    lengths = torch.tensor([3, 1, 2]).cuda()
    mask = torch.arange(3, device=CUDA)[None] < lengths[:, None]
    assert mask.sum(1).tolist() == [3, 1, 2] and mask.nonzero().shape == (6, 2)
    assert torch.randn(3, 3, 5, device=CUDA)[mask].shape == (6, 5)
    assert lengths.cumsum(0)[-1].item() == 6 and lengths.max().item() == 3
    assert torch.repeat_interleave(torch.arange(3, device=CUDA), lengths).tolist() == [0, 0, 0, 1, 2, 2]
    assert torch.unique(torch.tensor([5, 7, 5]).cuda()).tolist() == [5, 7]
    assert [part.size(0) for part in torch.randn(6, 2, device=CUDA).split(lengths.tolist())] == [3, 1, 2]


def what_is_known_follows_writes_and_views():
    x = torch.zeros(2, 3, dtype=torch.long, device=CUDA)
    x[1, 1:] = 4
    view = x.t()
    x += 1
    assert view.tolist() == [[1, 1], [1, 5], [1, 5]]
    x.random_(10)
    assert view.tolist() == [[0, 0]] * 3


def what_is_known_ends_with_the_storage():
    x = torch.full((1000,), 7, device=CUDA)
    address = x.data_ptr()
    del x
    y = torch.empty(1000, dtype=torch.long, device=CUDA)
    assert y.data_ptr() == address and y[0].item() == 0
    for i in range(5000):
        torch.full((2,), i, device=CUDA)
    assert len(known._entries) < 3000


def large_tensors_are_not_copied():
    x = torch.ones(known.LARGEST + 1, dtype=torch.long).cuda()
    assert x[0].item() == 0 and torch.ones(known.LARGEST, dtype=torch.long).cuda()[0].item() == 1


def masks_select_one_half():
    mask = torch.randn(10, 8, device=CUDA) > 0
    x = torch.randn(10, 8, device=CUDA, requires_grad=True)
    assert mask.nonzero().shape == (40, 2) and x[mask].shape == x.masked_select(mask).shape == (40,)
    assert [index.shape for index in torch.where(mask)] == [(40,), (40,)]
    x[mask].sum().backward()
    assert x.grad.shape == (10, 8)
    with torch.no_grad():
        x[mask] = x[mask] * 2
        x[mask] = 0.0


def the_fraction_can_be_set():
    mask = torch.randn(100, device=CUDA) > 0
    fakes.set_selected(0.25)
    try:
        assert mask.nonzero().size(0) == 25
    finally:
        fakes.set_selected(0.5)
    try:
        fakes.set_selected(2)
    except ValueError as error:
        assert str(error) == "the fraction of selected elements must be between 0 and 1, not 2"
    else:
        raise AssertionError("nothing was raised")


def classes_are_spread_equally():
    chosen = torch.randn(60, 6, device=CUDA).topk(2).indices
    hot = F.one_hot(chosen, 6)
    assert hot.permute(2, 1, 0)[3].nonzero().size(0) == hot[..., 0].bool().nonzero().size(0) == 20
    assert hot.sum((0, 1)).tolist() == [20] * 6 and (hot.sum((0, 1)) > 0).nonzero().size(0) == 6
    assert torch.bincount(chosen.flatten(), minlength=6).tolist() == [20] * 6
    assert torch.histc(chosen.flatten().int(), bins=6, min=0, max=5).tolist() == [20] * 6
    assert (chosen == 2).nonzero().size(0) == 20 and (chosen != 2).nonzero().size(0) == 100
    assert (chosen < 3).nonzero().size(0) == 60 and (~(chosen == 2)).nonzero().size(0) == 100
    assert torch.unique(chosen).size(0) == 6 and torch.unique(torch.randn(7, device=CUDA)).size(0) == 7
    assert torch.randint(0, 4, (40,), device=CUDA).eq(1).nonzero().size(0) == 10


def loops_end_by_what_is_known():
    going = torch.ones(4, dtype=torch.long, device=CUDA)
    for step in range(10):
        unknown = torch.randn(4, device=CUDA) > 0
        done = torch.full((4,), step >= 5, device=CUDA) | unknown
        going = going & ~done
        if going.max() == 0:
            break
    assert step == 5


def single_numbers_keep_their_values():
    rate = torch.tensor(0.5, device=CUDA)
    assert rate.item() == 0.5 and (rate > 0).item() is True
    steps = [torch.zeros((), device=CUDA), torch.zeros((), device=CUDA)]
    torch._foreach_add_(steps, 1)
    assert [step.item() for step in steps] == [1.0, 1.0]
    rate += torch.randn(3, device=CUDA).sum()
    assert rate.item() == 0.0


def memory_of_what_is_known_is_not_torch_s():
    before = torch.cuda.memory_allocated()
    x = torch.arange(1000).cuda()
    assert torch.cuda.memory_allocated() - before == 8192
    del x
    assert torch.cuda.memory_allocated() == before


def a_mask_of_float_ones_selects_everything():
    mask = torch.ones(2, 8, device=CUDA)
    assert mask.to(torch.bool).all().item() is True and mask.long().sum(-1).tolist() == [8, 8]
    assert torch.randn(2, 8, 3, device=CUDA)[mask.bool()].shape == (16, 3)
    mask[:, 4:] = 0
    assert mask.to(torch.bool).all().item() is False and torch.zeros(2, 8, device=CUDA).bool().all().item() is False
