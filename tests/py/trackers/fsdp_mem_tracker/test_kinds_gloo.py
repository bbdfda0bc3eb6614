"""Kinds with real processes over gloo: every rank compares them with FSDP2's own tensors."""

import pytest
import warm_python
from helpers import SUPPORT, needs_interception, python_path

pytestmark = [needs_interception, pytest.mark.slow]

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
from fsdp_helpers import KINDS, Block, held_by_fsdp, shard_blocks
import modscope
from modscope._trackers.mem_tracker import ledger_of

torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=world)
CPU, checks, seen = torch.device("cpu"), 0, set()

def check(when):
    global checks
    expected = held_by_fsdp(model)
    # ProcessGroupGloo::runLoop holds a Work, and so its tensors, until execute() has returned, which is after the waiter was
    # woken: each of gloo's two threads may hold what was reduced for a moment longer. The bound is for a hang.
    for _ in range(12_000):
        raw = ledger_of(mt).kinds()[0]
        if {k: v for k, v in zip(modscope.Kind, raw[1:]) if v} == expected:
            break
        time.sleep(0.01)
    else:
        raise AssertionError((rank, when, raw, expected))
    assert mt.get_kind_snapshot().get(CPU, {}) == expected, (rank, when)
    sums = mt.get_tracker_snapshot()[CPU]
    assert sums["Total"] == sum(v for k, v in sums.items() if k != "Total")
    seen.update(expected)
    checks += 1

cases = [{}, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, {"reshard_after_forward": False}]
if world == 4:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    cases += [{"mesh": mesh}, {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)}]
for options in cases:
    options.setdefault("mesh", init_device_mesh("cpu", (world,)))
    torch.manual_seed(0)
    # 50 is no multiple of 4: shards are padded.
    model = shard_blocks(nn.Sequential(*[Block(50, lambda when: check(when)) for _ in range(3)], nn.Linear(50, 6)), **options)
    opt, x = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), torch.randn(4, 50)
    mt = modscope.MemTracker()
    mt.track_external(model, opt)
    with mt:
        for _ in range(2):
            model(x).sum().backward(); check("after backward")
            opt.step(); opt.zero_grad(); check("after the step")
    peak, by_module = mt.get_kind_snapshot("peak")[CPU], mt.get_module_kinds("peak")[CPU]
    assert peak == {kind: sum(of.get(kind, 0) for of in by_module.values()) for kind in peak}
assert set(KINDS) <= seen and checks > 30, (checks, seen)
assert ("All Reduce" in seen) == (world == 4), seen
check = lambda when: None  # that tracker is left
tracker = modscope.FSDPMemTracker(model, opt)
with tracker:
    for _ in range(2):
        model(x).sum().backward(); opt.step(); opt.zero_grad()
assert len(tracker.memory_tracking) == 4
dist.destroy_process_group()
print("checked", checks)
"""


@pytest.mark.parametrize("world", [2, 4])
def test_every_rank_s_kinds_equal_fsdp_s_own_tensors(tmp_path, world):
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    outputs = warm_python.run_ranks(
        [str(script), str(tmp_path / "store")], tmp_path, world, PYTHONPATH=python_path(SUPPORT)
    )
    assert all(out.startswith("checked") for out in outputs)
