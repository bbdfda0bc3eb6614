"""Names of modules in a capture: root modules of one class are told apart, by the same names at all moments; gradients
have the path of calls; and modules that are never called are known."""

from __future__ import annotations

import copy
import textwrap
from pathlib import Path

import modscope
import pytest
import warm_python
from helpers import INTERCEPTION, needs_interception
from modscope import load, record
from modscope.__main__ import main

import torch
from torch import nn

SCRIPT = """
    import sys, torch
    from torch import nn

    def main():
        generator = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64))
        discriminator = nn.Sequential(nn.Linear(64, 32))
        layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        x = discriminator(generator(torch.ones(2, 64)))
        for layer in layers:
            x = layer(x)
        x.sum().backward()
        print("trained", flush=True)
        if len(sys.argv) > 1:
            import os, signal, time
            import modscope
            while "cpu" not in (found := modscope.load("run.msc").snapshot("peak").by_module()) or len(found["cpu"]) < 5:
                time.sleep(0.05)  # until that is written
            os.kill(os.getpid(), signal.SIGKILL)

    main()
"""
WANTED = {"generator.0", "generator.1", "discriminator.0", "ModuleList.0", "ModuleList.1"}


def own_parameters(capture, at="peak"):
    found = capture.snapshot(at).by_module().get("cpu", {})
    return {fqn for fqn, sums in found.items() if sums["Parameter"]}


def run_script(folder: Path, *arguments: str) -> Path:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    ran = warm_python.run(["-m", "modscope", "run", "-q", "-o", "run.msc", "train.py", *arguments], folder)
    assert ran.stdout == "trained\n", ran.stderr
    return folder / "run.msc"


def test_a_recording_has_the_same_names_before_and_after_the_second_model_comes(tmp_path):
    generator = nn.Sequential(nn.Linear(64, 128))
    discriminator = nn.Sequential(nn.Linear(128, 64))
    with record(str(tmp_path / "run.msc")):
        kept = generator(torch.ones(2, 64))
        later = discriminator(kept)
    capture = load(str(tmp_path / "run.msc"))
    named = {event.module for event in capture.events("position")} - {"Global"}
    assert named == {"generator", "generator.0", "discriminator", "discriminator.0"}
    assert own_parameters(capture, capture.event_count) == {"generator.0", "discriminator.0"}
    del later


def test_a_script_whose_models_are_local_variables(tmp_path, capsys):
    file = run_script(tmp_path)
    assert own_parameters(load(str(file))) == WANTED
    if not INTERCEPTION:
        return
    for command in (
        ["tree", str(file), "--depth", "9"],
        ["blocks", str(file)],
        ["export", str(file), "--format", "csv", "-o", "-"],
    ):
        main(command)
        said = capsys.readouterr().out
        assert "generator.0" in said or ("generator" in said and command[0] == "tree"), command
        assert "Sequential" not in said, command


def test_the_capture_of_a_killed_script_has_the_names_too(tmp_path):
    assert own_parameters(load(str(run_script(tmp_path, "kill")))) == WANTED


def test_modules_that_are_made_again_and_again_keep_their_names_and_need_no_new_paths(tmp_path):
    file = tmp_path / "again.msc"
    with record(file, stacks=0):  # the texts of lines could look like names
        for _ in range(40):
            one, other = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))
            other(one(torch.ones(1, 8)))
            del one, other
    names = file.read_bytes()
    assert 1 <= names.count(b"one.0") <= 4 and 1 <= names.count(b"other.0") <= 4, "each name is written when it changes"
    assert names.count(b"Sequential.0") <= 4


# ---- the path of gradients ----


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Listed(nn.Module):
    """Its ModuleList is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def positions(model: nn.Module, file: Path) -> list[tuple[str | None, str | None]]:
    """The phase and module of each position that a recording of two steps contains."""
    with modscope.record(file):
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
    return [(event.phase, event.module) for event in modscope.load(file).events("position")]


@needs_interception
@pytest.mark.parametrize("model", [nn.Sequential(Block(), Block()), Listed()], ids=["Sequential", "ModuleList"])
def test_accumulating_a_gradient_is_no_other_position_than_its_modules_backward(
    model: nn.Module, tmp_path: Path
) -> None:
    found = positions(model, tmp_path / "run.msc")
    assert sum(phase == "backward" and str(module).endswith(".0.linear") for phase, module in found) == 2
    assert not [later for earlier, later in zip(found, found[1:], strict=False) if earlier == later]


# ---- modules that are never called ----


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


BYTES = {"up": 4 * (64 * 256 + 256), "down": 4 * (256 * 64 + 64)}


def parameters_at_peak(path):
    found = load(str(path)).snapshot("peak").by_module()["cpu"]
    return {fqn: sums["Parameter"] for fqn, sums in found.items() if sums["Parameter"]}


def named(*roots):
    return {f"{root}.{child}": size for root in roots for child, size in BYTES.items()}


def train(model, optimizer, steps=1):
    for _ in range(steps):
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_copy_and_a_spare_model_are_told_apart_from_the_model(tmp_path):
    def program():
        model = Net()
        average = copy.deepcopy(model)
        spare = Net()
        train(model, torch.optim.SGD(model.parameters(), 0.1))
        return average is spare

    with record(str(tmp_path / "run.msc")):
        program()
    assert parameters_at_peak(tmp_path / "run.msc") == named("model", "average", "spare")


def test_a_copy_that_is_made_after_some_steps(tmp_path):
    def program():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train(model, optimizer, 3)
        average = copy.deepcopy(model)
        train(model, optimizer, 3)
        del average

    with record(str(tmp_path / "run.msc")):
        program()
    assert parameters_at_peak(tmp_path / "run.msc") == named("model", "average")
