"""Programs of one rank of many, all in one process: each is a function without arguments."""

import contextlib
import gc
import os

import modscope
import torch.distributed as dist
from modscope._virtual.gpus import find_gpu
from modscope._virtual.ranks import collectives, process_groups
from modscope._virtual.ranks.options import environment
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPCommContext
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

WIDTH = 1024
ELEMENTS = WIDTH * WIDTH  # of a layer
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WORKSPACES = 2 * 32 * 2**20  # cuBLAS, of the forward's and of the backward's thread, kept


@contextlib.contextmanager
def _world(size, rank=0, backend="nccl"):
    """A process group of so many ranks, and a GPU without peaks."""
    before = dict(os.environ)
    os.environ.update(environment(rank, size, 8))
    ranks = collectives.Ranks(rank, size, 8, [find_gpu("h100")])
    try:
        with process_groups.installed(ranks, lambda size: None):
            dist.init_process_group(backend)
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                yield ranks
            finally:
                dist.destroy_process_group()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _layers(count=4):
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)]).cuda()


def _shard(model, mesh=None, **options):
    mesh = mesh or init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def _step(model, optimizer=None):
    """Returns what was allocated before it, and the most in it."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model(torch.ones(1, WIDTH, device="cuda")).sum().backward()
    peak = torch.cuda.max_memory_allocated()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    return before, peak


def _warm():
    """The workspaces are there."""
    x = torch.ones(8, 8, device="cuda", requires_grad=True)
    (x @ x).sum().backward()


def _about(value, expected):
    assert abs(value / expected - 1) < 0.02, (value, expected)


# ---- FSDP2 ----


def fsdp2_takes_what_its_buffers_take():
    """Around a layer in the backward: its parameters, the gather of the next group, its gradients, and the input of the
    previous reduce-scatter."""
    _warm()
    for size in (8, 64):
        with _world(size):
            model = _shard(_layers())
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                before, peak = _step(model, optimizer)
            shard = 4 * ELEMENTS // size * 4
            _about(before - WORKSPACES, 3 * shard)  # parameters and two moments
            _about(peak - before, 4 * 4 * ELEMENTS + shard // 2)  # half of the gradients are reduced by then


def fsdp2_in_mixed_precision():
    with _world(64):
        model = _shard(_layers(), mp_policy=MIXED)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            before, peak = _step(model, optimizer)
        _about(peak - before, (3 * 2 + 4) * ELEMENTS + 4 * ELEMENTS // 64 * 4)


def without_resharding_parameters_stay():
    with _world(64):
        model = _shard(_layers(), reshard_after_forward=False)
        for _ in range(2):
            before, peak = _step(model)
            model.zero_grad()
        # All parameters and the last gather, which older versions of torch hold while the next one is copied out
        gathers = 1 if hasattr(FSDPCommContext, "release_all_gather_state_for_comm_reuse") else 2
        _about(peak - before, (4 + gathers) * 4 * ELEMENTS + 4 * ELEMENTS // 64 * 4)


def resharding_to_fewer_ranks_keeps_smaller_shards():
    with _world(64):
        model = _shard(_layers(), init_device_mesh("cuda", (64,)), reshard_after_forward=8)
        _step(model)
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = model(torch.ones(1, WIDTH, device="cuda"))
        held = torch.cuda.memory_allocated() - before
        assert 4 * 4 * ELEMENTS // 8 <= held < 8 * ELEMENTS, held
        out.sum().backward()


def offloaded_shards_are_on_the_host():
    with _world(8):
        model = _shard(_layers(), offload_policy=CPUOffloadPolicy())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            before, peak = _step(model, optimizer)
        assert {p.to_local().device.type for p in model.parameters()} == {"cpu"}
        _about(peak - before, 4 * 4 * ELEMENTS)


def accumulation_without_communication_keeps_whole_gradients():
    with _world(64) as ranks:
        model = _shard(_layers())
        before = torch.cuda.memory_allocated()
        model.set_requires_gradient_sync(False)
        _step(model)
        held = torch.cuda.memory_allocated() - before
        _about(held, 4 * 4 * ELEMENTS)
        assert "reduce_scatter" not in ranks.bytes
        model.set_requires_gradient_sync(True)
        _step(model)
        assert ranks.bytes["reduce_scatter"] == 4 * 4 * ELEMENTS


def modules_sharded_together_are_one_group():
    with _world(64) as ranks:
        model = _layers(4)
        fully_shard([model[0], model[1]])
        fully_shard([model[2], model[3]])
        fully_shard(model)
        _step(model)
        assert ranks.bytes["all_gather"] == 2 * 4 * 4 * ELEMENTS


def hybrid_sharding_reduces_over_two_groups():
    with _world(64) as ranks:
        mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("replicate", "shard"))
        model = _shard(_layers(), mesh)
        _step(model)
        assert next(model.parameters()).to_local().numel() == ELEMENTS // 8
        assert ranks.bytes["all_reduce"] == 4 * 4 * ELEMENTS // 8
        assert sorted(map(len, ranks.communicators())) == [8, 8]


def streams_have_pools_of_their_own():
    """What is gathered on another stream is not used for the default stream."""
    with _world(64):
        model = _shard(_layers())
        _step(model)
        segments = torch.cuda.memory_snapshot()
        assert len({segment["stream"] for segment in segments}) >= 3
        assert torch.cuda.memory_reserved() > torch.cuda.max_memory_allocated()


def torch_s_own_tracker_counts_the_same():
    """FSDPMemTracker counts the tensors that it sees, rounded to 512 bytes; workspaces are not among them."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    with _world(64):
        model = _shard(_layers(), mp_policy=MIXED)
        optimizer = torch.optim.AdamW(model.parameters())
        _step(model, optimizer)
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        tracker = FSDPMemTracker(model, optimizer)
        x = torch.ones(1, WIDTH, device="cuda")
        tracker.track_inputs((x,))
        with tracker:
            model(x).sum().backward()
        theirs = tracker.get_tracker_snapshot("peak")[torch.device("cuda", 0)]["Total"]
        _about(torch.cuda.max_memory_allocated() - WORKSPACES, theirs)


def tensor_and_data_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with _world(64) as ranks:
        mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("data", "tensor"))
        model = parallelize_module(_layers(2), mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        _shard(model, mesh["data"])
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            _step(model, optimizer)
        assert next(model.parameters()).to_local().numel() == ELEMENTS // 64
        assert ranks.bytes["all_reduce"] > 0 and ranks.bytes["all_gather"] > 0


# ---- kinds ----


def _kinds_at_the_peak(model, steps=3):
    """By a tracker of this step and of those before it."""
    device = torch.device("cuda", 0)
    optimizer = torch.optim.AdamW(model.parameters())
    tracker = modscope.MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        for _ in range(steps):
            tracker.reset_peak()
            model(torch.ones(1, WIDTH, device="cuda")).sum().backward()
            kinds, by_module = tracker.get_kind_snapshot("peak")[device], tracker.get_module_kinds("peak")[device]
            optimizer.step()
            optimizer.zero_grad()
            yield kinds, by_module


def kinds_are_the_buffers_of_fsdp2():
    for size, options, whole, reduced in ((8, {}, 4, 4), (64, {}, 4, 4), (64, {"mp_policy": MIXED}, 2, 4)):
        with _world(size):
            model = _shard(_layers(), **options)
            *_, (kinds, by_module) = _kinds_at_the_peak(model)
            assert kinds == {
                "Sharded Param": 4 * 4 * ELEMENTS // size,
                "Unsharded Param": whole * ELEMENTS,
                "Sharded Grad": kinds["Sharded Grad"],
                "Unsharded Grad": whole * ELEMENTS,
                "All Gather": whole * ELEMENTS,
                "Reduce Scatter": reduced * ELEMENTS,
            }, kinds
            assert kinds["Sharded Grad"] % (4 * ELEMENTS // size) == 0
            assert kinds == {kind: sum(of.get(kind, 0) for of in by_module.values()) for kind in kinds}


def kinds_of_parameters_that_stay_unsharded():
    with _world(64):
        model = _shard(_layers(), reshard_after_forward=False)
        tracker = modscope.MemTracker()
        tracker.track_external(model)
        with tracker:
            out = model(torch.ones(1, WIDTH, device="cuda"))
            kinds = tracker.get_kind_snapshot("current")[torch.device("cuda", 0)]
            out.sum().backward()
        assert kinds["Unsharded Param"] == 4 * 4 * ELEMENTS, kinds


def buckets_are_a_copy_of_all_gradients():
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        with _world(8):
            model = DistributedDataParallel(_layers(), device_ids=[0], **options)
            for kinds, by_module in _kinds_at_the_peak(model):
                listed = [bucket.buffer().nbytes for bucket in model.reducer._get_zeros_like_grad_buckets()]
                assert kinds == {"Bucket": 4 * 4 * ELEMENTS} and sum(listed) == 4 * 4 * ELEMENTS, (kinds, listed)
                assert list(by_module) == ["DistributedDataParallel"]


# ---- DDP ----


def ddp_has_a_copy_of_all_gradients():
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
        with _world(8) as ranks:
            model = DistributedDataParallel(_layers(), device_ids=[0], **options)
            for _ in range(3):
                before, peak = _step(model)
                model.zero_grad()
            _about(before - WORKSPACES, 2 * 4 * 4 * ELEMENTS)  # parameters and buckets
            _about(peak - before, 4 * 4 * ELEMENTS)
            assert ranks.bytes["all_reduce"] >= 3 * 4 * 4 * ELEMENTS
            del model


def gradients_can_be_views_of_ddp_s_buckets():
    with _world(8):
        model = DistributedDataParallel(_layers(), device_ids=[0], gradient_as_bucket_view=True)
        for _ in range(3):
            before, _ = _step(model)
            after = torch.cuda.memory_allocated()
            model.zero_grad(set_to_none=True)
        assert after - before < ELEMENTS


def ddp_reduces_nothing_where_the_program_accumulates():
    with _world(8) as ranks:
        model = DistributedDataParallel(_layers(), device_ids=[0])
        _step(model)
        before = ranks.bytes["all_reduce"]
        with model.no_sync():
            _step(model)
        assert ranks.bytes["all_reduce"] == before


# ---- collectives ----


def lists_are_gathered_through_a_flat_buffer():
    with _world(8):
        parts = [torch.empty(ELEMENTS, device="cuda") for _ in range(8)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        dist.all_gather(parts, torch.empty(0, device="cuda").new_empty(ELEMENTS))
        assert torch.cuda.max_memory_allocated() - before == (8 + 1) * 4 * ELEMENTS
        work = dist.all_gather(parts, parts[0], async_op=True)
        assert torch.cuda.memory_allocated() - before == 8 * 4 * ELEMENTS  # until somebody waits
        work.wait()
        assert torch.cuda.memory_allocated() == before
        dist.reduce_scatter(parts[0], parts)
        assert torch.cuda.memory_allocated() == before


def collectives_know_the_values_of_integers():
    with _world(8) as ranks:
        three = torch.tensor([3], device="cuda")
        dist.all_reduce(three)
        gathered = [torch.empty_like(three) for _ in range(8)]
        dist.all_gather(gathered, three)
        assert [one.item() for one in gathered] == [3] * 8
        flat = torch.empty(8, dtype=torch.int64, device="cuda")
        dist.all_gather_into_tensor(flat, three)
        assert flat.tolist() == [3] * 8
        on_cpu = torch.empty(8)
        group = dist.new_group(backend="gloo")
        dist.all_gather_into_tensor(on_cpu, torch.ones(1), group=group)
        assert on_cpu.tolist() == [1.0] * 8
        objects = [None] * 8
        dist.all_gather_object(objects, {"rank": dist.get_rank()})
        assert objects == [{"rank": 0}] * 8
        dist.broadcast_object_list([1], 0)
        assert ranks.communicators() == [tuple(range(8))]


def every_usual_collective_is_known():
    import torch.distributed._functional_collectives as functional

    with _world(8, rank=3):
        x, y = torch.empty(64, 8, device="cuda"), torch.empty(64, 8, device="cuda")
        rows = list(x.chunk(8))
        dist.broadcast(x, 0), dist.reduce(x, 0), dist.all_to_all_single(y, x), dist.all_to_all(list(y.chunk(8)), rows)
        dist.send(x, 1), dist.recv(x, 1), dist.recv(x), dist.isend(x, 1).wait(), dist.irecv(x, 1).wait()
        dist.gather(x, None, 0), dist.scatter(rows[0], None, 0), dist.reduce_scatter_tensor(rows[0], x)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, y, 1)]):
            work.wait()
        dist.barrier(), dist.monitored_barrier(dist.new_group(backend="gloo"))
        part = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        assert dist.get_process_group_ranks(part) == [2, 3]
        wait = functional.wait_tensor
        assert wait(functional.all_gather_tensor(x, 0, dist.group.WORLD)).shape == (512, 8)
        assert wait(functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)).shape == (8, 8)
        assert wait(functional.all_reduce(x, "sum", dist.group.WORLD)).shape == (64, 8)
        assert dist.get_backend() == "nccl" and dist.get_rank() == 3 and dist.get_world_size() == 8


def backends_can_be_chosen_in_every_way():
    for backend in ("nccl", "cpu:gloo,cuda:nccl", None, "gloo"):
        with _world(16, backend=backend):
            dist.all_reduce(torch.ones(2, device="cpu" if backend == "gloo" else "cuda"))
            init_device_mesh("cuda", (2, 2, 4), mesh_dim_names=("a", "b", "c"))["b", "c"]


def an_unknown_collective_is_named():
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("new_collective(Tensor x, __torch__.torch.classes.c10d.ProcessGroup process_group) -> Tensor")
    try:
        with _world(2):
            try:
                torch.ops.c10d.new_collective(torch.ones(1, device="cuda"), dist.group.WORLD.boxed())
            except RuntimeError as error:
                assert "c10d::new_collective is a collective that virtual ranks do not have" in str(error), error
                assert "Leave it out" in str(error)
            else:
                raise AssertionError("it ran")
    finally:
        library._destroy()


# ---- time ----


def a_collective_takes_time_beside_the_device():
    from modscope._virtual.time import times

    with _world(8):
        x = torch.empty(1 << 28, device="cuda")  # 1 GiB
        began = times.now()
        work = dist.all_reduce(x, async_op=True)
        launched = times.now()
        work.wait()
        waited = times.now()
        assert launched - began < 1e-3
        expected = 2 * 7 / 8 * 2**30 / (0.75 * 450e9)  # NVLink of an H100
        assert abs((waited - began) / expected - 1) < 0.1, (waited - began, expected)
