"""What a step is where a program has no optimizer, or several: the same in predictions and in recordings."""

from __future__ import annotations

import json
import pathlib
import textwrap

import modscope
import pytest
import warm_python
from predict_helpers import needs_virtual_gpu, predict

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

BY_HAND = """
    import sys, torch
    from torch import nn
    device = sys.argv[1]
    model, criterion = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 8)).to(device), nn.CrossEntropyLoss()
    for i in range(9):
        model.zero_grad()
        loss = criterion(model(torch.ones(32, 256, device=device)), torch.zeros(32, dtype=torch.long, device=device))
        loss.backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
    print("finished")
"""
GAN = """
    import sys, torch
    from torch import nn
    device, critics = sys.argv[1], int(sys.argv[2])
    make, judge = nn.Linear(64, 256).to(device), nn.Linear(256, 1).to(device)
    of_make, of_judge = torch.optim.Adam(make.parameters()), torch.optim.Adam(judge.parameters())
    for i in range(9):
        for _ in range(critics):
            of_judge.zero_grad()
            judge(torch.ones(32, 256, device=device)).sum().backward()
            fake = make(torch.ones(32, 64, device=device))
            judge(fake.detach()).sum().backward()
            of_judge.step()
        of_make.zero_grad()
        judge(fake).sum().backward()
        of_make.step()
    print("finished")
"""


def predicted(folder: pathlib.Path, text: str, *words: str) -> tuple[dict, str, modscope.Capture]:
    (folder / "train.py").write_text(textwrap.dedent(text))
    ran = predict(folder, "--gpu", "h100", "--seconds", "0", "--json=x.json", "-o", "x.msc", "train.py", "cuda", *words)
    assert ran.status == 0 and "finished" not in ran.out, ran.err
    return json.loads((folder / "x.json").read_text()), ran.said[0], modscope.load(folder / "x.msc")


def recorded(folder: pathlib.Path, text: str, *words: str) -> modscope.Capture:
    (folder / "train.py").write_text(textwrap.dedent(text))
    ran = warm_python.run(["-m", "modscope", "run", "--steps", "3", "-o", "run.msc", "train.py", "cpu", *words], folder)
    assert ran.returncode == 0 and "finished" not in ran.stdout, ran.stderr
    return modscope.load(folder / "run.msc")


def test_without_an_optimizer_a_backward_ends_a_step(tmp_path):
    result, said, capture = predicted(tmp_path, BY_HAND)
    assert result["steps"] == capture.last_step == 3 and result["step_ms"] > 0
    assert said.startswith("predicted 3 steps in")
    capture = recorded(tmp_path, BY_HAND)
    assert (capture.last_step, capture.optimizer_steps) == (3, 0)
    for words in (["fit", "--gpu", "h100"], ["plan", "--gpu", "h100"]):
        ran = warm_python.run(["-m", "modscope", *words, "train.py", "--", "cuda"], tmp_path)
        assert ran.returncode == 0, ran.stderr


def test_two_optimizers_that_step_in_turn_have_one_step(tmp_path):
    result, said, capture = predicted(tmp_path, GAN, "1")
    assert result["steps"] == capture.last_step == 3 and capture.optimizer_steps == 6
    assert said.startswith("predicted 3 steps in")
    capture = recorded(tmp_path, GAN, "1")
    assert (capture.last_step, capture.optimizer_steps) == (3, 6)


def test_optimizers_in_no_order_are_said_to_have_optimizer_steps(tmp_path):
    result, said, capture = predicted(tmp_path, GAN, "3")
    assert result["steps"] == capture.optimizer_steps == 3 and result["are_optimizer_steps"]
    assert said.startswith("predicted 3 optimizer steps in")
    assert recorded(tmp_path, GAN, "3").optimizer_steps == 3


def test_a_wrapper_of_an_optimizer_takes_no_turn(tmp_path):
    """As accelerate's, which is an optimizer itself, and passes everything on to the one that it wraps."""
    capture = recorded(
        tmp_path,
        """
        import torch
        class Wrapper(torch.optim.Optimizer):
            def __init__(self, optimizer):
                self.optimizer = optimizer
            @property
            def param_groups(self):
                return self.optimizer.param_groups
            def step(self, closure=None):
                self.optimizer.step(closure)
        model = torch.nn.Linear(8, 8)
        optimizer = Wrapper(torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(9):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        print("finished")
        """,
    )
    assert (capture.last_step, capture.optimizer_steps) == (3, 3)
