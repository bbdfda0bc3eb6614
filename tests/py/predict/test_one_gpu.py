"""`modscope predict` of a script on one GPU: its lines, its JSON, its capture."""

import json
import re

import modscope
import pytest
from modscope.__main__ import main
from modscope._cli.help import TOPICS
from modscope._virtual.certainty import SOURCES
from predict_helpers import needs_virtual_gpu, predict, predict_json, training, write

pytestmark = [pytest.mark.slow, needs_virtual_gpu]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a script, its prediction's capture and JSON."""
    folder = tmp_path_factory.mktemp("predicted")
    script = training(folder, "for i in range(100):\n    step(); print(i, sys.argv[1:])")
    ran = predict(folder, "--gpu", "rtx4090", "--json", "x.json", "-o", "x.msc", script, "--batch", "8")
    (folder / "err.txt").write_text(ran.err)
    (folder / "out.txt").write_text(ran.out)
    assert ran.status == 0, ran.err
    return folder


@pytest.fixture(scope="module")
def result(folder):
    return json.loads((folder / "x.json").read_text())


@pytest.fixture(scope="module")
def capture(folder):
    return modscope.load(folder / "x.msc")


def test_the_script_runs_three_steps_and_knows_nothing(folder):
    assert (folder / "out.txt").read_text().splitlines() == ["0 ['--batch', '8']", "1 ['--batch', '8']"]


def test_the_closing_lines(folder, result):
    first, second, third = (folder / "err.txt").read_text().splitlines()
    assert re.match(r"\[modscope\] predicted 3 steps in [0-9.]+ s\. cuda:0 reserves [0-9.]+ MiB at most", first)
    assert second.startswith("           RTX 4090: 23.6 GiB, 0.5 GiB of it for the CUDA context: it fits, with 2")
    assert third == "           wrote x.msc. See it:  modscope summary x.msc"


def test_the_json(result, capture):
    assert (result["gpu"], result["title"]) == ("rtx4090", "NVIDIA GeForce RTX 4090")
    assert (
        result["reserved_peak"] == capture.reserved["cuda:0"]
        and result["allocated_peak"] == capture.peaks["cuda:0"].bytes
    )
    weights = 4 * (2 * 1024 * 4096 + 1024 + 4096)
    assert 4 * weights < result["allocated_peak"] < result["reserved_peak"] < 10 * weights
    gpu = modscope.gpus["rtx4090"]
    assert result["fits"] is True and result["to_spare"] == gpu.capacity - result["reserved_peak"]
    assert (result["memory"], result["context"]) == (gpu.memory, gpu.context)
    assert result["steps"] == 3 and 0 < result["seconds"] < 100 and result["ended"] == "stopped"
    assert set(result) >= {
        "step_ms",
        "bytes_without_rule",
        "notes",
        "torch",
        "allocator",
        "out_of_memory",
        "peak",
        "capture",
    }
    assert (
        result["out_of_memory"] is None
        and result["capture"] == str(result["capture"])
        and result["capture"].endswith("/x.msc")
    )


def test_what_nvidia_smi_would_show(result):
    shown = result["nvidia_smi"]
    assert list(shown["parts"]) == ["torch", "context", "kernels", "cublas"], "the script has linear layers only"
    assert shown["parts"]["torch"] == result["reserved_peak"] and shown["about"] == sum(shown["parts"].values())
    assert result["reserved_peak"] < shown["low"] < shown["about"] < shown["high"]


def test_the_bytes_of_workspaces_by_source(result):
    """Linear layers have cuBLAS's workspace only, which is kept."""
    made = result["workspaces"]
    assert list(made) == [*SOURCES, "none"]
    assert made["exact rule"]["at_peak"] >= 8 << 20 and made["exact rule"]["in_all"] >= made["exact rule"]["at_peak"]
    assert not any(each["in_all"] or each["at_peak"] for source, each in made.items() if source != "exact rule")


def test_the_help_lists_every_key_of_the_json(result):
    words = TOPICS["predictions"].text.replace(",", " ").replace('"', " ").split()
    assert not set(result) - set(words)


def test_the_capture_says_that_it_was_predicted(capture):
    info = capture.info
    assert (info["source"], info["gpu"], info["gpu_title"]) == ("predicted", "rtx4090", "NVIDIA GeForce RTX 4090")
    assert int(info["gpu_memory"]) == modscope.gpus["rtx4090"].memory and int(info["gpu_context"]) > 0
    assert info["rules"] == info["torch"] and info["allocator"] == "" and info["program"] == "train.py"
    held = capture.snapshot("step:3").by_module()["cuda:0"]["Net.up"]
    assert held["Parameter"] == 4 * (1024 * 4096 + 4096) and held["Optstate"] >= 2 * held["Parameter"]


def test_the_capture_starts_with_nothing_reserved(capture):
    """What verified the virtual GPU is gone before the script begins."""
    assert next(capture.events("reserved")).bytes <= 20 << 20
    assert capture.snapshot(0).reserved.get("cuda:0", 0) == 0


@pytest.mark.parametrize("command", ["summary x.msc", "tree x.msc", "blocks x.msc", "diff x.msc x.msc"])
def test_the_commands_show_it(folder, command, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(command.split()) == 0
    said = capsys.readouterr().out
    assert "predicted on RTX 4090" in said
    assert ("nvidia-smi will show about 0." in said) == (command == "summary x.msc")


@pytest.mark.parametrize(
    "command", ["summary x.msc", "tree x.msc", "blocks x.msc", "leaks x.msc", "export x.msc -o x.csv"]
)
def test_json_of_the_commands_shows_it(folder, command, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main([*command.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted_on"] == "RTX 4090"


def test_the_page_the_exports_and_the_notebook_show_it(folder, capture, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    for command in (
        "report x.msc -o x.html",
        "export x.msc -o x.speedscope.json",
        "export x.msc -o x.pftrace",
        "export x.msc -o x.pickle",
    ):
        assert main(command.split()) == 0
    assert "predicted on RTX 4090 · " in (folder / "x.html").read_text()
    assert json.loads((folder / "x.speedscope.json").read_text())["name"] == "train.py (predicted on RTX 4090)"
    assert b"train.py (predicted on RTX 4090)" in (folder / "x.pftrace").read_bytes()
    assert "predicted on RTX 4090" in capture._repr_html_()


def test_a_real_capture_shows_nothing_of_it(tmp_path, capsys):
    import torch

    with modscope.record(tmp_path / "real.msc"):
        torch.ones(1000)
    assert main(["summary", str(tmp_path / "real.msc"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted_on"] is None
    assert main(["tree", str(tmp_path / "real.msc")]) == 0
    assert "predicted" not in capsys.readouterr().out


def test_the_rules_of_another_version_and_the_allocator_s_settings(tmp_path):
    script = training(tmp_path, "step(); print(torch.cuda.memory_reserved())")
    plain = predict_json(tmp_path, "--gpu", "24GiB", "-q", "--torch", "2.13", script)
    settings = "expandable_segments:True"
    other = predict_json(tmp_path, "--gpu", "24GiB", "-q", "--torch", "2.11", script, PYTORCH_CUDA_ALLOC_CONF=settings)
    assert (other["torch"], other["allocator"]) == ("2.11", settings) and plain["allocator"] == ""
    workspace = 1 << 20  # torch 2.11 keeps one for cuBLASLt beside cuBLAS's own
    assert (
        other["allocated_peak"] == plain["allocated_peak"] + workspace
        and other["reserved_peak"] != plain["reserved_peak"]
    )
    assert other["gpu"] == "24GiB" and other["memory"] == 24 << 30


def test_a_module_and_the_name_of_the_capture(tmp_path):
    training(tmp_path, "step()", "task.py")
    ran = predict(tmp_path, "--gpu", "h100", "--steps", "1", "-m", "task")
    (path,) = tmp_path.glob("*.msc")
    assert ran.status == 0 and re.fullmatch(r"modscope-task\.\d+\.msc", path.name)
    assert ran.said[0].startswith("predicted 1 step in ") and ran.said[2].startswith(f"wrote {path.name}. ")


def test_the_frames_that_are_kept(tmp_path):
    script = training(tmp_path, "step()")
    for stacks in (0, 2):
        assert (
            predict(tmp_path, "--gpu", "h100", "-q", "-f", "-o", "x.msc", "--stacks", str(stacks), script).status == 0
        )
        places = [block.place for block in modscope.load(tmp_path / "x.msc").snapshot("peak").blocks() if block.place]
        assert {len(place.frames) for place in places if place.file} == ({stacks} if stacks else set())
    refused = predict(tmp_path, "--gpu", "h100", "--stacks", "65", script)
    assert refused.status == 2 and "0 to 64" in refused.err


def test_quiet_and_force(tmp_path):
    script = training(tmp_path, "step()")
    (tmp_path / "x.msc").write_text("MODSCOPE")
    refused = predict(tmp_path, "--gpu", "h100", "-o", "x.msc", script)
    assert (
        refused.status == 1
        and refused.err == "modscope: x.msc exists already: choose another name, or overwrite it (-f)\n"
    )
    ran = predict(tmp_path, "--gpu", "h100", "-q", "-f", "-o", "x.msc", script)
    assert (ran.status, ran.err) == (0, "") and modscope.load(tmp_path / "x.msc").last_step == 1


def test_values_are_read_as_zeros_and_cpu_tensors_are_real(tmp_path):
    script = write(
        tmp_path,
        """
        import torch
        x = torch.ones(3, device="cuda")
        print(x.sum().item(), x.cpu().tolist(), bool((x > 0).any()), torch.ones(3).sum().item(), torch.cuda.get_device_name())
    """,
    )
    ran = predict(tmp_path, "--gpu", "a100", script)
    assert ran.out == "0.0 [0.0, 0.0, 0.0] False 3.0 NVIDIA A100-SXM4-80GB\n"
