"""The CTC loss on the virtual device."""

from __future__ import annotations

import torch
from truth_entries import temporaries
from virtual_programs import needs_virtual_device, run_on_h200

from modscope._virtual import ctc
from modscope._virtual.rules import Card, all_rules


@needs_virtual_device
def test_loss_of_sequences_whose_lengths_are_on_the_device() -> None:
    out = run_on_h200("""
        scores = torch.empty(50, 4, 20, device="cuda", requires_grad=True)
        targets = torch.zeros(28, dtype=torch.long, device="cuda")
        lengths = torch.full((4,), 50, device="cuda"), torch.full((4,), 7, device="cuda")
        loss = nn.functional.ctc_loss(scores.log_softmax(-1), targets, *lengths)
        loss.backward()
        print(loss.item(), tuple(scores.grad.shape))
    """)
    assert out == ["0.0 (50, 4, 20)"]


def test_backward_takes_as_much_as_the_forward_kept() -> None:
    scores, targets = torch.empty(50, 4, 20, device="meta"), torch.empty(28, dtype=torch.long, device="meta")
    _, (shape, strides, dtype) = ctc.INFERENCES[torch.ops.aten._ctc_loss.Tensor]((scores, targets), {})
    assert shape == (4, 50, 15)
    alphas = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    args = (None, scores, targets, None, None, None, alphas)
    rule = all_rules()["aten._ctc_loss_backward.Tensor"].function
    assert temporaries(rule(Card((9, 0), 132), args, {}, None)) == [12288]
