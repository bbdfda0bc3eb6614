"""A virtual GPU in torch. Each program runs in a process of its own."""

from __future__ import annotations

import modscope
import pytest
from virtual_helpers import needs_interception, run

import torch

pytestmark = needs_interception


def test_training_steps() -> None:
    out = run("""
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
        optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
        for _ in range(3):
            x, y = torch.randn(16, 64).cuda(), torch.zeros(16, dtype=torch.long, device="cuda")
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        print(type(loss).__name__, loss.device, loss.dtype, loss.item())
        print(loss.cpu(), type(next(model.parameters()).data))
    """)
    assert out == ["Tensor cuda:0 torch.float32 0.0", "tensor(0., grad_fn=<ToCopyBackward0>) <class 'torch.Tensor'>"]


def test_memory_is_what_torch_s_allocator_would_take() -> None:
    out = run("""
        a = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        b = torch.empty(100, device="cuda")
        view = a[10:].view(torch.uint8)
        print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
        del a
        print(torch.cuda.memory_allocated())
        del view
        print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved())
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        print(torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated())
        free, total = torch.cuda.mem_get_info()
        print(total - free - device.gpu.context)
    """)
    mib = 1 << 20
    assert out == [
        f"{3 * mib + 512} {22 * mib}",
        f"{3 * mib + 512}",
        f"512 {3 * mib + 512} {22 * mib}",
        f"{2 * mib} 512",
        f"{2 * mib}",
    ]


def test_out_of_memory_can_be_caught_and_the_batch_halved() -> None:
    out = run(
        """
        model, batch = nn.Linear(1 << 14, 1 << 14, device="cuda"), 1 << 17
        while True:
            try:
                model(torch.empty(batch, 1 << 14, device="cuda")).sum().backward()
                break
            except torch.OutOfMemoryError as error:
                text = str(error)
                batch //= 2
        print(batch, text.startswith("CUDA out of memory. Tried to allocate "))
    """,
        gpu="16GiB",
    )
    assert out == ["65536 True"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: test_cuda_undo.py tests it")
def test_everything_is_restored() -> None:
    out = run("""
        x = torch.ones(1000, device="cuda")
        device.remove()
        print(torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available())
        try:
            torch.ones(1, device="cuda")
        except (AssertionError, RuntimeError) as error:
            print("refused")
        del x
        print(torch.ones(3).add(1).sum().item())
    """)
    assert out == ["False 0 False", "refused", "6.0"]


def test_a_recording_shows_the_modules(tmp_path) -> None:
    run(f"""
        import modscope
        with modscope.record({str(tmp_path / "x.msc")!r}):
            model = nn.Sequential(nn.Linear(1000, 1000, bias=False)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(2):
                model(torch.ones(256, 1000, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    """)
    capture = modscope.load(tmp_path / "x.msc")
    at_peak = capture.snapshot("peak", "cuda:0")
    weights = 4_000_256  # 1,000 by 1,000 floats, in a block
    held = at_peak.by_module()["cuda:0"]["Sequential.0"]
    assert (held["Parameter"], held["Gradient"], held["Optstate"]) == (weights, weights, weights)
    assert at_peak.totals["cuda:0"]["Total"] == capture.peaks["cuda:0"].bytes
    assert at_peak.reserved["cuda:0"] == capture.reserved["cuda:0"] > capture.peaks["cuda:0"].bytes


def test_attention_takes_the_kernel_of_the_gpu() -> None:
    out = run("""
        q = torch.empty(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        print(nn.functional.scaled_dot_product_attention(q, q, q).grad_fn.name())
        q = q.detach().float().requires_grad_()
        print(nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).grad_fn.name())
    """)
    assert out == ["ScaledDotProductCudnnAttentionBackward0", "ScaledDotProductEfficientAttentionBackward0"]


def test_an_unknown_gpu_names_the_known_ones() -> None:
    from modscope._virtual.gpus import find_gpu

    with pytest.raises(
        ValueError, match="'gtx1' is not a GPU that is known: use one of t4, .*, or its memory as 24GiB"
    ):
        find_gpu("gtx1")
    assert find_gpu("RTX 4090").capability == (8, 9)
    assert find_gpu("24GiB").memory == 24 << 30
