"""modscope run --plan and predict --plan: the modules of a script that knows nothing of the plan are checkpointed."""

from __future__ import annotations

import json
import pathlib
import subprocess

import modscope
import pytest
import warm_python
from modscope._plan.file import plan_of
from modscope._plan.plan import make_plan
from program_helpers import needs_virtual_gpu

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import torch
from torch import nn
from plan_models import Net
from torch.nn.modules import module as hooks
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
torch.manual_seed(0)
model = Net(4, 64).to(DEVICE)
wrapped = {wrapped}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = nn.Module.__call__, nn.Module._call_impl
for _ in range(3):
    # So many rows that activations are most of the peak, whatever threads and libraries allocate for themselves.
    loss = wrapped(torch.ones(2048, 64, device=DEVICE)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
assert not hooks._global_forward_pre_hooks or {stays}
assert (nn.Module.__call__, nn.Module._call_impl) == before
print("loss", loss.item(), "checkpointed", [name for name, module in model.named_modules() if "forward" in module.__dict__])
"""


def run(
    command: str, folder: pathlib.Path, *options: str, wrapped: str = "model", stays: bool = False
) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(folder=str(pathlib.Path(__file__).parent), wrapped=wrapped, stays=stays))
    return warm_python.run(["-W", "ignore", "-m", "modscope", command, *options, str(script)], folder)


def plan(folder: pathlib.Path, *modules: str) -> str:
    plan_of(list(modules)).write(folder / "plan.json")
    return str(folder / "plan.json")


def peak(file: pathlib.Path) -> int:
    capture = modscope.load(file)
    return capture.peaks[capture.main_device].bytes


@pytest.mark.parametrize("wrapped", ["model", "nn.DataParallel(model)", "torch.compile(model, backend='eager')"])
def test_the_modules_are_checkpointed_and_nothing_else_changes(tmp_path: pathlib.Path, wrapped: str) -> None:
    without = run("run", tmp_path, "-o", "without.msc", wrapped=wrapped)
    given = run("run", tmp_path, "--plan", plan(tmp_path, "Net.h.0", "Net.h.2"), "-o", "with.msc", wrapped=wrapped)
    assert without.returncode == given.returncode == 0, without.stderr + given.stderr
    assert without.stdout.strip().endswith("checkpointed []")
    assert given.stdout.strip().endswith("checkpointed ['h.0', 'h.2']")
    if "compile" not in wrapped:  # with this backend torch's checkpoint does not preserve random numbers
        assert given.stdout == without.stdout.replace("[]", "['h.0', 'h.2']")
    if wrapped == "model":
        assert peak(tmp_path / "with.msc") < peak(tmp_path / "without.msc") - (5 << 20)


def test_a_plan_of_another_model_is_reported_and_the_script_runs(tmp_path: pathlib.Path) -> None:
    ran = run("run", tmp_path, "--plan", plan(tmp_path, "Net.h.0", "Net.h.9"), "--no-capture")
    assert ran.returncode == 0
    assert "the script runs without the plan for Net: the model does not have the modules Net.h.9" in ran.stderr
    assert "checkpointed []" in ran.stdout


def test_a_root_that_is_never_called_is_reported(tmp_path: pathlib.Path) -> None:
    ran = run("run", tmp_path, "--plan", plan(tmp_path, "Other.h.0"), "--no-capture", stays=True)
    assert ran.returncode == 0, ran.stderr
    assert "the plan was not applied to Other: the script called no such module" in ran.stderr


def test_a_root_with_the_name_of_a_variable(tmp_path: pathlib.Path) -> None:
    ran = run("run", tmp_path, "--plan", plan(tmp_path, "generator.h.1"), "--no-capture")
    assert "checkpointed ['h.1']" in ran.stdout, ran.stderr


@pytest.mark.parametrize("command", ["run", "predict"])
def test_a_file_that_is_no_plan_is_refused_before_the_script(tmp_path: pathlib.Path, command: str) -> None:
    (tmp_path / "plan.json").write_text('{"kind": "modscope plan", "version": 7}')
    ran = run(command, tmp_path, "--plan", "plan.json")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "a plan of version 7" in ran.stderr
    assert "No such file" in run(command, tmp_path, "--plan", "none.json").stderr


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_virtual_gpu)])
def test_the_plan_of_a_prediction_is_right_about_another_one(tmp_path: pathlib.Path, mark: None) -> None:
    options = ("--gpu", "h100", "--steps", "4", "-q", "-f", "--json=result.json", "-o")
    assert run("predict", tmp_path, *options, "without.msc").returncode == 0
    before = json.loads((tmp_path / "result.json").read_text())
    capture = modscope.load(tmp_path / "without.msc")
    made, plan = make_plan("without.msc", capture, "cuda:0", before["reserved_peak"] - 1)
    assert made["before"]["step_ms"] == pytest.approx(before["step_ms"])
    plan.write(tmp_path / "plan.json")
    assert run("predict", tmp_path, *options, "with.msc", "--plan", "plan.json").returncode == 0
    after = json.loads((tmp_path / "result.json").read_text())
    least, most = made["after"]["reserved_range"]
    assert 0.99 * least <= after["reserved_peak"] <= 1.01 * most


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_virtual_gpu)])
def test_a_prediction_with_a_plan_reserves_less(tmp_path: pathlib.Path, mark: None) -> None:
    without = run("predict", tmp_path, "--gpu", "h100", "--steps", "4", "-o", "without.msc")
    given = run(
        "predict",
        tmp_path,
        "--gpu",
        "h100",
        "--steps",
        "4",
        "--plan",
        plan(tmp_path, "Net.h.0", "Net.h.1", "Net.h.2"),
        "-o",
        "with.msc",
    )
    assert without.returncode == given.returncode == 0, given.stderr
    assert peak(tmp_path / "with.msc") < peak(tmp_path / "without.msc")
    assert "checkpointed ['h.0', 'h.1', 'h.2']" in given.stdout
    table = run("predict", tmp_path, "--gpu", "h100,t4", "--steps", "4", "--plan", plan(tmp_path, "Net.h.0"))
    assert table.returncode == 0 and "checkpointed ['h.0']" in table.stdout, table.stderr
