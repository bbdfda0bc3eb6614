"""Levers of a predicted run against predictions of the same program with the lever applied."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace

import pytest
import torch
import warm_python
from fit_runs import VIRTUAL, predict
from helpers import INTERCEPTION

from modscope import _fit_text
from modscope.__main__ import main
from modscope._fit_answer import answer
from modscope._fit_batch import Batches
from modscope._fit_job import Job, memory_fraction
from modscope._fit_levers import Lever, Levers
from modscope._virtual.gpus import Gpu, find_gpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception"),
    pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch has kernels for CUDA"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Levers]:
    path = tmp_path_factory.mktemp("fit") / "base.msc"
    allocated, reserved = predict(path)
    job = Job(str(path))
    before = job.replay()
    assert (before.allocated, before.reserved) == (allocated, reserved)
    return job, Levers(job, find_gpu("h100"), find_gpu("h100").capacity, before)


def compare(job: Job, lever: Lever, real: int, within: float) -> None:
    assert job.replay(lever.edits, lever.conf).reserved == pytest.approx(real, rel=within)


def test_expandable_segments(base: tuple[Job, Levers], tmp_path: pathlib.Path) -> None:
    job, levers = base
    lever = levers.settings()[0]
    _, real = predict(tmp_path / "real.msc", conf="expandable_segments:True")
    assert real < levers.before.reserved
    compare(job, lever, real, 0.02)


@pytest.mark.parametrize("count", [3, 6])
def test_checkpoints(count: int, base: tuple[Job, Levers], tmp_path: pathlib.Path) -> None:
    job, levers = base
    lever = levers.checkpoint(levers.groups[0], count)
    assert lever.name == ("checkpoint Net.h.*" if count == 6 else "checkpoint Net.h.{0-2} (3 of 6)")
    _, real = predict(tmp_path / "real.msc", f"checkpoint{count}")
    assert real < 0.9 * levers.before.reserved
    compare(job, lever, real, 0.02)
    before, after = job.median_step(), Job(str(tmp_path / "real.msc")).median_step()
    assert before and after and lever.time == pytest.approx(after / before - 1, rel=0.1)


def test_levers_are_listed_with_the_cheapest_first(base: tuple[Job, Levers]) -> None:
    job, levers = base
    tried = answer(job, Gpu("tiny", "Tiny GPU", levers.before.reserved * 2 // 3, (9, 0), 1, context=0)).tried
    prices = [each.price for each in tried]
    assert prices == sorted(prices) and len({each.lever.name for each in tried}) == len(tried)
    names = [each.lever.name for each in tried]
    copying = names.index("activations to the CPU (save_on_cpu, pinned)")
    assert tried[copying].lever.time > 3, "it is listed even if a step takes four times as long"
    assert names.index("checkpoint Net.h.*") < copying


def test_a_fused_optimizer(base: tuple[Job, Levers], tmp_path: pathlib.Path) -> None:
    (lever,) = base[1].optimizer()
    compare(base[0], lever, predict(tmp_path / "real.msc", "fused")[1], 0.02)


def test_saving_on_the_cpu(base: tuple[Job, Levers], tmp_path: pathlib.Path) -> None:
    job, levers = base
    lever = next(lever for lever in levers.on_cpu() if "activations" in lever.name)
    _, real = predict(tmp_path / "real.msc", "save_on_cpu")
    assert real < 0.8 * levers.before.reserved
    compare(job, lever, real, 0.05)


def test_gradients_set_to_none(base: tuple[Job, Levers], tmp_path: pathlib.Path) -> None:
    _, kept = predict(tmp_path / "kept.msc", "keep")
    job = Job(str(tmp_path / "kept.msc"))
    assert job.replay().reserved == kept > base[1].before.reserved
    assert job.replay([("zero_grad",)]).reserved == pytest.approx(base[1].before.reserved, rel=0.02)


def test_a_larger_batch_from_two_captures(base: tuple[Job, Levers], tmp_path: pathlib.Path) -> None:
    predict(tmp_path / "8.msc", batch=8)
    predict(tmp_path / "16.msc", batch=16)
    batches = Batches(Job(str(tmp_path / "8.msc")), Job(str(tmp_path / "16.msc")))
    assert batches.is_known and (batches.small_size, batches.large_size) == (8, 16)
    assert batches.large.replay(batches.edits(32)).reserved == pytest.approx(base[1].before.reserved, rel=0.02)


def test_sharding_over_two_gpus_needs_less_of_each(base: tuple[Job, Levers]) -> None:
    job, levers = base
    two, eight = levers.sharded(2), levers.sharded(8)
    assert two is not None and eight is not None
    assert job.replay(eight.edits).allocated < job.replay(two.edits).allocated


SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
from fit_runs import Net
net = Net(6, 512).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    net(torch.randn({batch}, 128, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def script_of(folder: pathlib.Path, batch: str = "512") -> pathlib.Path:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(folder=str(pathlib.Path(__file__).parent), batch=batch))
    return script


def run(folder: pathlib.Path, *words: str, conf: str = "") -> str:
    ran = warm_python.run(["-m", "modscope", *words], folder, seconds=600, COLUMNS="200", PYTORCH_CUDA_ALLOC_CONF=conf)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_script_is_predicted_and_what_is_shown_is_predicted_again(tmp_path: pathlib.Path) -> None:
    script = script_of(tmp_path)
    first, *rest = run(tmp_path, "fit", str(script), "--gpu", "4GiB", "--json", "out.json").splitlines()
    assert (
        first.startswith("cuda:0 reserved ")
        and "short by" in first
        and "It would fail in step 1, forward of Net.h." in first
    )
    (head,) = [line for line in rest if line.startswith("  What would help")]
    assert head.split()[3:] == ["reserved", "fits", "verified", "cost"]
    assert any(line.startswith("Verified: the script was predicted again") for line in rest)
    (written,) = json.loads((tmp_path / "out.json").read_text())["gpus"]
    verified = {lever["name"]: lever["is_verified"] for lever in written["levers"]}
    assert verified["checkpoint Net.h.*"] and not verified["activations to the CPU (save_on_cpu, pinned)"]
    for name, is_verified in verified.items():
        (row,) = [line for line in rest if line.startswith(f"  {name}  ")]
        after = row[head.index("verified") :].split("  ")[0]
        assert (after == "yes") == is_verified
        assert is_verified == all(
            part.startswith(("checkpoint", "expandable", "max_split")) for part in name.split(" and ")
        )
    assert not list(tmp_path.glob("*.msc"))


def test_the_plan_of_a_script_is_what_a_prediction_with_it_gives(tmp_path: pathlib.Path) -> None:
    script = script_of(tmp_path, "int(sys.argv[1])")
    made = json.loads(run(tmp_path, "plan", str(script), "--budget", "4GiB", "-o", "plan.json", "--json", "--", "512"))
    assert made["is_verified"] and made["after"]["reserved"] <= 4 << 30 < made["before"]["reserved"]
    run(
        tmp_path,
        "predict",
        "--gpu",
        "h100",
        "--plan",
        "plan.json",
        "--json",
        "out.json",
        "-o",
        "with.msc",
        str(script),
        "512",
    )
    assert json.loads((tmp_path / "out.json").read_text())["reserved_peak"] == made["after"]["reserved"]
    assert json.loads((tmp_path / "plan.json").read_text())["reserved"]["after"] == made["after"]["reserved"]


def test_a_program_that_limits_its_memory_is_judged_by_its_limit(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.msc"
    program = VIRTUAL.format(folder=str(pathlib.Path(__file__).parent)).replace(
        "    model = ", "    torch.cuda.set_per_process_memory_fraction(0.25)\n    model = "
    )
    assert "fraction(0.25)" in program
    assert warm_python.run(["-W", "ignore", "-c", program, str(path), "", "8"]).returncode == 0
    job = Job(str(path))
    assert job.fraction == 0.25
    gpu = Gpu("tiny", "Tiny GPU", 2 * job.replay().reserved, (9, 0), 1, context=0)
    found = answer(job, gpu)
    assert not found.before.fits and found.capacity == gpu.memory // 4
    assert "and the program limits itself to" in _fit_text.lines_of(found)[0]


def test_settings_that_limit_the_memory_are_obeyed(base: tuple[Job, Levers]) -> None:
    info = {"allocator": "expandable_segments:True, per_process_memory_fraction:0.5"}
    assert memory_fraction(SimpleNamespace(info=info, end=None)) == 0.5  # type: ignore[arg-type]
    assert memory_fraction(SimpleNamespace(info=info, end={"memory_fraction": "0.25"})) == 0.25  # type: ignore[arg-type]
    assert memory_fraction(SimpleNamespace(info={}, end={"memory_fraction": "many"})) == 1  # type: ignore[arg-type]


def test_a_single_tensor_optimizer(base: tuple[Job, Levers], tmp_path: pathlib.Path) -> None:
    (lever,) = base[1].single_tensor()
    compare(base[0], lever, predict(tmp_path / "real.msc", "single")[1], 0.02)


def test_a_script_is_predicted_with_other_batches(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("modscope._commands.batch._PREDICTIONS", 2)
    monkeypatch.setattr("subprocess.Popen", warm_python.Popen)
    script = script_of(tmp_path, "int(sys.argv[1])")
    assert (
        main(["batch", str(script), "--gpu", "1GiB", "--batches", "16,1024", "--steps", "1", "--json", "--", "{}"]) == 0
    )
    made = json.loads(capsys.readouterr().out)
    assert {point["batch"]: point["fits"] for point in made["curve"]} == {16: True, 1024: False}
    assert made["gpus"][0]["largest"] == 16 and made["gpus"][0]["reserved"] <= made["gpus"][0]["capacity"]
    ratio = made["curve"][1]["reserved"] / made["curve"][0]["reserved"]
    assert 10 < ratio < 64, "activations are 64 times as large, parameters are not"


def test_the_rate_of_copies_is_the_virtual_clocks() -> None:
    from modscope import _fit_levers
    from modscope._virtual import times

    assert _fit_levers.OF_LINK == times.OF_LINK
