"""Collectives of virtual ranks that few scripts use: barriers, objects, messages, sparse tensors."""

import json
import pathlib

import pytest
from modscope import load
from test_predict_ranks import needs_virtual_gpu, predict

pytestmark = [needs_virtual_gpu, pytest.mark.slow]

ALONE = """
import json, sys, torch, torch.distributed as dist
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda:0"))
rank, world, x, said = dist.get_rank(), dist.get_world_size(), torch.ones(4, device="cuda"), {}

def tell(name, call):
    try:
        said[name] = call()
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"

def objects(call, *args, **options):
    call(*args, **options)
    return args[0]

tell("barrier", dist.barrier)
tell("barrier of a device", lambda: dist.barrier(device_ids=[0]))
tell("asynchronous barrier", lambda: dist.barrier(async_op=True).wait())
on_cpu = dist.new_group(backend="gloo")
tell("barrier on the cpu", lambda: dist.barrier(group=on_cpu))
tell("monitored_barrier", lambda: dist.monitored_barrier(group=on_cpu))
tell("all_gather_object", lambda: objects(dist.all_gather_object, [None] * world, {"rank": rank}))
tell("broadcast_object_list", lambda: objects(dist.broadcast_object_list, [1, "a"], src=0))
tell("scatter_object_list", lambda: objects(dist.scatter_object_list, [None], [10, 11, 12, 13], src=0))
tell("scatter from another", lambda: objects(dist.scatter_object_list, [None], None, src=1))
tell("recv_object_list", lambda: objects(dist.recv_object_list, [None], src=1))
tell("send", lambda: dist.send(x, 1))
tell("recv", lambda: dist.recv(x, 3))
tell("recv from any", lambda: dist.recv(x))
tell("message on the cpu", lambda: dist.recv(torch.ones(3), 2, group=on_cpu))
tell("sparse", lambda: dist.all_reduce(x.to_sparse()))
import torch.distributed._symmetric_memory as symmetric
tell("symmetric empty", lambda: symmetric.empty(8, device="cuda"))
tell("symmetric rendezvous", lambda: symmetric.rendezvous(x, dist.group.WORLD))
tell("symmetric operator", lambda: torch.ops.symm_mem.one_shot_all_reduce(x, "sum", dist.group.WORLD.group_name))
tell("store", lambda: dist.TCPStore("other", 29500, world, rank == 0).set("a", "b"))
tell("rpc", lambda: dist.rendezvous("env://", rank, world))
spawned = []
tell("spawn", lambda: torch.multiprocessing.spawn(lambda *args: spawned.append(args), (world,), world) or spawned)
tell("spawn without waiting", lambda: torch.multiprocessing.spawn(print, nprocs=2, join=False).join())
dist.destroy_process_group()
tell("mpi", lambda: dist.init_process_group("mpi"))
tell("part", lambda: dist.init_process_group("cpu:gloo,cuda:mine"))
tell("gloo", lambda: dist.init_process_group("gloo"))
tell("mesh", lambda: dist.device_mesh.init_device_mesh("cuda", (world + 1,)))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    (folder / "alone.py").write_text(ALONE)
    ran = predict(folder, "--gpu", "h100", "--ranks", "4", "--seconds", "0", "-o", "x.msc", "alone.py")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]), load(folder / "x.rank0.msc")


def test_barriers_and_messages_work_on_both_devices(alone):
    said, capture = alone
    for name in ("barrier", "barrier of a device", "barrier on the cpu", "monitored_barrier", "send"):
        assert said[name] is None, (name, said[name])
    assert said["asynchronous barrier"] is True
    assert (said["recv"], said["recv from any"], said["message on the cpu"]) == (3, 1, 2)
    found = [(one.kind, one.bytes, one.group.backend) for one in capture.collectives()]
    assert found == [
        ("barrier", 0, "nccl"), ("barrier", 0, "nccl"), ("barrier", 0, "nccl"), ("barrier", 0, "gloo"),
        ("send", 16, "nccl"), ("recv", 16, "nccl"), ("recv", 16, "nccl"), ("recv", 12, "gloo"),
    ]  # fmt: skip
    assert all((one.seconds is not None) == (one.group.backend == "nccl") for one in capture.collectives())


def test_objects_of_other_ranks_are_this_one_s_or_not_known(alone):
    said, _ = alone
    assert said["all_gather_object"] == [{"rank": 0}] * 4
    assert said["broadcast_object_list"] == [1, "a"] and said["scatter_object_list"] == [10]
    for name, function in (("scatter from another", "scatter_object_list"), ("recv_object_list", "recv_object_list")):
        assert said[name].startswith(f"KernelError: torch.distributed.{function} would get objects from another rank")
        assert "Predict all ranks together, with --all-ranks" in said[name]


def test_what_nccl_does_not_have_is_refused_with_what_to_do(alone):
    assert alone[0]["sparse"] == (
        "KernelError: NCCL does not support all_reduce with sparse tensors. Make the gradients dense (sparse=False of "
        "nn.Embedding), or reduce them on the CPU over gloo"
    )


def test_what_virtual_ranks_do_not_have_is_named_with_what_to_do(alone):
    said, _ = alone
    for name, thing in (
        ("empty", "torch.distributed._symmetric_memory.empty"),
        ("rendezvous", "torch.distributed._symmetric_memory.rendezvous"),
        ("operator", "symm_mem::one_shot_all_reduce"),
    ):
        assert said[f"symmetric {name}"].startswith(f"KernelError: {thing} needs symmetric memory, ")
        assert said[f"symmetric {name}"].endswith(
            "When you predict, use ordinary tensors and torch.distributed's usual collectives instead"
        )
    assert said["rpc"].startswith(
        "KernelError: torch.distributed.rendezvous, which torch.distributed.rpc uses too, would wait for other ranks"
    )
    assert said["store"] is None  # it does not wait for others
    for name, backend in (("mpi", "mpi"), ("part", "mine")):
        assert said[name].startswith(
            f"KernelError: init_process_group was asked for the backend '{backend}', and virtual ranks have nccl "
            f"and gloo only."
        )
    assert said["spawn"] == [[0, 4]] and said["spawn without waiting"] is True
    assert said["gloo"] is None and "Mesh should not be bigger than default world size 4" in said["mesh"]


TOGETHER = """
import json, os, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, told = dist.get_rank(), [f"from {dist.get_rank()}"]
dist.broadcast_object_list(told, src=1)
mine = [None]
dist.scatter_object_list(mine, ["a", "b"] if rank == 1 else None, src=1)
torch.nn.Linear(2, 2).cuda()
with open(f"said{rank}.json", "w") as file:
    json.dump([told, mine], file)
"""


def test_objects_arrive_where_all_ranks_are_predicted(tmp_path: pathlib.Path):
    (tmp_path / "together.py").write_text(TOGETHER)
    ran = predict(tmp_path, "--gpu", "h100", "--ranks", "2", "--all-ranks", "--seconds", "0", "together.py")
    assert ran.returncode == 0, ran.stderr
    assert [json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in range(2)] == [
        [["from 1"], ["a"]],
        [["from 1"], ["b"]],
    ]
