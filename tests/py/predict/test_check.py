"""`modscope predict --check`: the figures of a real run beside the predicted ones."""

import json

import pytest
import warm_python
from modscope.__main__ import main
from modscope._predict import check as _predict_check
from modscope._predict import share
from predict_helpers import needs_virtual_gpu, predict, training

import torch

EITHER = """
    import torch
    from torch.distributed.fsdp import FSDPModule
    device = "cuda" if torch.cuda.is_available() else "cpu"
    class Secret(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.private = torch.nn.Linear(100, 100)
        def forward(self, x):
            return self.private(x)
    model = Secret().to(device)
    model.__class__ = type("FSDPSecret", (Secret,), {"__module__": FSDPModule.__module__})  # as fully_shard does
    other = Secret()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(9):
        model(torch.ones(10, 100, device=device)).sum().backward()
        optimizer.step()
"""


def test_the_sentence():
    predicted = {"allocated_peak": 990 << 20, "reserved_peak": 2 << 30, "step_ms": 30.0}
    real = {"allocated_peak": 1000 << 20, "reserved_peak": 2 << 30, "step_ms": 25.0, "steps": 3, "error": ""}
    errors = _predict_check.compare(predicted, real)
    assert errors == pytest.approx({"allocated_peak": -0.01, "reserved_peak": 0.0, "step_ms": 0.2})
    assert _predict_check.describe("NVIDIA H200", predicted, real, errors) == (
        "checked on NVIDIA H200: allocated 1000.00 MiB (predicted 990.00 MiB, -1.00 %), reserved 2.00 GiB "
        "(predicted 2.00 GiB, "
        "+0.00 %), a step 25 ms (predicted 30 ms, +20.00 %)."
    )


def test_a_row_names_exceptions_of_python_and_torch_only():
    names = ("OutOfMemoryError: CUDA", "ValueError: a/path", "MyError: a/path", "")
    wanted = ["OutOfMemoryError", "ValueError", "an exception of the script", ""]
    assert [share._name_of(error) for error in names] == wanted


def test_a_row_is_of_a_check_and_has_a_file_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    for words, why in (
        (["--share", "row.json"], "add --check"),
        (["--check", "--share", "x.msc", "-o", "x.msc"], "choose another name"),
        (["--check", "--share", "x.json", "--json", "x.json"], "choose another name"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["predict", *words, "train.py"])
        assert left.value.code == 2 and why in capsys.readouterr().err


def test_what_is_not_known_is_left_out():
    predicted = {"allocated_peak": 1 << 30, "reserved_peak": 2 << 30, "step_ms": None}
    real = {"allocated_peak": 1 << 30, "reserved_peak": 0, "step_ms": 25.0, "steps": 1, "error": "ValueError: no\nmore"}
    errors = _predict_check.compare(predicted, real)
    assert _predict_check.describe("X", predicted, real, errors) == (
        "checked on X: allocated 1.00 GiB (predicted 1.00 GiB, +0.00 %). The script ended by an exception there: "
        "ValueError: no."
    )


@pytest.mark.slow
@needs_virtual_gpu
@pytest.mark.skipif(torch.cuda.is_available(), reason="the second run would be on the GPU")
def test_the_script_runs_again_without_the_virtual_gpu(tmp_path, monkeypatch, capfd):
    """Here the second run is on the CPU, where torch counts no memory of a GPU."""
    import textwrap

    (tmp_path / "train.py").write_text(textwrap.dedent(EITHER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_predict_check, "find_real_gpu", lambda: ("NVIDIA H200", 150_000_000_000))
    monkeypatch.setattr("subprocess.Popen", warm_python.Popen)
    monkeypatch.setenv("SECRET", "of the script")
    words = ["predict", "--check", "--share", "row.txt", "--json", "x.json", "-o", "x.msc", "train.py", "--secret"]
    (tmp_path / "row.txt").write_text("somebody's")
    assert main(words) == main([*words[:4], "-f", *words[4:]]) == 1 and not (tmp_path / "x.msc").exists()
    assert "row.txt exists already: choose another name" in capfd.readouterr().err
    (tmp_path / "row.txt").unlink()
    assert main(words) == 0
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["gpu"] == "h200" and result["steps"] == 3 and result["reserved_peak"] > 0
    assert (result["check"]["steps"], result["check"]["reserved_peak"], result["check"]["error"]) == (3, 0, "")
    assert result["check"]["step_ms"] > 0
    told = capfd.readouterr().err
    assert (
        "[modscope] checked on NVIDIA H200: a step " in told and "wrote row.txt: the GPU, versions, the peaks" in told
    )

    text = (tmp_path / "row.txt").read_text()
    row = json.loads(text)
    assert row == result["check"]["row"] and row["errors"] == result["check"]["errors"]
    assert row["job"]["modules"] == {"others": 2, "Linear": 2} and row["job"]["optimizers"] == {"SGD": 1}
    assert row["job"]["parameters"] == {"float32": 2 * 10_100}
    assert row["predicted"]["reserved_peak"] == result["reserved_peak"] and row["predicted_on"] == "h200"
    assert row["categories"]["Total"] == result["allocated_peak"] and row["error"] == ""
    for private in ("secret", "train", "Secret", str(tmp_path), "msc", "private"):
        assert private not in text, private


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_prediction_on_this_machine_s_gpu(tmp_path):
    ran = predict(tmp_path, "--check", "--json", "x.json", training(tmp_path, "for _ in range(9): step()"))
    assert ran.status == 0, ran.err
    errors = json.loads((tmp_path / "x.json").read_text())["check"]["errors"]
    assert abs(errors["allocated_peak"]) < 0.05 and abs(errors["reserved_peak"]) < 0.1
