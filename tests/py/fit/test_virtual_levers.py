"""Levers of a predicted run against predictions of the same program with the lever applied."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace

import pytest
import warm_python
from fit_runs import VIRTUAL, predict
from helpers import INTERCEPTION
from modscope.__main__ import main
from modscope._fit import text
from modscope._fit.capacity import memory_fraction
from modscope._fit.job import Job
from modscope._fit.levers import fsdp2, host_memory, optimizer, registry, settings
from modscope._fit.levers.checkpoints import checkpoint
from modscope._fit.levers.registry import LEVERS, Case, Cost, Lever, Tried, combine
from modscope._fit.two_captures import Batches
from modscope._fit.verdict import answer
from modscope._read.categories import Category
from modscope._show.terminal import Screen
from modscope._virtual.gpus import Gpu, find_gpu

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Case]:
    path = tmp_path_factory.mktemp("fit") / "base.msc"
    allocated, reserved = predict(path)
    job = Job(str(path))
    before = job.replay()
    assert (before.allocated, before.reserved) == (allocated, reserved)
    return job, Case(job, find_gpu("h100"), find_gpu("h100").capacity, before)


def compare(job: Job, lever: Lever, real: int, within: float) -> None:
    assert job.replay(lever.edits, lever.conf).reserved == pytest.approx(real, rel=within)


def test_expandable_segments(base: tuple[Job, Case], tmp_path: pathlib.Path) -> None:
    job, case = base
    lever = settings.allocator(case)[0]
    _, real = predict(tmp_path / "real.msc", conf="expandable_segments:True")
    assert real < case.before.reserved
    compare(job, lever, real, 0.02)


@pytest.mark.parametrize("count", [3, 6])
def test_checkpoints(count: int, base: tuple[Job, Case], tmp_path: pathlib.Path) -> None:
    job, case = base
    lever = checkpoint(case, case.groups[0], count)
    assert lever.name == ("checkpoint Net.h.*" if count == 6 else "checkpoint Net.h.{0-2} (3 of 6)")
    _, real = predict(tmp_path / "real.msc", f"checkpoint{count}")
    assert real < 0.9 * case.before.reserved
    compare(job, lever, real, 0.02)
    before, after = job.step_time.total, Job(str(tmp_path / "real.msc")).step_time.total
    assert before and after and lever.time == pytest.approx(after / before - 1, rel=0.1)


def test_levers_are_listed_with_the_cheapest_first(base: tuple[Job, Case]) -> None:
    job, case = base
    tried = answer(job, Gpu("tiny", "Tiny GPU", case.before.reserved * 2 // 3, (9, 0), 1, context=0)).tried
    prices = [each.price for each in tried]
    assert prices == sorted(prices) and len({each.lever.name for each in tried}) == len(tried)
    names = [each.lever.name for each in tried]
    copying = names.index("activations to the CPU (save_on_cpu, pinned)")
    assert tried[copying].lever.time > 3, "it is listed even if a step takes four times as long"
    assert names.index("checkpoint Net.h.*") < copying


def test_levers_are_of_the_kind_under_which_they_are_registered(base: tuple[Job, Case]) -> None:
    case, proposed = base[1], []
    for each in LEVERS:
        levers = [found.lever if isinstance(found, Tried) else found for found in each.propose(case)]
        assert all(each.kind in lever.kinds and lever.is_free == each.is_free for lever in levers)
        assert all(lever.is_free == (lever.cost == "none") for lever in levers)
        proposed += levers
    assert {"allocator", "zero_grad", "fused_optimizer", "checkpoint", "save_on_cpu"} <= {
        kind for lever in proposed for kind in lever.kinds
    }


def test_a_lever_that_is_registered_is_listed_where_it_helps(
    base: tuple[Job, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LEVERS", list(LEVERS))

    @registry.lever("no_gradients")
    def no_gradients(case: Case) -> list[Lever]:
        everything = [("remove", case.job.select(category)) for category in (Category.GRAD, Category.ACT)]
        useless = Lever(("no_gradients",), "nothing", [], (Cost("nothing", extra_gpus=3),))
        return [Lever(("no_gradients",), "no gradients", everything, (Cost("no training", 0.5),)), useless]

    gpu = Gpu("tiny", "Tiny GPU", base[1].before.reserved * 2 // 3, (9, 0), 1, context=0)
    (tried,) = [tried for tried in answer(base[0], gpu).tried if "no_gradients" in tried.lever.kinds]
    assert (tried.lever.name, tried.lever.time, tried.lever.cost) == ("no gradients", 0.5, "no training")
    assert tried.outcome.fits and tried.outcome.reserved < base[1].before.reserved


def test_costs_add_up_where_levers_are_combined() -> None:
    half, more = Cost("about +50 % time", 0.5, is_exact=False), Cost("2 more GPUs", extra_gpus=2)
    first, second = (Lever(("checkpoint",), name, [], (half,), modules=(name,)) for name in "ab")
    made = combine(Lever(("free",), "free", []), first, second, Lever(("fsdp2",), "more", [], (more,)))
    assert (made.cost, made.time, made.extra_gpus) == ("about +100 % time, 2 more GPUs", 1.0, 2)
    assert made.kinds == ("free", "checkpoint", "fsdp2") and made.modules == ("a", "b") and not made.is_free
    assert combine(Lever(("free",), "a", []), Lever(("other",), "b", [])).is_free


def test_a_fused_optimizer(base: tuple[Job, Case], tmp_path: pathlib.Path) -> None:
    (lever,) = optimizer.fused(base[1])
    compare(base[0], lever, predict(tmp_path / "real.msc", "fused")[1], 0.02)


def test_saving_on_the_cpu(base: tuple[Job, Case], tmp_path: pathlib.Path) -> None:
    job, case = base
    (lever,) = host_memory.saved_tensors(case)
    _, real = predict(tmp_path / "real.msc", "save_on_cpu")
    assert real < 0.8 * case.before.reserved
    compare(job, lever, real, 0.05)


def test_gradients_set_to_none(base: tuple[Job, Case], tmp_path: pathlib.Path) -> None:
    _, kept = predict(tmp_path / "kept.msc", "keep")
    job = Job(str(tmp_path / "kept.msc"))
    assert job.replay().reserved == kept > base[1].before.reserved
    assert job.replay([("zero_grad",)]).reserved == pytest.approx(base[1].before.reserved, rel=0.02)


def test_a_larger_batch_from_two_captures(base: tuple[Job, Case], tmp_path: pathlib.Path) -> None:
    predict(tmp_path / "8.msc", batch=8)
    predict(tmp_path / "16.msc", batch=16)
    batches = Batches(Job(str(tmp_path / "8.msc")), Job(str(tmp_path / "16.msc")))
    assert batches.is_known and (batches.small_size, batches.large_size) == (8, 16)
    assert batches.large.replay(batches.edits(32)).reserved == pytest.approx(base[1].before.reserved, rel=0.02)


def test_sharding_over_two_gpus_needs_less_of_each(base: tuple[Job, Case]) -> None:
    job, case = base
    two, eight = fsdp2.sharded(case, 2), fsdp2.sharded(case, 8)
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
    assert "and the program limits itself to" in text.lines_of(found, Screen(wraps=False))[0]


def test_settings_that_limit_the_memory_are_obeyed(base: tuple[Job, Case]) -> None:
    info = {"allocator": "expandable_segments:True, per_process_memory_fraction:0.5"}
    assert memory_fraction(SimpleNamespace(info=info, end=None)) == 0.5  # type: ignore[arg-type]
    assert memory_fraction(SimpleNamespace(info=info, end={"memory_fraction": "0.25"})) == 0.25  # type: ignore[arg-type]
    assert memory_fraction(SimpleNamespace(info={}, end={"memory_fraction": "many"})) == 1  # type: ignore[arg-type]


def test_a_single_tensor_optimizer(base: tuple[Job, Case], tmp_path: pathlib.Path) -> None:
    (lever,) = optimizer.single_tensor(base[1])
    compare(base[0], lever, predict(tmp_path / "real.msc", "single")[1], 0.02)


def test_a_script_is_predicted_with_other_batches(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("modscope._cli.batch._PREDICTIONS", 2)
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
    from modscope._virtual.time import times

    assert host_memory.OF_LINK == times.OF_LINK
