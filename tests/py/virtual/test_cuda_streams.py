"""Streams, events, pinned memory, generators and mixed precision on a virtual GPU."""

from __future__ import annotations

from virtual_helpers import needs_interception, run

pytestmark = needs_interception


def test_a_block_belongs_to_the_stream_that_is_current() -> None:
    run("""
        cuda, mib = torch.cuda, 1 << 20
        stream = cuda.Stream()
        assert isinstance(stream, torch.Stream) and stream != cuda.default_stream() and stream.query()
        first = torch.empty(mib, device="cuda")
        with cuda.stream(stream):
            assert cuda.current_stream() == stream and torch.accelerator.current_stream().stream_id == stream.stream_id
            second = torch.empty(mib, device="cuda")
        assert cuda.current_stream() == cuda.default_stream()
        assert cuda.memory_reserved() == 40 * mib  # a segment for each stream
        assert {s["stream"] for s in cuda.memory_snapshot()} == {0, stream.cuda_stream}
        with stream:
            assert cuda.current_stream() == stream
        event = stream.record_event()
        stream.wait_event(event), stream.wait_stream(cuda.current_stream()), event.wait(stream), stream.synchronize()
        assert cuda.ExternalStream(77).cuda_stream == 77 and cuda.Stream(priority=-1).priority == -1
        assert len({cuda.Stream().stream_id for _ in range(100)}) == 32  # torch has as many, and gives them in turn
        assert not cuda.is_current_stream_capturing() and not stream.is_capturing()
        # The backward of what ran on a stream runs on it.
        weight = torch.ones(mib, device="cuda", requires_grad=True)
        with cuda.stream(stream):
            loss = (weight * 2).sum()
        loss.backward()
        gradient = next(s for s in cuda.memory_snapshot() if s["address"] <= weight.grad.data_ptr() < s["address"] + s["total_size"])
        assert gradient["stream"] == stream.cuda_stream
    """)


def test_recorded_memory_waits_for_the_next_request() -> None:
    run("""
        stream = torch.cuda.Stream()
        tensor = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        tensor.record_stream(stream)
        del tensor
        stats = torch.cuda.memory_stats()
        assert (stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]) == (0, 3 << 20)
        torch.empty(1, device="cuda")
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0
    """)


def test_events_have_the_time_of_the_virtual_clock() -> None:
    run("""
        from modscope import _native
        begin, end, without = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), torch.cuda.Event()
        assert error(begin.elapsed_time, end) == "ValueError: Both events must be recorded before calculating elapsed time."
        begin.record(), end.record(), without.record()
        end.synchronize()
        assert begin.elapsed_time(end) == 0.0 and end.query() and isinstance(end, torch.Event)
        assert error(begin.elapsed_time, without) == "ValueError: Both events must be created with argument 'enable_timing=True'."
        begin.record()
        _native.virtual_clock_run(0.0, 0.0025)  # seconds of the host, and of the device
        end.record(torch.cuda.current_stream())
        assert abs(begin.elapsed_time(end) - 2.5) < 1e-6
        first, second = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
        first.record(), second.record()
        assert first.elapsed_time(second) == 0.0
    """)


def test_pinned_memory_is_real() -> None:
    run("""
        tensor = torch.arange(5.0)
        pinned = tensor.pin_memory()
        assert pinned.is_pinned() and not tensor.is_pinned() and torch.equal(pinned, tensor)
        assert torch.empty(3, pin_memory=True).is_pinned()
        assert pinned.to("cuda", non_blocking=True).is_cuda
        from torch.utils.data import DataLoader, TensorDataset
        batches = [x for (x,) in DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=4, pin_memory=True, num_workers=2)]
        assert len(batches) == 2 and all(batch.is_pinned() and batch.sum() == 12 for batch in batches)
    """)


def test_seeds_and_generators() -> None:
    run("""
        cuda = torch.cuda
        torch.manual_seed(7)
        assert cuda.initial_seed() == 7
        cuda.manual_seed(9)
        state = cuda.get_rng_state()
        assert state.shape == (16,) and state.dtype == torch.uint8
        cuda.manual_seed_all(4)
        cuda.set_rng_state(state)
        assert cuda.initial_seed() == 9
        cuda.set_rng_state_all(cuda.get_rng_state_all())
        assert error(cuda.set_rng_state, torch.zeros(5, dtype=torch.uint8)).startswith("RuntimeError: RNG state is wrong size")
        with torch.random.fork_rng():
            cuda.manual_seed(1)
        assert cuda.initial_seed() == 9
        cuda.seed_all(), cuda.seed()
        generator = torch.Generator(device="cuda").manual_seed(5)
        assert str(generator.device) == "cuda:0" and generator.initial_seed() == 5
        for made in (torch.randn(3, device="cuda", generator=generator), torch.randperm(3, device="cuda", generator=generator)):
            assert made.shape == (3,)
        before = torch.rand(2)
        torch.manual_seed(7)
        assert torch.equal(torch.rand(3), torch.manual_seed(7) and torch.rand(3))  # the CPU's generator is real
    """)


def test_mixed_precision() -> None:
    run("""
        for scaler, autocast in ((torch.amp.GradScaler("cuda"), torch.autocast("cuda", dtype=torch.bfloat16)),
                                 (torch.cuda.amp.GradScaler(), torch.cuda.amp.autocast())):
            model = nn.Linear(3, 3).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with autocast:
                out = model(torch.ones(2, 3, device="cuda"))
            assert out.dtype in (torch.bfloat16, torch.float16) and scaler.is_enabled()
            scaler.scale(out.float().sum()).backward()
            scaler.unscale_(optimizer), scaler.step(optimizer), scaler.update()
            assert scaler.get_scale() == 65536.0  # a single number keeps its value, and gradients are taken to be finite
    """)
