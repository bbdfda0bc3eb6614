"""The GPUs that can be virtual: the only table of what torch says of them, how fast they are, and what a program may
reserve of them.

Speeds are those of the makers' datasheets and architecture whitepapers (named above each GPU): dense, without
sparsity, at the boost clock. Where a GeForce GPU is twice as fast with sums in float16, the rate is that of sums in
float32, which torch uses. Needs no torch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from modscope._read.text import gpu_label, parse_size

__all__ = ["GPUS", "Gpu", "Speed", "find_gpu", "gpus", "parse_gpus", "rules_of"]

MIB = 1 << 20
GIB = 1 << 30


class Architecture(NamedTuple):
    """What GPUs of one compute capability have in common, from NVIDIA's table of compute capabilities."""

    threads: int
    """The most threads that are resident on a streaming multiprocessor."""
    shared: int
    """KiB of shared memory of a multiprocessor."""
    shared_of_block: int
    """KiB of shared memory that a block can ask for."""


_ARCHITECTURES = {
    (7, 0): Architecture(2048, 96, 96),
    (7, 5): Architecture(1024, 64, 64),
    (8, 0): Architecture(2048, 164, 163),
    (8, 6): Architecture(1536, 100, 99),
    (8, 9): Architecture(1536, 100, 99),
    (9, 0): Architecture(2048, 228, 227),
    (10, 0): Architecture(2048, 228, 227),
    (12, 0): Architecture(1536, 100, 99),
}


def architecture_of(capability: tuple[int, int]) -> Architecture:
    """The architecture of a capability that is not in the table is the nearest older one of its generation, or 9.0."""
    older = [known for known in _ARCHITECTURES if known[0] == capability[0] and known <= capability]
    return _ARCHITECTURES[max(older, default=(9, 0))]


class Speed(NamedTuple):
    """The peaks of a GPU. 0: it has no such unit."""

    float64: float
    """10^12 operations a second in float64, by tensor cores where it has them for that type."""
    float32: float
    """10^12 operations a second in float32, without tensor cores."""
    tf32: float
    """Products of float32 by tensor cores, which round their factors."""
    float16: float
    bfloat16: float
    float8: float
    bandwidth: float
    """The bandwidth of the memory, in 10^9 bytes a second."""
    link: float
    """The bandwidth to the host, one way, in 10^9 bytes a second."""


class Board(NamedTuple):
    cache: int
    """MiB of the second-level cache."""
    bus: int
    """Bits of the memory bus. Two of them are moved in each cycle: 2 * bus * memory_clock is the bandwidth."""
    memory_clock: int
    """MHz."""
    clock: int
    """MHz of the multiprocessors."""


class Gpu(NamedTuple):
    name: str
    """The short name, such as ``rtx4090``."""
    title: str
    """The name that torch gives it."""
    memory: int
    """``total_memory`` as torch sees it; the lowest that was seen, as it differs by driver and board."""
    capability: tuple[int, int]
    processors: int
    """Streaming multiprocessors."""
    context: int = 512 * MIB
    """What the CUDA context of a process takes of it, about."""
    speed: Speed | None = None
    """None: it is not known how fast the GPU is, and no time is predicted."""
    board: Board = Board(50, 5120, 2619, 1980)
    """An H100's where it is not known."""
    nvlink: float = 0.0
    """The bandwidth to other GPUs of a node, one way, in 10^9 bytes a second: half of the sum in datasheets. 0: it has
    no NVLink, or it is not known, and GPUs are linked through the host."""
    network: float = 12.5
    """The bandwidth to other nodes for each GPU, in 10^9 bytes a second: one adapter of 100, 200 or 400 Gb/s each, as
    in the makers' own servers."""

    @property
    def capacity(self) -> int:
        """What is left for torch's allocator."""
        return self.memory - self.context

    def may_reserve(self, fraction: float = 1.0, communicators: int = 0) -> int:
        """What torch's allocator may reserve: what is left beside the context and NCCL's communicators, and no more
        than the fraction of the memory to which a program limits itself with ``per_process_memory_fraction`` or
        ``torch.cuda.set_per_process_memory_fraction``. 1 is no limit."""
        left = max(self.capacity - communicators, 0)
        return min(left, int(fraction * self.memory)) if fraction < 1 else left

    @property
    def architecture(self) -> Architecture:
        return architecture_of(self.capability)

    @property
    def label(self) -> str:
        """Its title without the maker's name: ``RTX 4090``."""
        return gpu_label(self.title)


# The columns, by the fields above:
#   Gpu(name, title, memory, capability, processors)
#   Speed(float64, float32, tf32, float16, bfloat16, float8, bandwidth, link), Board(cache, bus, memory_clock, clock)
# fmt: off
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        # T4 datasheet; Turing whitepaper
        Gpu("t4", "Tesla T4", 14_930 * MIB, (7, 5), 40,
            speed=Speed(0.25, 8.1, 0, 65, 0, 0, 320, 16), board=Board(4, 256, 5001, 1590)),
        # V100 datasheet; Volta whitepaper
        Gpu("v100-16gb", "Tesla V100-SXM2-16GB", 16_130 * MIB, (7, 0), 80,
            speed=Speed(7.8, 15.7, 0, 125, 0, 0, 900, 16), board=Board(6, 4096, 877, 1530), nvlink=150),
        # V100 datasheet; Volta whitepaper
        Gpu("v100-32gb", "Tesla V100-SXM2-32GB", 32_501 * MIB, (7, 0), 80,
            speed=Speed(7.8, 15.7, 0, 125, 0, 0, 900, 16), board=Board(6, 4096, 877, 1530), nvlink=150),
        # GA102 whitepaper
        Gpu("rtx3090", "NVIDIA GeForce RTX 3090", 24_114 * MIB, (8, 6), 82,
            speed=Speed(0.56, 35.6, 35.6, 71, 71, 0, 936, 32), board=Board(6, 384, 9751, 1695)),
        # Ada whitepaper
        Gpu("rtx4090", "NVIDIA GeForce RTX 4090", 24_176 * MIB, (8, 9), 128,
            speed=Speed(1.29, 82.6, 82.6, 165.2, 165.2, 330.3, 1008, 32), board=Board(72, 384, 10501, 2520)),
        # RTX Blackwell whitepaper
        Gpu("rtx5090", "NVIDIA GeForce RTX 5090", 32_117 * MIB, (12, 0), 170,
            speed=Speed(1.64, 104.8, 104.8, 209.5, 209.5, 419, 1792, 64), board=Board(96, 512, 14001, 2407)),
        # Ada professional whitepaper
        Gpu("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", 48_508 * MIB, (8, 9), 142,
            speed=Speed(1.42, 91.1, 182.1, 364.2, 364.2, 728.5, 960, 32), board=Board(96, 384, 10001, 2505)),
        # L4 datasheet
        Gpu("l4", "NVIDIA L4", 22_558 * MIB, (8, 9), 58,
            speed=Speed(0.47, 30.3, 60, 121, 121, 242.5, 300, 32), board=Board(48, 192, 6251, 2040)),
        # A10G datasheet
        Gpu("a10g", "NVIDIA A10G", 22_517 * MIB, (8, 6), 80,
            speed=Speed(0.49, 31.5, 35, 70, 70, 0, 600, 32), board=Board(6, 384, 6251, 1710)),
        # A30 datasheet
        Gpu("a30", "NVIDIA A30", 24_094 * MIB, (8, 0), 56,
            speed=Speed(10.3, 10.3, 82, 165, 165, 0, 933, 32), board=Board(24, 3072, 1215, 1440)),
        # L40S datasheet
        Gpu("l40s", "NVIDIA L40S", 45_465 * MIB, (8, 9), 142,
            speed=Speed(1.41, 91.6, 183, 362, 362, 733, 864, 32), board=Board(96, 384, 9001, 2520)),
        # A100 datasheet
        Gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", 40_326 * MIB, (8, 0), 108,
            speed=Speed(19.5, 19.5, 156, 312, 312, 0, 1555, 32), board=Board(40, 5120, 1215, 1410),
            nvlink=300, network=25),
        # A100 datasheet
        Gpu("a100", "NVIDIA A100-SXM4-80GB", 81_039 * MIB, (8, 0), 108,
            speed=Speed(19.5, 19.5, 156, 312, 312, 0, 2039, 32), board=Board(40, 5120, 1593, 1410),
            nvlink=300, network=25),
        # H100 datasheet; Hopper whitepaper
        Gpu("h100", "NVIDIA H100 80GB HBM3", 81_008 * MIB, (9, 0), 132,
            speed=Speed(67, 67, 494.7, 989.4, 989.4, 1978.9, 3350, 64), board=Board(50, 5120, 2619, 1980),
            nvlink=450, network=50),
        # H200 datasheet; Hopper whitepaper. The cache and the bus were read on one: the whitepaper has the H100's.
        Gpu("h200", "NVIDIA H200", 143_073 * MIB, (9, 0), 132,
            speed=Speed(67, 67, 494.7, 989.4, 989.4, 1978.9, 4800, 64), board=Board(60, 6016, 3201, 1980),
            nvlink=450, network=50),
        # HGX B200 datasheet: 7.7 TB/s and 180 GB. The chip has 192 GB and 8,192 bits: it uses 15/16 of both.
        Gpu("b200", "NVIDIA B200", 182_630 * MIB, (10, 0), 148,
            speed=Speed(37, 75, 1100, 2250, 2250, 4500, 7700, 64), board=Board(126, 7680, 3996, 1965),
            nvlink=900, network=50),
    )
}
# fmt: on


gpus: Mapping[str, Gpu] = MappingProxyType(GPUS)
"""The GPUs that are known, by their short names."""


def rules_of(gpu: Gpu) -> Hashable:
    """GPUs of equal rules run the same kernels with the same workspaces. Both differ by generation, and in generation 8
    between data center (8.0) and other GPUs."""
    major, minor = gpu.capability
    return (major, major == 8 and minor > 0)


def find_gpu(name: str) -> Gpu:
    """A GPU by its short name, or one of as much memory as ``name`` says: ``24GiB``, ``16 GB``, a number of bytes."""
    key = re.sub(r"[\s_]", "", name.lower())
    for candidate in (
        key,
        key.replace("-", ""),
        key.removeprefix("nvidia"),
        key.removesuffix("-80gb").removesuffix("80gb"),
        f"rtx{key}",
    ):
        if candidate in GPUS:
            return GPUS[candidate]
    memory = parse_size(key)
    if memory is not None:
        return _gpu_of_memory(name, memory)
    raise ValueError(
        f"{name!r} is not a GPU that is known{_similar(key)}: use one of {', '.join(GPUS)}, or its memory as 24GiB"
    )


def parse_gpus(text: str) -> list[Gpu]:
    """The value of an option: GPUs with commas between them, or ``all``. ArgumentTypeError names one that is not
    known."""
    if text.strip().lower() == "all":
        return list(GPUS.values())
    try:
        return [find_gpu(name.strip()) for name in text.split(",") if name.strip()]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _gpu_of_memory(name: str, memory: int) -> Gpu:
    if memory < GIB:
        raise ValueError(f"a GPU of {name} is smaller than 1 GiB: give its memory as 24GiB")
    # it has the rules of an H100, and its speed is not known
    return Gpu(name, f"GPU of {f'{memory / GIB:.1f} GiB' if name.isdigit() else name}", memory, (9, 0), 132)


def _similar(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key, GPUS, 1)
    return f" (did you mean {close[0]}?)" if close else ""
