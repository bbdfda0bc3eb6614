"""What torch.cuda says of a virtual GPU: the device, its memory, the libraries. Each process asks about one subject."""

from __future__ import annotations

from virtual_helpers import needs_interception, run

pytestmark = needs_interception


def test_the_device_and_its_properties() -> None:
    run(
        """
        cuda = torch.cuda
        assert cuda.is_available() and cuda.is_initialized() and torch.version.cuda
        assert (cuda.device_count(), cuda.current_device()) == (1, 0)  # whatever CUDA_VISIBLE_DEVICES says
        for asked in (None, 0, "cuda", "cuda:0", torch.device("cuda")):
            assert cuda.get_device_name(asked) == "NVIDIA GeForce RTX 4090"
        assert cuda.get_device_capability() == (8, 9) and "sm_89" in cuda.get_arch_list()
        assert cuda.is_bf16_supported() and cuda.is_tf32_supported()
        properties = cuda.get_device_properties(0)
        assert isinstance(properties, cuda._CudaDeviceProperties)
        assert (properties.major, properties.minor, properties.multi_processor_count) == (8, 9, 128)
        assert (properties.warp_size, properties.max_threads_per_multi_processor) == (32, 1536)
        assert (properties.shared_memory_per_block_optin, properties.regs_per_multiprocessor) == (99 << 10, 65536)
        assert repr(properties) == (
            "_CudaDeviceProperties(name='NVIDIA GeForce RTX 4090', major=8, minor=9, total_memory=24176MB, "
            "multi_processor_count=128, uuid=00000000-0000-0000-0000-000000000000, pci_bus_id=0, pci_device_id=0, "
            "pci_domain_id=0, L2_cache_size=72MB)")
        for name in ("gcnArchName", "is_integrated", "is_multi_gpu_board", "clock_rate", "memory_clock_rate",
                     "memory_bus_width", "max_threads_per_block", "shared_memory_per_block", "uuid", "pci_bus_id",
                     "shared_memory_per_multiprocessor", "L2_cache_size"):
            assert hasattr(properties, name), name
        assert error(cuda.get_device_properties, 1) == "AssertionError: Invalid device id"
        assert cuda.utilization() == 0 and cuda.temperature() > 0 and cuda.clock_rate() == 2520 and cuda.power_draw() == 0
        assert cuda.list_gpu_processes().startswith("GPU:0\\nprocess")
    """,
        gpu="rtx4090",
        CUDA_VISIBLE_DEVICES="",
    )


def test_there_is_one_device() -> None:
    run(
        """
        cuda, missing = torch.cuda, "AcceleratorError: CUDA error: invalid device ordinal"
        if not hasattr(torch, "AcceleratorError"):
            missing = missing.replace("Accelerator", "Runtime")
        for attempt in (lambda: torch.ones(3).to("cuda:1"), lambda: torch.empty(3, device="cuda:1"),
                        lambda: torch.ones(3, device="cuda").to("cuda:2"), lambda: torch.arange(3, device=1),
                        lambda: torch.ones(3).cuda(1), lambda: cuda.set_device(1), lambda: torch.UntypedStorage(3, device="cuda:1")):
            assert error(attempt) == missing, error(attempt)
        with cuda.device(0), cuda.device("cuda:0"), cuda.device_of(torch.ones(1, device="cuda")), cuda.device_of(torch.ones(1)):
            cuda.set_device("cuda:0")
            cuda.synchronize()
        torch.set_default_device("cuda")
        assert torch.ones(1).is_cuda and nn.Linear(2, 2).weight.get_device() == 0
        torch.set_default_device(None)
        assert not torch.ones(1).is_cuda
        with torch.device("cuda"):
            assert torch.zeros(2).device == torch.device("cuda:0")
        assert not cuda.can_device_access_peer(0, 0)
        from torch.cuda import comm
        assert comm.broadcast(torch.ones(3, device="cuda"), [0])[0].shape == (3,)
        assert nn.DataParallel(nn.Linear(3, 2).cuda())(torch.ones(4, 3, device="cuda")).shape == (4, 2)
    """,
        CUDA_VISIBLE_DEVICES="1",
    )


def test_memory_statistics() -> None:
    run("""
        cuda, mib = torch.cuda, 1 << 20
        kept = torch.empty(3 * mib, dtype=torch.uint8, device="cuda")
        small = torch.empty(100, device="cuda")
        stats = cuda.memory_stats()
        pools = [f"{stat}.{pool}.{part}" for stat in ("active", "active_bytes", "allocated_bytes", "allocation", "inactive_split",
                 "inactive_split_bytes", "requested_bytes", "reserved_bytes", "segment") for pool in ("all", "large_pool", "small_pool")
                 for part in ("allocated", "current", "freed", "peak")]
        single = [f"{stat}.{part}" for stat in ("oversize_allocations", "oversize_segments") for part in ("allocated", "current", "freed", "peak")]
        counts = ["max_split_size", "num_alloc_retries", "num_device_alloc", "num_device_free", "num_ooms", "num_sync_all_streams"]
        assert set(pools + single + counts) <= set(stats) and list(stats) == sorted(stats)
        assert stats["allocated_bytes.all.current"] == cuda.memory_allocated() == 3 * mib + 512
        assert stats["reserved_bytes.small_pool.current"] == 2 * mib and stats["max_split_size"] == -1
        assert "Allocated memory" in cuda.memory_summary() and "3072 KiB" in cuda.memory_summary(abbreviated=True)
        free, total = cuda.mem_get_info()
        assert total == cuda.get_device_properties(0).total_memory and total - free == 22 * mib + device.gpu.context
        assert cuda.device_memory_used() == total - free
        del kept
        assert (cuda.max_memory_allocated(), cuda.max_memory_reserved(), cuda.memory_cached()) == (3 * mib + 512, 22 * mib, 22 * mib)
        cuda.reset_peak_memory_stats()
        cuda.empty_cache()
        assert (cuda.max_memory_allocated(), cuda.memory_reserved()) == (512, 2 * mib)
        cuda.reset_max_memory_allocated(), cuda.reset_max_memory_cached(), cuda.reset_accumulated_memory_stats()
        assert cuda.memory_stats()["allocation.all.allocated"] == 0
        assert cuda.host_memory_stats()["allocated_bytes.current"] == 0
        accelerator = torch.accelerator
        assert accelerator.is_available() and accelerator.current_accelerator().type == "cuda" and accelerator.device_count() == 1
        accelerator.set_device_index(0), accelerator.synchronize()
        assert accelerator.current_device_index() == 0
        if hasattr(accelerator, "memory_stats"):
            assert accelerator.memory_allocated() == 512 and accelerator.memory_stats() == cuda.memory_stats()
            accelerator.reset_peak_memory_stats(), accelerator.empty_cache()
    """)


def test_snapshots_list_segments_with_their_blocks() -> None:
    run("""
        cuda, mib = torch.cuda, 1 << 20
        cuda.memory._record_memory_history()
        tensors = [torch.empty(4 * mib, dtype=torch.uint8, device="cuda") for _ in range(3)]
        small, released = torch.empty(10, device="cuda"), tensors.pop(1)
        del released
        segments = cuda.memory_snapshot()
        assert [(s["segment_type"], s["total_size"], s["allocated_size"], s["requested_size"]) for s in segments] in (
            [("large", 20 * mib, 8 * mib, 8 * mib), ("small", 2 * mib, 512, 40)],
            [("small", 2 * mib, 512, 40), ("large", 20 * mib, 8 * mib, 8 * mib)])
        large = next(s for s in segments if s["segment_type"] == "large")
        assert [(b["size"] // mib, b["state"]) for b in large["blocks"]] == [
            (4, "active_allocated"), (4, "inactive"), (4, "active_allocated"), (8, "inactive")]
        assert large["blocks"][2]["address"] == tensors[1].data_ptr()
        snapshot = cuda.memory._snapshot()
        assert snapshot["segments"] == segments and snapshot["device_traces"] == [[]]
        from torch.cuda._memory_viz import segsum
        assert "20.0MiB" in segsum(snapshot)
        cuda.memory._record_memory_history(enabled=None)
        address = cuda.caching_allocator_alloc(1000)
        assert cuda.memory_allocated() == 8 * mib + 512 + 1024
        cuda.caching_allocator_delete(address)
        assert error(cuda.caching_allocator_delete, address).startswith("RuntimeError: invalid device pointer")
        assert cuda.memory_allocated() == 8 * mib + 512 and cuda.get_allocator_backend() == "native"
    """)


def test_expandable_segments_are_listed_by_their_mapped_pieces() -> None:
    run(
        """
        tensors = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
        (segment,) = torch.cuda.memory_snapshot()
        assert segment["is_expandable"] and segment["total_size"] == torch.cuda.memory_reserved() == 60 << 20
    """,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )


def test_the_allocator_can_be_limited_and_set() -> None:
    run(
        """
        cuda, gib = torch.cuda, 1 << 30
        assert cuda.get_per_process_memory_fraction() == 0.5
        assert error(torch.empty, 9 * gib, dtype=torch.uint8, device="cuda").startswith("OutOfMemoryError: CUDA out of memory")
        cuda.set_per_process_memory_fraction(0.75)
        assert cuda.get_per_process_memory_fraction() == 0.75
        tensor = torch.empty(9 * gib, dtype=torch.uint8, device="cuda")
        assert error(torch.empty, 4 * gib, dtype=torch.uint8, device="cuda").startswith("OutOfMemoryError: CUDA out of memory")
        assert cuda.memory_stats()["num_ooms"] == 2
        cuda.memory._set_allocator_settings("max_split_size_mb:64")
        assert cuda.memory_stats()["max_split_size"] == 64 << 20 and cuda.get_per_process_memory_fraction() == 0.75
        assert "no_such_key" in error(cuda.memory._set_allocator_settings, "no_such_key:1")
    """,
        gpu="16GiB",
        PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.5",
    )


def test_libraries_and_flags() -> None:
    run("""
        backends, cuda = torch.backends, torch.cuda
        assert backends.cuda.is_built() and backends.cudnn.is_available() and backends.cudnn.version() >= 90000
        backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = True
        backends.cudnn.benchmark = backends.cudnn.deterministic = True
        assert backends.cuda.matmul.allow_tf32 and backends.cudnn.benchmark
        backends.cuda.enable_flash_sdp(False), backends.cuda.enable_mem_efficient_sdp(False), backends.cuda.enable_math_sdp(True)
        assert not backends.cuda.flash_sdp_enabled() and backends.cuda.math_sdp_enabled()
        backends.cuda.preferred_linalg_library("cusolver")
        assert "cusolver" in str(backends.cuda.preferred_linalg_library()).lower()
        backends.cuda.preferred_blas_library("cublaslt")
        torch.use_deterministic_algorithms(True)
        assert (torch.ones(3, 3, device="cuda") @ torch.ones(3, 3, device="cuda")).shape == (3, 3)
        torch.use_deterministic_algorithms(False)
        cuda.nvtx.range_push("a"), cuda.nvtx.range_pop(), cuda.nvtx.mark("b")
        with cuda.nvtx.range("c"):
            pass
        assert cuda.nccl.version() >= (2, 0) and cuda.current_blas_handle()
        cuda.set_sync_debug_mode("warn")
        assert cuda.get_sync_debug_mode() == 1
        cuda.check_error(cuda.cudart().cudaProfilerStart())
        assert not cuda.tunable.is_enabled()
    """)


# ---- tensors ----


def test_what_is_not_known_is_read_as_zeros() -> None:
    run("""
        import numpy
        x = torch.ones(2, 3, device="cuda")
        assert (x.is_cuda, x.get_device(), x.type(), x.stride()) == (True, 0, "torch.cuda.FloatTensor", (3, 1))
        assert x.tolist() == [[0.0] * 3] * 2 and x[0, 0].item() == 0 and not x.cpu().any()
        assert str(x) == "tensor([[0., 0., 0.],\\n        [0., 0., 0.]], device='cuda:0')"
        assert torch.equal(x, x) and not torch.equal(x, x + 1)  # the same memory; other memory
        assert not torch.allclose(x, x) and not bool((x == x).all()) and not bool(x.isnan().any())
        assert torch.ones((), device="cuda").item() == 1 and torch.arange(3, device="cuda").tolist() == [0, 1, 2]  # known
        assert error(x.numpy).startswith("TypeError: can't convert cuda:0 device type tensor to numpy")
        assert torch.from_numpy(numpy.ones(3)).cuda().dtype == torch.float64
        assert x.data_ptr() != 0 and x.__cuda_array_interface__["shape"] == (2, 3)
    """)


def test_files_and_copies() -> None:
    run("""
        import copy, pickle
        saved = io.BytesIO()
        torch.save({"tensor": torch.ones(3, device="cuda"), "state": nn.Linear(3, 3).cuda().state_dict()}, saved)
        def load(**options):
            saved.seek(0)
            loaded = torch.load(saved, **options)
            return {str(loaded["tensor"].device), str(loaded["state"]["weight"].device)}
        assert load() == load(map_location="cuda") == load(map_location=lambda storage, _: storage.cuda()) == {"cuda:0"}
        assert load(map_location="cpu") == load(map_location={"cuda:0": "cpu"}) == {"cpu"}
        assert error(load, map_location="cuda:1").startswith("RuntimeError: Attempting to deserialize object on CUDA device 1")
        before = torch.cuda.memory_allocated()
        model = nn.Linear(256, 256).cuda()
        twin = copy.deepcopy(model)
        assert twin.weight.is_cuda and twin.weight.data_ptr() != model.weight.data_ptr()
        assert torch.cuda.memory_allocated() - before == 2 * (256 * 256 * 4 + 1024)
        assert pickle.loads(pickle.dumps(torch.ones(3, device="cuda"))).is_cuda
        from multiprocessing.reduction import ForkingPickler
        import torch.multiprocessing
        assert error(ForkingPickler.dumps, torch.ones(3, device="cuda")) == (
            "RuntimeError: a tensor of a virtual GPU cannot be shared with another process: send a copy, tensor.cpu(). "
            "What a worker of a DataLoader returns can be moved to the GPU by the program that reads it.")
    """)


def test_storages() -> None:
    run("""
        allocated = torch.cuda.memory_allocated
        x = torch.ones(1000, device="cuda")
        storage = x.untyped_storage()
        assert (storage.nbytes(), str(storage.device), storage.data_ptr()) == (4000, "cuda:0", x.data_ptr())
        storage.resize_(0)
        assert storage.nbytes() == 0 and allocated() == 0 and x.data_ptr() == 0
        storage.resize_(4000)
        assert storage.nbytes() == 4000 and allocated() == 4096 and x.data_ptr() != 0
        assert error(storage.resize_, 90 << 30).startswith("OutOfMemoryError") and storage.nbytes() == 4000
        made = torch.UntypedStorage(100, device="cuda")
        assert made.is_cuda and made.clone().is_cuda and not made.cpu().is_cuda and torch.ones(3).untyped_storage().cuda().is_cuda
        part = torch.empty(0, device="cuda").set_(storage, 10, (5, 2), (2, 1))
        assert part.data_ptr() == x.data_ptr() + 40 and part.shape == (5, 2)
        assert torch.empty(0, device="cuda").set_(x).data_ptr() == x.data_ptr()
        cpu = torch.ones(4).untyped_storage()  # storages of the CPU are as they were
        assert cpu.resize_(32).nbytes() == 32 and torch.UntypedStorage(5).nbytes() == 5
    """)


def test_old_types() -> None:
    run("""
        x, y = torch.cuda.FloatTensor(3, 4), torch.cuda.LongTensor([1, 2])
        assert (x.shape, x.dtype, y.dtype, x.is_cuda) == ((3, 4), torch.float32, torch.int64, True)
        assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(y, torch.cuda.FloatTensor)
        assert torch.ones(3).type(torch.cuda.HalfTensor).dtype == torch.float16
        assert torch.ones(3).type("torch.cuda.DoubleTensor").is_cuda
    """)
