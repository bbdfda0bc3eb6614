"""Captures note the shapes of what goes into the root modules, step by step."""

import json
from collections import UserDict

import modscope
import pytest
from helpers import needs_interception
from modscope.__main__ import main
from modscope._read.load import load
from modscope._read.shapes import main_input, shape_text, unit_of
from run_helpers import only_capture, run_warm, write

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 64), nn.Linear(64, 64)

    def forward(self, batch, mask=None):
        ids = batch if isinstance(batch, torch.Tensor) else batch["ids"]
        return self.out(self.embed(ids))


LENGTHS = (5, 9, 9, 30, 9)


@pytest.fixture(scope="module")
def lengths_msc(tmp_path_factory):
    """Five steps with inputs of three shapes, passed in three ways, and an evaluation with a larger one."""
    path = tmp_path_factory.mktemp("inputs") / "lengths.msc"
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with modscope.record(path):
        for step, length in enumerate(LENGTHS):
            ids, mask = torch.zeros(2, length, dtype=torch.int64), torch.ones(2, 1, length, length)
            if step % 3 == 0:
                out = model(ids, mask)
            else:
                out = model(mask=[mask], batch={"ids": ids}) if step % 3 == 1 else model(UserDict(ids=ids))
            out.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            del ids, mask, out
        with torch.no_grad():
            model(torch.zeros(2, 2000, dtype=torch.int64))
    return path


def test_steps_have_the_shapes_of_their_inputs_and_their_own_peaks(lengths_msc):
    capture = load(lengths_msc)
    rows = capture.input_shapes
    assert [row[:3] for row in rows] == [((2, 30), "integer", 1), ((2, 9), "integer", 3), ((2, 5), "integer", 1)]
    held = {step.number: step.peaks["cpu"] for step in capture.steps()}
    assert rows[0][3:] == (4, held[4]) and rows[2][3:] == (1, held[1])
    assert rows[1][4] == max(held[2], held[3]) < held[5]  # the evaluation after the fifth step is none of it


def test_the_summary_says_how_the_peak_depends_on_the_shape(lengths_msc, capsys):
    assert main(["summary", str(lengths_msc), "--json"]) == 0
    inputs = json.loads(capsys.readouterr().out)["inputs"]
    assert inputs["shapes"] == 3
    assert {key: inputs["largest"][key] for key in ("shape", "unit", "steps", "step")} == {
        "shape": [2, 30],
        "unit": "tokens",
        "steps": 1,
        "step": 4,
    }
    assert inputs["most_common"]["shape"] == [2, 9] and inputs["most_common"]["steps"] == 3
    assert main(["summary", str(lengths_msc)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The inputs of steps had 3 shapes: 2 x 30 tokens, the largest, held up to" in said
    assert "2 x 9 tokens, the most common, in 3 of 5 steps, held up to" in said


def test_a_run_of_one_shape_says_nothing_of_it(tmp_path, capsys):
    model = nn.Linear(4, 4)
    with modscope.record(tmp_path / "same.msc"):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    assert [row[:3] for row in load(tmp_path / "same.msc").input_shapes] == [((2, 4), "float", 3)]
    assert main(["summary", str(tmp_path / "same.msc"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] is None


@needs_interception
@pytest.mark.slow
def test_a_run_that_died_says_which_inputs_its_step_had(tmp_path):
    script = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
            def forward(self, images):
                hungry = torch.empty(1 << 50) if images.shape[2] > 9 else None
                return self.fc(images)

        net = Net()
        for size in (8, 9, 3, 1024):
            net(torch.ones(2, 1, size, 4)).sum().backward()
    """
    ran = run_warm(tmp_path, write(tmp_path, script))
    sentence = "step 4 had 2 x 1 x 1,024 x 4 images; the largest before was 2 x 1 x 9 x 4"
    assert ran.status == 1 and f"  {sentence}\n".encode() in ran.err
    assert f"{sentence[0].upper()}{sentence[1:]}. See it:" in ran.said
    capture = only_capture(tmp_path)
    assert capture.end is not None and capture.end["inputs"] == sentence
    assert [row[2:4] for row in capture.input_shapes] == [(1, 4), (1, 2), (1, 1), (1, 3)]


def test_python_and_c_use_the_same_words():
    """What the out-of-memory report says in C is in tests/c/capture/test_root_inputs.c."""
    assert shape_text([2, 4096], unit_of([2, 4096], "integer")) == "2 x 4,096 tokens"
    assert shape_text([8, 3, 224, 224], unit_of([8, 3, 224, 224], "float")) == "8 x 3 x 224 x 224 images"
    assert shape_text([100_000], unit_of([100_000], "integer")) == "100,000 tokens"
    assert shape_text([4, 0], unit_of([4, 0], "float")) == "4 x 0"
    images, short, long, labels = ([2, 3, 8, 8], "float"), ([2, 5], "integer"), ([2, 6], "integer"), ([2], "")
    assert main_input([images, short, long], lambda one: one) is short
    assert main_input([labels, images], lambda one: one) is images
