"""Levers of a predicted run against predictions of the same program with the lever applied."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import torch
from fit_runs import predict
from helpers import INTERCEPTION

from modscope._fit_answer import answer
from modscope._fit_batch import Batches
from modscope._fit_job import Job
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
    net(torch.randn(512, 128, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_is_predicted_and_settings_are_verified(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(folder=str(pathlib.Path(__file__).parent)))
    words = [sys.executable, "-m", "modscope", "fit", str(script), "--gpu", "4GiB"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    first, *rest = ran.stdout.splitlines()
    assert first.startswith("cuda:0 reserved ") and "short by" in first and "It would fail in step 1, forward of Net.h." in first
    assert any(line.startswith("  checkpoint Net.h.*") for line in rest)
    assert not list(tmp_path.glob("*.msc"))


def test_the_rate_of_copies_is_the_virtual_clocks() -> None:
    from modscope import _fit_levers
    from modscope._virtual import times

    assert _fit_levers.OF_LINK == times.OF_LINK
