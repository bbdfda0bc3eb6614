"""The virtual device as other GPUs than an H200 and with the rules of other versions of torch: a small transformer
trains on each, and what it keeps and which kernel it takes is what that GPU and that version would."""

from __future__ import annotations

import pytest
import warm_python
from virtual_helpers import needs_interception

pytestmark = needs_interception

MIB = 1 << 20
SMALL, LARGE = 8_519_680, 32 * MIB  # cuBLAS's workspace

PROGRAM = """
import sys, torch
from torch import nn
from modscope._virtual.device.device import VirtualDevice
from modscope._virtual.gpus import find_gpu
gpu, version, dtype = sys.argv[1], sys.argv[2], getattr(torch, sys.argv[3])
device = VirtualDevice(find_gpu(gpu), version)
device.install()

def attended(x):
    q, k, v = x.view(4, 128, 3, 8, 64).permute(2, 0, 3, 1, 4)
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

model = nn.Sequential(nn.Linear(512, 1536), nn.Linear(512, 512)).cuda()
convolution = nn.Conv2d(3, 8, 3).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *convolution.parameters()])
for step in range(2):
    with torch.autocast("cuda", dtype=dtype):
        out = attended(model[0](torch.empty(4, 128, 512, device="cuda")))
        kernel = out.grad_fn.name()
        loss = model[1](out.transpose(1, 2).reshape(4, 128, 512)).float().square().mean()
        loss = loss + convolution(torch.empty(2, 3, 32, 32, device="cuda")).float().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
del out, loss
held = sum(t.untyped_storage().nbytes() for state in optimizer.state.values() for t in state.values() if t.is_cuda)
held += sum(p.untyped_storage().nbytes() for group in optimizer.param_groups for p in group["params"])
print(kernel, torch.cuda.memory_stats()["requested_bytes.all.current"] - held, torch.cuda.get_device_capability())
"""


def trained(gpu: str, version: str, dtype: str = "bfloat16") -> tuple[str, int]:
    """The kernel of attention, and the bytes that are kept beside parameters and the optimizer's state."""
    ran = warm_python.run(["-W", "ignore", "-c", PROGRAM, gpu, version, dtype])
    assert ran.returncode == 0, ran.stderr
    kernel, kept, *_ = ran.stdout.split()
    return kernel.removeprefix("ScaledDotProduct").removesuffix("Backward0"), int(kept)


@pytest.mark.parametrize(
    ("gpu", "version", "kernel", "kept"),
    [
        ("t4", "2.11", "math", 2 * SMALL + MIB),
        ("rtx4090", "2.8", "FlashAttention", 2 * SMALL),
        ("a100", "2.13", "FlashAttention", 2 * SMALL),
        ("h100", "2.8", "FlashAttention", 2 * LARGE),
        ("h100", "2.11", "CudnnAttention", 2 * LARGE + MIB),
        ("b200", "2.11", "CudnnAttention", 2 * SMALL + MIB),
        ("b200", "2.13", "CudnnAttention", 2 * LARGE),
        ("rtx5090", "2.13", "FlashAttention", 2 * LARGE),
        ("h200", "2.15", "CudnnAttention", 0),
    ],
)
def test_bfloat16_trains_as_on_that_gpu(gpu: str, version: str, kernel: str, kept: int) -> None:
    chosen, bytes = trained(gpu, version)
    assert bytes == kept
    assert chosen == kernel if kernel != "math" else "ScaledDotProduct" not in chosen and "Attention" not in chosen


def test_float16_on_a_turing_gpu_takes_the_memory_efficient_kernel() -> None:
    assert trained("t4", "2.11", "float16") == ("EfficientAttention", 2 * SMALL + MIB)
