"""`modscope predict` of a script on several GPUs: the table is what each GPU alone would have given."""

import json
import re

import modscope
import pytest
from modscope import _capture
from modscope.__main__ import main
from modscope._predict import several_gpus
from predict_helpers import needs_virtual_gpu, predict, predict_json, training

import torch

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

SCRIPT = "print(torch.cuda.get_device_capability()); [step(1 << 18) for _ in range(9)]"
NAMES = ["h200", "8GiB", "t4"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    ran = predict(folder, "--gpu", ",".join(NAMES), "--json", "all.json", training(folder, SCRIPT))
    assert ran.status == 0, ran.err
    (folder / "ran").write_text(json.dumps(ran))
    return folder, ran, json.loads((folder / "all.json").read_text())


def test_the_script_s_output_appears_once(table):
    folder, ran, _ = table
    assert ran.out == "(9, 0)\n" and not [*folder.glob("*.msc")]


def test_the_table(table):
    _, ran, result = table
    first, head, *rows = ran.said
    assert (
        first.startswith("predicted 3 steps on 3 GPUs in ")
        and head.split() == "GPU memory reserves to spare a step".split()
    )
    assert [row.split()[0] for row in rows[:3]] == NAMES
    assert rows[0].endswith("  fits") and rows[1].split()[-9:-1] == "does not fit: in step 1, forward of".split()
    assert re.search(r" -\d+\.\d GiB ", rows[1]), "how much is missing"
    # it would have 32 MiB to spare, and only as memory is given back in every step
    assert rows[2].endswith("  too close to tell (192.00 MiB more or less)")
    assert rows[3].startswith("Too close to tell: a CUDA context takes 0.25 to 0.69 GiB.")
    keeps_workspace = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)  # cuBLAS's; others need less
    assert bool(result["gpus"][2]["retries"]) == keeps_workspace
    if keeps_workspace:
        assert rows[4].endswith(": with more memory 15.05 GiB would be reserved.")
    assert rows[-1] == "One GPU, with a capture:  modscope predict --gpu h200 train.py"


def test_each_gpu_is_predicted_as_it_is_alone(table):
    """Peaks and verdicts are equal, and where it does not fit the failed allocation is."""
    folder, _, result = table
    assert [each["gpu"] for each in result["gpus"]] == NAMES and result["seconds"] > 0
    for each in result["gpus"]:
        ran = predict(folder, "--gpu", each["gpu"], "--json", "one.json", "-f", "-o", "one.msc", "train.py")
        alone = json.loads((folder / "one.json").read_text())
        assert (ran.status == 0) == each["fits"]
        keys = [
            "gpu",
            "memory",
            "context",
            "reserved_peak",
            "allocated_peak",
            "fits",
            "to_spare",
            "out_of_memory",
            "torch",
            "verdict",
            "retries",
            "retries_per_step",
            *(["reserved_unlimited", "margin"] if each["fits"] else []),
        ]
        assert {key: each[key] for key in keys} == {key: alone[key] for key in keys}
    assert {each["gpu"]: each["fits"] for each in result["gpus"]} == {"h200": True, "8GiB": False, "t4": True}


def test_all_gpus_are_the_default(tmp_path, monkeypatch):
    known = {name: modscope.gpus[name] for name in ("h100", "h200")}  # of one generation: one run
    monkeypatch.setattr(several_gpus, "GPUS", known)
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "-q", "--steps", "1", "--json", "x.json", training(tmp_path, "step()")]) == 0
    result = json.loads((tmp_path / "x.json").read_text())
    assert [each["gpu"] for each in result["gpus"]] == list(known) and all(each["fits"] for each in result["gpus"])


def test_emptying_the_cache_is_replayed(tmp_path):
    text = """
        x = torch.empty(6 << 30, dtype=torch.uint8, device="cuda")
        del x
        torch.cuda.empty_cache()
        y = torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
    """
    result = predict_json(tmp_path, "-q", "--gpu", "8GiB,80GiB", training(tmp_path, text))
    assert {6 << 30} == {each["reserved_peak"] >> 30 << 30 for each in result["gpus"]}


def test_a_replay_of_something_else_is_refused():
    allocator = _capture.Allocator()
    assert allocator.replay(b"") is None
    with pytest.raises(ValueError, match="this is not the log of a virtual GPU"):
        allocator.replay((5 << 3 | 1).to_bytes(8, "little"))  # frees the sixth allocation
    with pytest.raises(ValueError, match="this is not the log of a virtual GPU"):
        allocator.replay((7).to_bytes(8, "little"))
    with pytest.raises(TypeError):
        allocator.replay("text")
    small = _capture.Allocator(capacity=10 << 20)
    assert small.replay((4 << 20 << 3).to_bytes(8, "little") + (20 << 20 << 3).to_bytes(8, "little")) == (0, 4 << 20)
