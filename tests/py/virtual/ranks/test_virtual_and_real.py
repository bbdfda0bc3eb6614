"""Virtual ranks launch what real ranks launch: the same script, predicted as ranks of two GPUs and run by two processes
over gloo, has the same collectives, for the same modules, in the same order."""

import pathlib

import pytest
import warm_python
from modscope import load
from program_helpers import names_of, needs_virtual_gpu, run_all
from test_predict_ranks import predict

pytestmark = [*needs_virtual_gpu, pytest.mark.slow]

SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
real = {"init_method": os.environ["STORE"], "rank": int(os.environ["RANK"]), "world_size": 2} if "STORE" in os.environ else {}
dist.init_process_group("gloo" if real else "nccl", **real)
device = "cuda" if dist.get_backend() == "nccl" else "cpu"

def blocks():
    return nn.Sequential(*(nn.Sequential(nn.Linear(96, 200), nn.GELU(), nn.Linear(200, 96)) for _ in range(3)), nn.Linear(96, 5)).to(device)

def train(model, steps=3):
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        model(torch.ones(4, 96, device=device)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()

mesh = init_device_mesh(device, (2,))
for policy in MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32):
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    train(fully_shard(model, mesh=mesh, mp_policy=policy))

model = DistributedDataParallel(blocks(), bucket_cap_mb=0.1)
train(model)
with model.no_sync():
    model(torch.ones(4, 96, device=device)).sum().backward()
train(model, 1)

total = torch.ones(3, device=device)
dist.all_reduce(total)
dist.broadcast(total, 1)
dist.all_gather([torch.empty_like(total) for _ in range(2)], total)
dist.send(total, 1) if dist.get_rank() == 0 else dist.recv(total, 0)
"""


def launches(file):
    return [(one.kind, one.bytes, one.step, one.phase, one.module, one.group.ranks) for one in load(file).collectives()]


def test_virtual_ranks_launch_what_real_ranks_launch(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    warm_python.run_ranks(
        ["-m", "modscope", "run", "-o", "real.msc", "train.py"], tmp_path, 2, STORE=f"file://{tmp_path}/store"
    )
    for rank in range(2):
        words = [
            "--gpu",
            "h100",
            "--seconds",
            "0",
            "--steps",
            "99",
            "--ranks",
            "2",
            "--rank",
            str(rank),
            "-o",
            f"virtual{rank}.msc",
        ]
        ran = predict(tmp_path, *words, "train.py")
        assert ran.returncode == 0, ran.stderr
        (virtual_file,) = tmp_path.glob(f"virtual{rank}*.msc")
        found, expected = launches(virtual_file), launches(tmp_path / f"real.rank{rank}.msc")
        assert found == expected
        assert {kind for kind, *_ in found} >= {
            "all_gather",
            "reduce_scatter",
            "all_reduce",
            "broadcast",
            "barrier",
            "recv" if rank else "send",
        }


# ---- programs of one virtual rank of many take the memory that sharding says ----


PROGRAMS = pathlib.Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run_all("sharded", PROGRAMS)


@pytest.mark.parametrize("program", names_of("sharded", PROGRAMS))
def test_ranks(outcomes: dict[str, str], program: str) -> None:
    assert outcomes[program] == "ok", outcomes[program]
