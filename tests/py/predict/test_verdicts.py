"""Verdicts of predictions whose figures are near what the GPU has, and of those that fit by giving memory back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from modscope.__main__ import main
from predict_helpers import needs_virtual_gpu, predict, predict_json, training, write

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 512 * MIB
CONVOLUTIONS = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(24, 40, 5, padding=2), nn.ReLU(), nn.Conv2d(40, 24, 5, padding=2)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.empty(96, 24, 192, 192, device="cuda")).sum().backward()
    optimizer.step()
"""
STATE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(256 << 18))
    def forward(self):
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()  # so that nothing divides the large block
        return self.w.sum()
net = Net().cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    net().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GROWING = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1 << 20))
        self.calls = 0
    def forward(self):
        self.calls += 1
        for gib in (2, 3, 4):
            torch.empty((gib << 30) + (self.calls << 22), dtype=torch.uint8, device="cuda")
        return self.w.sum()
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net().backward()
    optimizer.step()
"""


def with_spare(folder: Path, script: str, reserved: int, spare: int) -> tuple[dict[str, Any], str]:
    """On a GPU that leaves so much to spare: the figures, and what is printed."""
    gpu = str(reserved + CONTEXT + spare)
    ran = predict(folder, "--gpu", gpu, "--json", "near.json", "-f", "-o", "near.msc", script)
    assert ran.status == 0, ran.err
    return json.loads((folder / "near.json").read_text()), ran.err


def test_a_verdict_inside_its_own_error_is_none(tmp_path: Path) -> None:
    """What convolutions take on such a GPU was never measured, and what linear layers take is exact."""
    linear = training(tmp_path, "[step(1 << 16) for _ in range(3)]", "linear.py")
    convolutions = write(tmp_path, CONVOLUTIONS, "convolutions.py")
    for script, is_open in ((linear, False), (convolutions, True)):
        alone = predict_json(tmp_path, "--gpu", "h200", "-q", script)
        assert (alone["verdict"], alone["why"]) == ("fits", ""), alone
        near, said = with_spare(tmp_path, script, alone["reserved_peak"], 200 * MIB)
        assert near["to_spare"] == 200 * MIB and near["fits"] is True
        assert (near["verdict"], near["margin"] > 200 * MIB) == (
            ("too close to tell", True) if is_open else ("fits", False)
        ), near
        assert (": it fits, with 0.2 GiB to spare." in said) != is_open
        assert ("the workspaces of convolutions were measured on an H200 only" in said) == is_open
        made = near["workspaces"]
        unsure = sum(made[source]["in_all"] for source in ("library", "table", "formula"))
        assert bool(unsure) == is_open and made["none"] == {"at_peak": 0, "in_all": 0}, made
    nearer, said = with_spare(
        tmp_path, linear, predict_json(tmp_path, "-q", "--gpu", "h100", linear)["reserved_peak"], 0
    )
    assert nearer["verdict"] == "too close to tell" and ": too close to tell: 0 B to spare. That may be off by " in said


def test_memory_that_runs_out_within_the_error_is_no_verdict_after_a_whole_step(tmp_path: Path) -> None:
    """How much the first step needs is known then, and what the optimizer added to it."""
    script = write(tmp_path, STATE, "state.py")
    results = []
    for missing in (50 * MIB, 450 * MIB):
        gpu = str(CONTEXT + (256 + 512) * MIB + 3 * GIB - missing)  # of what the second step needs
        ran = predict(tmp_path, "--gpu", gpu, "--json", "x.json", "-f", "-o", "x.msc", script)
        results.append(json.loads((tmp_path / "x.json").read_text()))
        assert (ran.status, results[-1]["fits"], results[-1]["steps"]) == (1, False, 1)
        assert results[-1]["reserved_unlimited"] is None
        assert (": too close to tell: an allocation of 3.00 GiB failed in " in ran.err) == (missing == 50 * MIB)
    assert [each["verdict"] for each in results] == ["too close to tell", "does not fit"]


def test_a_script_that_fits_by_giving_memory_back_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(tmp_path, GROWING, "growing.py")
    ran = predict(tmp_path, "--gpu", "8GiB", "--json", "x.json", "-o", "x.msc", script)
    result = json.loads((tmp_path / "x.json").read_text())
    assert ran.status == 0 and (result["verdict"], result["fits"]) == ("fits", True)
    assert (result["retries"], result["retries_per_step"]) == (3, 1) and result["reserved_peak"] < 8 * GIB
    unlimited = predict_json(tmp_path, "--gpu", "h200", "-q", script)
    assert result["reserved_unlimited"] == unlimited["reserved_peak"] == unlimited["reserved_unlimited"] > 12 * GIB
    assert (unlimited["retries"], unlimited["retries_per_step"]) == (0, 0)
    words = "but only because the allocator gives memory back once in each step; with more memory it would reserve 17."
    assert f" to spare, {words}" in ran.err
    table = predict(tmp_path, "--gpu", "h200,8GiB", script)
    assert "  fits, but the allocator gives memory back once in each step\n" in table.err
    assert table.err.count(" fits") == 2 and ": with more memory 17." in table.err
    # the captures of both say the same
    assert main(["fit", str(tmp_path / "x.msc"), "--gpu", "8GiB", "--json", str(tmp_path / "fit.json")]) == 0
    assert f": it fits, with 2.5 GiB to spare, {words}" in capsys.readouterr().out
    (fit,) = json.loads((tmp_path / "fit.json").read_text())["gpus"]
    keys = ("verdict", "retries", "retries_per_step", "reserved_unlimited", "to_spare")
    assert {key: fit[key] for key in keys} == {key: result[key] for key in keys}


def test_a_capture_of_another_generation_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that is given itself is predicted with the kernels of each GPU."""
    script = training(tmp_path, "[step(1 << 12) for _ in range(3)]")
    predict_json(tmp_path, "--gpu", "a100", "-q", "-o", "x.msc", script)
    capture = str(tmp_path / "x.msc")
    other = "Predicted on A100-SXM4-80GB; T4 runs other kernels, so this may be wrong:  modscope predict --gpu t4 "
    for command in ("fit", "plan"):
        figures = str(tmp_path / f"{command}.json")
        assert main([command, capture, "--gpu", "t4", "--json", figures]) == 0
        assert other in capsys.readouterr().out
        found = json.loads(Path(figures).read_text())
        of = found["gpus"][0] if command == "fit" else found
        assert of["other_kernels"]["made"] == "predicted on A100-SXM4-80GB" and of["verdict"] == "fits"
        assert main([command, capture, "--gpu", "a30"]) == 0
        assert "other kernels" not in capsys.readouterr().out
    assert main(["fit", capture, "--gpu", "a30,t4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (a30,), (t4,) = ([line for line in lines if line.startswith(f"  {gpu}")] for gpu in ("a30", "t4"))
    assert a30.split()[-1] == "yes" and t4.split()[-2:] == ["yes", "*"]
    assert any("GPUs that are marked with * run other kernels" in line and " --gpu t4 " in line for line in lines)
