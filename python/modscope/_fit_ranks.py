"""What ``modscope fit`` and ``plan`` know of ranks: which one a capture is of, and what NCCL takes of its GPU. Needs no torch."""

from __future__ import annotations

from modscope._fit_job import Job, memory_fraction
from modscope._load import Capture
from modscope._text import near_size, rough_size
from modscope._virtual.gpus import Gpu
from modscope._virtual.network import RANKS_PER_NODE, communicator_bytes


def _number(capture: Capture, key: str) -> int | None:
    text = (capture.end or {}).get(key) or capture.info.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else None


def world_of(capture: Capture) -> int:
    """How many ranks there were; 1 where nothing says so."""
    return max(_number(capture, "world") or 1, 1)


def ranks_per_node(capture: Capture) -> int:
    """As the launcher said; 8 where nothing says so."""
    world, local = world_of(capture), _number(capture, "local_world")
    return local if local and world > 1 else RANKS_PER_NODE


def nccl_bytes(capture: Capture) -> int:
    """What NCCL's communicators take of the GPU, about, outside torch's allocator. A prediction counts them. Of a real rank
    it is one communicator of all ranks: at least."""
    counted = _number(capture, "communicator_bytes")
    if counted is not None:
        return counted
    return communicator_bytes(world_of(capture)) if capture.main_device.startswith("cuda") else 0


def may_reserve(gpu: Gpu, capture: Capture) -> int:
    """What torch's allocator may reserve of the GPU: beside the context, NCCL's communicators and the program's own limit."""
    return min(gpu.may_reserve(memory_fraction(capture)), max(gpu.capacity - nccl_bytes(capture), 0))


def room_beside(gpu: Gpu, nccl: int) -> str:
    """ "22.4 GiB beside the context and about 0.7 GiB for NCCL" """
    if not nccl:
        return f"{near_size(gpu.capacity)} beside the context"
    return f"{near_size(max(gpu.capacity - nccl, 0))} beside the context and about {rough_size(nccl)} for NCCL"


def which_rank(job: Job) -> str:
    """ "rank 0 of 8", or "" where there is one only."""
    world = world_of(job.capture)
    return f"rank {_number(job.capture, 'rank') or 0} of {world}" if world > 1 else ""
