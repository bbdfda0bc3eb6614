"""Ranks in ``modscope fit`` and ``plan``: levers of sharding against predictions with them, and what NCCL takes of the
GPU."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import warm_python
from fit_runs import train
from helpers import INTERCEPTION
from modscope.__main__ import main
from modscope._fit import sharding
from modscope._fit.capacity import may_reserve, nccl_bytes
from modscope._fit.job import Job, Outcome
from modscope._fit.levers import fsdp2
from modscope._fit.levers.registry import Case, try_faster
from modscope._fit.text import lines_of
from modscope._fit.verdict import answer
from modscope._predict.capture_of_script import PredictedScript, sharding_of
from modscope._predict.options import PredictOptions, ShardingChange
from modscope._read.load import CaptureError
from modscope._read.ranks import which_rank, world_of
from modscope._read.text import size
from modscope._record.options import ScriptOptions
from modscope._show.terminal import Screen
from modscope._virtual.gpus import find_gpu
from modscope._virtual.ranks.network import communicator_bytes
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPCommContext

MIB = 1 << 20
SCRIPT = """
import os, sys, torch
sys.path.insert(0, {folder!r})
from fit_runs import Net
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
mixed = "mixed" in sys.argv
half = torch.bfloat16 if mixed else None
policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half)
net = Net(6, 1024)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("nccl")
    for block in net.h:
        fully_shard(block, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
net.cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
        loss = net(torch.randn(2, 512, 1024, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


FILE = Screen(wraps=False)


def predicted(path: pathlib.Path, *words: str) -> PredictedScript:
    return PredictedScript(ScriptOptions([str(path), *words], steps=3), PredictOptions())


class Predictions:
    """The predictions of one script, each made once."""

    def __init__(self, script: PredictedScript) -> None:
        self._script = script
        self._made: dict[ShardingChange, str] = {}

    def path(self, ranks: int, **change: object) -> str:
        key = ShardingChange(ranks, **change)  # type: ignore[arg-type]
        if key not in self._made:
            with mock.patch("subprocess.Popen", warm_python.Popen):
                self._made[key] = self._script.predict([find_gpu("h100")], sharding=key if ranks > 1 else None)
        return self._made[key]

    def job(self, ranks: int, **change: object) -> Job:
        return Job(self.path(ranks, **change))


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Predictions]:
    with _script(tmp_path_factory) as script:
        yield Predictions(script)


@pytest.fixture(scope="module")
def mixed_predictions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Predictions]:
    """With autocast, and with a policy of FSDP2 for it."""
    with _script(tmp_path_factory, "mixed") as script:
        yield Predictions(script)


def _script(tmp_path_factory: pytest.TempPathFactory, *words: str) -> PredictedScript:
    path = tmp_path_factory.mktemp("ranks") / "train.py"
    path.write_text(SCRIPT.format(folder=str(pathlib.Path(__file__).parent)))
    return predicted(path, *words)


skip = pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")


def on_virtual_gpu(test: Callable[..., None]) -> Any:
    return pytest.mark.slow(skip(test))


@on_virtual_gpu
def test_sharding_a_rank_of_fsdp2_over_more_agrees_with_a_prediction(predictions: Predictions) -> None:
    two, eight = predictions.job(2), predictions.job(8).replay()
    assert sharding.uses_fsdp2(two) and which_rank(two.capture) == "rank 0 of 2"
    replayed = two.replay(sharding.over(two, 2, 8))
    assert eight.allocated < 0.8 * two.replay().allocated
    assert replayed.allocated == pytest.approx(eight.allocated, rel=0.005)
    assert replayed.reserved == pytest.approx(eight.reserved, rel=0.03)


@on_virtual_gpu
def test_sharding_a_job_of_one_gpu_agrees_with_a_prediction(predictions: Predictions) -> None:
    one = predictions.job(1)
    case = case_of(one)
    for ranks in (2, 8):
        lever, real = fsdp2.sharded(case, ranks), predictions.job(ranks).replay()
        assert lever is not None and lever.is_approximate and not lever.can_be_verified
        replayed = one.replay(lever.edits)
        assert replayed.allocated == pytest.approx(real.allocated, rel=0.03)
        assert replayed.reserved == pytest.approx(real.reserved, rel=0.08)


def case_of(job: Job, capacity: int | None = None, ranks: int = 0) -> Case:
    gpu = find_gpu("h100")
    most = gpu.capacity if capacity is None else capacity
    return Case(job, gpu, most, job.replay(capacity=most), ranks)


def assert_alike(replayed: Outcome, real: Outcome, reserved: float = 0.03) -> None:
    assert replayed.allocated == pytest.approx(real.allocated, rel=0.02)
    assert replayed.reserved == pytest.approx(real.reserved, rel=reserved)


@on_virtual_gpu
def test_a_policy_for_a_job_with_autocast_agrees_with_a_prediction(
    mixed_predictions: Predictions, predictions: Predictions
) -> None:
    one, real = mixed_predictions.job(1), mixed_predictions.job(8).replay()
    lever, plain = fsdp2.sharded(case_of(one), 8, mixed=True), fsdp2.sharded(case_of(one), 8)
    assert lever is not None and plain is not None and lever.name == "FSDP2 over 8 GPUs with a MixedPrecisionPolicy"
    # The lever shards as FSDP2 of torch 2.13, which holds the last gather while the next one is copied out: newer ones
    # need fewer segments.
    releases_early = hasattr(FSDPCommContext, "release_all_gather_state_for_comm_reuse")
    assert_alike(one.replay(lever.edits), real, 0.12 if releases_early else 0.08)
    assert one.replay(plain.edits).allocated > 1.1 * real.allocated
    assert fsdp2.sharded(case_of(predictions.job(1)), 8, mixed=True) is None  # it has no autocast


@on_virtual_gpu
def test_other_arguments_of_fully_shard_agree_with_predictions(predictions: Predictions) -> None:
    usual, kept, hybrid = predictions.job(8), predictions.job(8, reshard="no"), predictions.job(8, over=2)
    assert [sharding.is_resharded(job) for job in (usual, kept, hybrid)] == [True, False, True]
    assert [sharding.ranks_of_a_copy(job.capture, 8) for job in (usual, kept, hybrid)] == [8, 8, 2]
    assert_alike(usual.replay(sharding.keep(usual)), kept.replay())
    (reshard,) = fsdp2.reshard(case_of(kept))
    assert reshard.name == "reshard after forward" and reshard.can_be_verified
    assert_alike(kept.replay(reshard.edits), usual.replay())
    (over_all,) = fsdp2.over_all(case_of(hybrid))
    assert over_all.name == "shard over all 8 GPUs instead of 2"
    assert_alike(hybrid.replay(over_all.edits), usual.replay())
    for other, case in (
        (fsdp2.reshard, usual),
        (fsdp2.reshard, hybrid),
        (fsdp2.over_all, usual),
        (fsdp2.over_all, kept),
    ):
        assert other(case_of(case)) == []


@on_virtual_gpu
def test_what_would_be_faster_is_shown_where_it_fits(predictions: Predictions) -> None:
    usual, kept = predictions.job(8), predictions.job(8, reshard="no").replay()
    (tried,) = try_faster(case_of(usual))
    assert "reshard_after_forward=False" in tried.lever.name and tried.outcome.reserved == pytest.approx(
        kept.reserved, rel=0.03
    )
    assert try_faster(case_of(usual, (usual.replay().reserved + kept.reserved) // 2)) == []
    found = answer(usual, find_gpu("h100"), faster=True)
    assert (
        "What would be faster" in "\n".join(lines_of(found, FILE))
        and "how much time it saves is not known" in lines_of(found, FILE)[-1]
    )
    assert answer(usual, find_gpu("h100")).tried == []


@on_virtual_gpu
def test_a_capture_of_one_gpu_over_so_many_as_were_asked_for(predictions: Predictions) -> None:
    one, two, kept = predictions.job(1), predictions.job(2).replay(), predictions.job(8, reshard="no").replay()
    case = case_of(one, ranks=16)
    assert fsdp2.rank_counts(case) == (16,)
    keeping, hybrid = fsdp2.other_ways(case)
    assert "kept after forward" in keeping.lever.name and "8 of them hold one copy (HSDP)" in hybrid.lever.name
    assert keeping.outcome.allocated < kept.allocated < two.allocated + kept.allocated
    assert hybrid.capacity is not None and hybrid.capacity < find_gpu("h100").capacity
    usual = fsdp2.sharded(case, 8)
    assert usual is not None and hybrid.outcome.reserved == one.replay(usual.edits).reserved
    edits = sharding.edits(one, 8, keeps=True)
    assert_alike(one.replay(edits), kept, 0.05)


@on_virtual_gpu
def test_what_each_rank_would_take_is_said_also_where_one_gpu_is_enough(
    predictions: Predictions, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_file = tmp_path / "fit.json"
    assert main(["fit", predictions.path(1), "--gpu", "h100", "--ranks", "8", "--json", str(json_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ": it fits, with " in lines[0] and lines[2].split("   ")[0].strip() == "Each of 8 ranks"
    assert (
        lines[3].startswith("  FSDP2 over 8 GPUs ")
        and lines[3].endswith("7 more GPUs")
        and "reshard_after_forward=False" in lines[4]
    )
    (found,) = json.loads(json_file.read_text())["gpus"]
    assert found["ranks_asked"] == 8 and found["on_ranks"][0]["reserved_peak"] == pytest.approx(
        predictions.job(8).replay().reserved, rel=0.08
    )
    assert main(["fit", predictions.path(1), "--gpu", "h100,t4", "--ranks", "8"]) == 0
    out = capsys.readouterr().out
    assert "\nEach of 8 ranks: FSDP2 over 8 GPUs, " in out and "on 8 ranks" in out
    assert main(["fit", predictions.path(2), "--gpu", "h100", "--ranks", "8"]) == 0
    assert "  FSDP2 over 8 GPUs " in capsys.readouterr().out


@on_virtual_gpu
def test_ranks_that_do_not_help_are_still_answered(predictions: Predictions) -> None:
    one = predictions.job(1)
    most = one.replay().allocated
    with mock.patch("modscope._fit.levers.registry.Case.helps", return_value=False):
        found = answer(one, find_gpu(f"{most - 64 * MIB + find_gpu('1GiB').context}"), ranks=2)
    assert (
        not found.before.fits
        and [tried.lever.name for tried in found.tried if tried in found.on_ranks][0] == "FSDP2 over 2 GPUs"
    )


def test_why_nothing_is_known_of_more_ranks_is_said(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "cpu.msc")
    assert main(["fit", str(tmp_path / "cpu.msc"), "--gpu", "h100", "--ranks", "8"]) == 0
    assert (
        "What each of 8 ranks would take is not known: the figures are those of the CPU, which do not show what a "
        "GPU reserves. "
        "Predict the script instead:  modscope predict --gpu h100 --ranks 8 train.py\n"
    ) in capsys.readouterr().out


SHAPES = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.ModuleList(nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)) for _ in range(4)) for _ in range(2))
    def forward(self, x):
        for layer in (*self.first, *self.second):
            x = x + layer(x)
        return x
if sys.argv[1] == "two":  # groups of layers, which are in an nn.Sequential themselves
    model = nn.Sequential(Two(), nn.Linear(512, 8))
    units = [*model[0].first, *model[0].second]
else:  # layers that are nn.Linear, and keep nothing for their backward
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))
    units = list(model)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("nccl")
    for unit in units:
        fully_shard(unit)
    fully_shard(model)
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 512 if sys.argv[1] == "two" else 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@on_virtual_gpu
@pytest.mark.parametrize("shape, count", [("two", 8), ("linears", 6)])
def test_each_layer_is_sharded_on_its_own_whatever_keeps_its_activations(
    tmp_path: pathlib.Path, shape: str, count: int
) -> None:
    (tmp_path / "train.py").write_text(SHAPES)
    with predicted(tmp_path / "train.py", shape) as script:
        made = Predictions(script)
        one, real = made.job(1), made.job(8).replay()
    assert all(call.backward is None or call.backward > call.begin for call in one.calls)
    assert len(sharding.find_units(one)) == count
    replayed = one.replay(sharding.edits(one, 8))
    assert replayed.allocated == pytest.approx(real.allocated, rel=0.02)
    assert replayed.reserved == pytest.approx(real.reserved, rel=0.02)


@on_virtual_gpu
def test_a_rank_of_fsdp2_over_as_many_ranks_is_refused(
    predictions: Predictions, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", predictions.path(8), "--gpu", "2GiB", "--ranks", "8"]) == 1
    assert "is of one of 8 ranks already" in capsys.readouterr().err
    assert main(["fit", predictions.path(8), "--gpu", "1GiB", "--ranks", "24"]) == 0
    assert "FSDP2 over 24 GPUs" in capsys.readouterr().out


@on_virtual_gpu
def test_fully_shard_gets_other_arguments(predictions: Predictions) -> None:
    kept, hybrid = predictions.path(8, reshard="no"), predictions.path(8, over=2)
    assert sharding_of(predictions.path(8)) == {"calls": 7, "reshards": [True], "over": [8]}
    assert sharding_of(kept) == {"calls": 7, "reshards": [False], "over": [8]}
    assert sharding_of(hybrid) == {"calls": 7, "reshards": [True], "over": [2]}
    usual = predictions.job(8).replay()
    assert Job(kept).replay().allocated > usual.allocated + 3 * 4 * 8 * MIB  # four of six blocks stay gathered at least
    shards = [Job(path).capture.snapshot("peak").totals["cuda:0"]["Optstate"] for path in (hybrid, predictions.path(2))]
    assert shards[0] == shards[1]
    # it has more communicators
    assert len({nccl_bytes(Job(path).capture) for path in (hybrid, predictions.path(8))}) == 2


@on_virtual_gpu
def test_nccl_leaves_less_of_the_gpu(predictions: Predictions) -> None:
    job, gpu = predictions.job(8), find_gpu("3GiB")
    assert world_of(job.capture) == 8 and nccl_bytes(job.capture) == communicator_bytes(8)
    found = answer(job, gpu)
    assert found.capacity == may_reserve(gpu, job.capture) == gpu.capacity - communicator_bytes(8)
    text = lines_of(found, FILE)[0]
    assert (
        text.startswith("cuda:0, as rank 0 of 8, reserved")
        and "beside the context and about 0.7 GiB for NCCL: it fits" in text
    )
    smaller = answer(job, find_gpu("2GiB"))  # what is left is less than what is not known of NCCL
    assert "it fits" not in (open_text := lines_of(smaller, FILE)[0])
    spare = size(smaller.capacity - smaller.before.reserved_on_gpu)
    assert f"too close to tell: {spare} to spare. That may be off by 536.00 MiB: NCCL takes 344.00 MiB" in open_text
    case = Case(job, gpu, found.capacity, found.before)
    assert fsdp2.rank_counts(case) == (16, 32, 64)
    lever = fsdp2.sharded(case, 16)
    assert (
        lever is not None
        and (lever.name, lever.cost, lever.extra_gpus) == ("FSDP2 over 16 GPUs", "8 more GPUs", 8)
        and lever.can_be_verified
    )
    assert fsdp2.rank_counts(Case(predictions.job(1), gpu, gpu.capacity, found.before)) == (2, 4, 8)


@on_virtual_gpu
def test_a_script_that_fails_before_its_first_step_is_not_said_to_fit(tmp_path: pathlib.Path) -> None:
    for text, error in (
        (
            "import torch\nx = torch.ones(9, device='cuda')\nraise ValueError('no data')",
            r"ValueError: no data\), so what it needs is not known$",
        ),
        (
            "import os, torch\nos.environ['RANK']",
            r"KeyError: 'RANK'\), so what it needs is not known\. torchrun would set RANK\. Say how many",
        ),
    ):
        (tmp_path / "train.py").write_text(text)
        with predicted(tmp_path / "train.py") as script, mock.patch("subprocess.Popen", warm_python.Popen):
            with pytest.raises(CaptureError, match=r"train\.py failed before its first optimizer step \(" + error):
                script.predict([find_gpu("h100")])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fit train.py --rank 1", "--rank and --ranks-per-node need --ranks, such as --ranks 64"),
        ("plan train.py --gpu t4 --ranks 8 --rank 8", "--rank 8: of 8 ranks the last one is 7"),
        ("batch a.msc b.msc --ranks 8", "--ranks is for scripts. A capture says itself which rank it is of"),
    ],
)
def test_wrong_ranks_are_refused(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    with pytest.raises(SystemExit) as refused:
        main(line.split())
    assert refused.value.code == 2 and message in capsys.readouterr().err
