"""What the program of a capture may reserve of a GPU, and why. Needs no torch."""

from __future__ import annotations

import re

from modscope._read.load import Capture
from modscope._read.ranks import number_said, world_of
from modscope._read.text import near_size, rough_size
from modscope._virtual.gpus import Gpu
from modscope._virtual.ranks.network import communicator_bytes


def memory_fraction(capture: Capture) -> float:
    """The fraction of the GPU's memory that the program left to itself with torch.cuda.set_per_process_memory_fraction
    or per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF. 1: all."""
    in_settings = re.search(r"per_process_memory_fraction\s*:\s*([\d.]+)", capture.info.get("allocator", ""))
    text = (capture.end or {}).get("memory_fraction") or (in_settings[1] if in_settings else "1")
    try:
        fraction = float(text)
    except ValueError:
        return 1.0
    return fraction if 0 < fraction < 1 else 1.0


def nccl_bytes(capture: Capture) -> int:
    """What NCCL's communicators take of the GPU, about, outside torch's allocator. A prediction counts them. Of a real
    rank it is one communicator of all ranks: at least."""
    counted = number_said(capture, "communicator_bytes")
    if counted is not None:
        return counted
    return communicator_bytes(world_of(capture)) if capture.main_device.startswith("cuda") else 0


def may_reserve(gpu: Gpu, capture: Capture) -> int:
    """What torch's allocator may reserve of the GPU: beside the context, NCCL's communicators and the program's own
    limit."""
    return gpu.may_reserve(memory_fraction(capture), nccl_bytes(capture))


def room_beside(gpu: Gpu, nccl: int) -> str:
    """ "22.4 GiB beside the context and about 0.7 GiB for NCCL" """
    if not nccl:
        return f"{near_size(gpu.capacity)} beside the context"
    return f"{near_size(max(gpu.capacity - nccl, 0))} beside the context and about {rough_size(nccl)} for NCCL"
