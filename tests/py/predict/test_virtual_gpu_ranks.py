"""``virtual_gpu(..., ranks=)``: as ``modscope predict --ranks``, for a part of a program."""

import json

import modscope
import pytest
import warm_python
from test_predict_ranks import needs_virtual_gpu, predict

TRAIN = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

def train():
    dist.init_process_group("nccl")
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
    for layer in model:
        fully_shard(layer)
    optimizer = torch.optim.AdamW(fully_shard(model).parameters())
    for _ in range(3):
        model(torch.ones(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
IN_CODE = """
import json, os, modscope, train, torch.distributed as dist
from torch.distributed import init_process_group
before = dict(os.environ, WORLD_SIZE="7")
os.environ["WORLD_SIZE"] = "7"
said = {}
with modscope.virtual_gpu("h100", ranks=64, rank=3, ranks_per_node=4) as gpu:
    said["environment"] = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
    try:
        init_process_group("nccl")
    except RuntimeError as error:
        said["imported"] = str(error)
    train.train()
    said["ranks"] = [dist.get_rank(), dist.get_world_size()]
assert dict(os.environ) == before and not dist.is_initialized()
said["reserved"], said["allocated"], said["fits"] = gpu.peak_reserved, gpu.peak_allocated, gpu.fits
said["facts"] = gpu.result["ranks"]
said["kinds"] = sorted({one.kind for one in gpu.capture.collectives()})
said["info"] = [gpu.capture.info["rank"], gpu.capture.info["world"], gpu.capture.end["communicator_bytes"]]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    modscope.virtual_gpu("h100", ranks=2).__enter__()
except RuntimeError as error:
    said["group"] = str(error)
print(json.dumps(said))
"""


@needs_virtual_gpu
@pytest.mark.slow
def test_it_has_the_ranks_that_predict_has(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "in_code.py").write_text(IN_CODE)
    (tmp_path / "script.py").write_text("import train\ntrain.train()\n")
    ran = warm_python.run(["in_code.py"], tmp_path)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["environment"] == ["3", "64", "4", "0"] and said["ranks"] == [3, 64]
    assert said["info"] == ["3", "64", str(said["facts"]["communicator_bytes"])]
    assert said["kinds"] == ["all_gather", "reduce_scatter"] and said["fits"] is True
    assert "torch.distributed.init_process_group, or import it later" in said["imported"]
    assert said["group"].startswith("a process group exists")
    words = [
        "--gpu",
        "h100",
        "--seconds",
        "0",
        "--ranks",
        "64",
        "--rank",
        "3",
        "--ranks-per-node",
        "4",
        "--json",
        "x.json",
        "script.py",
    ]
    assert predict(tmp_path, *words).returncode == 0
    told = json.loads((tmp_path / "x.json").read_text())
    told["ranks"].pop("fully_shard"), said["facts"].pop("fully_shard")  # here it was imported before
    assert (said["reserved"], said["allocated"], said["facts"]) == (
        told["reserved_peak"],
        told["allocated_peak"],
        told["ranks"],
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "rank=1 needs ranks="),
        ({"ranks": 8, "rank": 8}, "of 8 ranks the first one is 0 and the last one 7"),
        ({"ranks": 0}, "give 1 or more"),
        ({"ranks": 1000000}, "1000000 ranks are too many: give 131072 or fewer"),
        ({"ranks": 8, "rank": -1}, "the first one is 0"),
        ({"ranks": 8, "ranks_per_node": 0}, "give 1 or more"),
    ],
)
def test_ranks_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        modscope.virtual_gpu("h100", **options)
