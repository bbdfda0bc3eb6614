"""A capture tells root modules of one class apart, by the same names at all its moments."""

import textwrap
from pathlib import Path

import warm_python
from helpers import INTERCEPTION
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
