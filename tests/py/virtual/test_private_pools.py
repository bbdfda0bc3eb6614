"""Private pools of memory on a virtual GPU: torch.cuda.MemPool, and CUDA graphs."""

from __future__ import annotations

from virtual_helpers import needs_interception, run

pytestmark = needs_interception


def test_what_is_allocated_in_a_pool_has_segments_of_its_own() -> None:
    run("""
        cuda, mib = torch.cuda, 1 << 20
        def take(bytes):
            return torch.empty(bytes, dtype=torch.uint8, device="cuda")
        del (x := [take(30 * mib)])[:]
        pool, other = cuda.MemPool(), cuda.MemPool()
        with cuda.use_mem_pool(pool):
            y = take(30 * mib)
            with cuda.use_mem_pool(other):
                z = take(3 * mib)
        assert cuda.memory_reserved() == 80 * mib and cuda.memory_allocated() == 33 * mib
        assert [(s["segment_pool_id"], s["total_size"]) for s in pool.snapshot()] == [(pool.id, 30 * mib)]
        assert {s["segment_pool_id"] for s in cuda.memory_snapshot()} == {(0, 0), pool.id, other.id}
        cuda.empty_cache()  # gives back that of the default pool only
        assert cuda.memory_reserved() == 50 * mib
        del y
        cuda.empty_cache()
        assert cuda.memory_reserved() == 50 * mib
        take(30 * mib)
        assert cuda.memory_reserved() == 80 * mib
        del pool, other  # z is alive, and so is its segment
        assert cuda.memory_reserved() == 50 * mib
        del z
        cuda.empty_cache()
        assert cuda.memory_reserved() == 0
    """)


def test_the_free_memory_of_a_pool_is_used_for_others_only_where_it_allows_that() -> None:
    run(
        """
        cuda, gib = torch.cuda, 1 << 30
        def take(bytes):
            return torch.empty(bytes, dtype=torch.uint8, device="cuda")
        for allows in (False, True):
            pool = cuda.MemPool(use_on_oom=allows)
            with cuda.use_mem_pool(pool):
                take(10 * gib)
            if allows:
                take(9 * gib)
            else:
                assert error(take, 9 * gib).startswith("OutOfMemoryError: CUDA out of memory")
            assert cuda.memory_reserved() == 10 * gib
            del pool
            assert cuda.memory_reserved() == 0
        pool = cuda.MemPool(no_split=True)
        with cuda.use_mem_pool(pool):
            small = [take(100), take(100)]
        assert cuda.memory_reserved() == cuda.memory_allocated() == 4 << 20
    """,
        gpu="16GiB",
    )


def test_a_graph_is_captured_in_a_pool_and_its_replay_takes_time_and_no_memory() -> None:
    run("""
        cuda, mib = torch.cuda, 1 << 20
        model, x, side = nn.Linear(1024, 1024).cuda(), torch.ones(8, 1024, device="cuda"), cuda.Stream()
        with cuda.stream(side):
            model(x).sum().backward()
        def time_of(function):
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record(), function(), end.record(), cuda.synchronize()
            return begin.elapsed_time(end)
        def step():
            for _ in range(20):
                model(x).sum().backward()
        eager = time_of(step)
        model.zero_grad()
        graph = cuda.CUDAGraph()
        assert error(graph.capture_begin).startswith("RuntimeError: CUDA graphs must be captured on a non-default stream")
        reserved = cuda.memory_reserved()
        with cuda.graph(graph):
            assert cuda.is_current_stream_capturing() and cuda.current_stream().is_capturing()
            assert error(x.sum().item).startswith("RuntimeError: CUDA error: operation not permitted when stream is captur")
            step()
        assert not cuda.is_current_stream_capturing() and cuda.current_stream() == cuda.default_stream()
        assert cuda.memory_reserved() > reserved and graph.pool() in {s["segment_pool_id"] for s in cuda.memory_snapshot()}
        where = next(s for s in cuda.memory_snapshot() if s["address"] <= model.weight.grad.data_ptr() < s["address"] + s["total_size"])
        assert where["segment_pool_id"] == graph.pool()  # backward runs in a thread of its own
        allocations = cuda.memory_stats()["allocation.all.allocated"]
        replayed = time_of(graph.replay)
        assert cuda.memory_stats()["allocation.all.allocated"] == allocations
        assert 0 < replayed < 0.5 * eager  # which waits for the host
        second = cuda.CUDAGraph()
        with cuda.graph(second, pool=graph.pool()):
            y = x + 1
        assert second.pool() == graph.pool() and cuda.graph_pool_handle() != cuda.graph_pool_handle()
        del y
        model.zero_grad()
        reserved = cuda.memory_reserved()
        graph.reset()
        cuda.empty_cache()
        assert any(s["segment_pool_id"] == second.pool() for s in cuda.memory_snapshot())
        assert error(graph.replay).startswith("RuntimeError: Called CUDAGraph::replay without")
        torch._C._cuda_clearCublasWorkspaces()
        del second
        cuda.empty_cache()
        assert not any(s["segment_pool_id"] != (0, 0) for s in cuda.memory_snapshot())
    """)


def test_graphed_callables_run_forward_and_backward() -> None:
    run("""
        make = lambda: torch.ones(4, 3, device="cuda", requires_grad=True)
        model = torch.cuda.make_graphed_callables(nn.Linear(3, 2).cuda(), (make(),))
        before = torch.cuda.memory_reserved()
        for _ in range(3):
            x = make()
            out = model(x)
            out.sum().backward()
            assert out.shape == (4, 2) and x.grad.shape == (4, 3) and model.weight.grad is not None
        assert torch.cuda.memory_reserved() == before
    """)


def test_a_pool_is_again_what_it_was() -> None:
    run("""
        cuda, C, mib = torch.cuda, torch._C, 1 << 20
        def take(bytes):
            return torch.empty(bytes, dtype=torch.uint8, device="cuda")
        pool = cuda.MemPool()
        with cuda.use_mem_pool(pool):
            first, second, third = take(3 * mib), take(4 * mib), take(5 * mib)
        state = C._cuda_getCheckpointState(0, pool.id)
        addresses = {first.data_ptr(), second.data_ptr(), third.data_ptr()}
        assert C._cuda_checkPoolLiveAllocations(0, pool.id, addresses)
        meta = {"data_ptr": second.data_ptr(), "nbytes": 4 * mib}
        live = C._construct_storage_from_data_pointer(meta["data_ptr"], second.device, meta["nbytes"])
        assert not C._has_Standard_Deleter(live._weak_ref()) and C._has_Standard_Deleter(first.untyped_storage()._weak_ref())
        stale, at = first, first.data_ptr()
        del second, third
        with cuda.use_mem_pool(pool):
            between = take(6 * mib)
        C._cuda_setCheckpointPoolState(0, state, [], [live._weak_ref()])
        assert C._cuda_checkPoolLiveAllocations(0, pool.id, addresses) and cuda.memory_allocated() == 12 * mib
        del between, stale, first  # their memory is not theirs any more
        assert cuda.memory_allocated() == 12 * mib and C._has_Standard_Deleter(live._weak_ref())
        tensor = C._construct_CUDA_Tensor_From_Storage_And_Metadata(
            {"dtype": torch.float32, "device": torch.device("cuda:0"), "size": (2, 3), "stride": (3, 1), "storage_offset": 0}, live)
        assert tensor.shape == (2, 3) and tensor.data_ptr() == meta["data_ptr"]
        del tensor, live
        assert cuda.memory_allocated() == 8 * mib
        cuda.caching_allocator_delete(at)
        assert cuda.memory_allocated() == 5 * mib and cuda.memory_reserved() == 20 * mib
    """)
