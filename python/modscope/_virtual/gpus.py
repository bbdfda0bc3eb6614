"""GPUs that can be virtual: what torch says of them, and how fast they are.

Speeds are those of the makers' datasheets and architecture whitepapers (named beside each card): dense, without sparsity,
at the boost clock. Where a GeForce card is twice as fast with sums in float16, the rate is that of sums in float32, which
torch uses. Needs no torch.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["GPUS", "Gpu", "Speed", "find_gpu", "gpus", "label_of", "parse_gpus", "rules_of"]

MIB = 1 << 20
GIB = 1 << 30


def label_of(title: str) -> str:
    """A GPU's title without its maker's name."""
    return re.sub(r"^(NVIDIA |GeForce |Tesla )+", "", title)


class Speed(NamedTuple):
    """The peaks of a card. 0: it has no such unit."""

    float64: float
    """10^12 operations a second in float64, by tensor cores where it has them for that type."""
    float32: float
    """In float32, without tensor cores."""
    tf32: float
    """Products of float32 by tensor cores, which round their factors."""
    float16: float
    bfloat16: float
    float8: float
    bandwidth: float
    """Of the memory, in 10^9 bytes a second."""
    link: float
    """To the host, one way, in 10^9 bytes a second."""
    cache: int
    """Bytes of the second-level cache."""


def threads_per_processor(capability: tuple[int, int]) -> int:
    """The most threads that are resident on a streaming multiprocessor."""
    if capability == (7, 5):
        return 1024
    return 1536 if capability[0] in (8, 12) and capability != (8, 0) else 2048


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
    """None: it is not known how fast the card is, and no time is predicted."""

    @property
    def capacity(self) -> int:
        """What is left for torch's allocator."""
        return self.memory - self.context

    def may_reserve(self, fraction: float) -> int:
        """What torch's allocator may reserve where a program limits it to a fraction of the memory, with
        ``per_process_memory_fraction`` or ``torch.cuda.set_per_process_memory_fraction``. 1 is no limit."""
        return min(self.capacity, int(fraction * self.memory)) if fraction < 1 else self.capacity

    @property
    def label(self) -> str:
        """Its title without the maker's name: ``RTX 4090``."""
        return label_of(self.title)


_SPEEDS = {
    # float64, float32, tf32, float16, bfloat16, float8; bandwidth, link; cache
    "t4": Speed(0.25, 8.1, 0, 65, 0, 0, 320, 16, 4 * MIB),  # T4 datasheet; Turing whitepaper
    "v100-16gb": Speed(7.8, 15.7, 0, 125, 0, 0, 900, 16, 6 * MIB),  # V100 datasheet; Volta whitepaper
    "v100-32gb": Speed(7.8, 15.7, 0, 125, 0, 0, 900, 16, 6 * MIB),  # V100 datasheet; Volta whitepaper
    "rtx3090": Speed(0.56, 35.6, 35.6, 71, 71, 0, 936, 32, 6 * MIB),  # GA102 whitepaper
    "rtx4090": Speed(1.29, 82.6, 82.6, 165.2, 165.2, 330.3, 1008, 32, 72 * MIB),  # Ada whitepaper
    "rtx5090": Speed(1.64, 104.8, 104.8, 209.5, 209.5, 419, 1792, 64, 96 * MIB),  # RTX Blackwell whitepaper
    "rtx6000ada": Speed(1.42, 91.1, 182.1, 364.2, 364.2, 728.5, 960, 32, 96 * MIB),  # Ada professional whitepaper
    "l4": Speed(0.47, 30.3, 60, 121, 121, 242.5, 300, 32, 48 * MIB),  # L4 datasheet
    "a10g": Speed(0.49, 31.5, 35, 70, 70, 0, 600, 32, 6 * MIB),  # A10G datasheet
    "a30": Speed(10.3, 10.3, 82, 165, 165, 0, 933, 32, 24 * MIB),  # A30 datasheet
    "l40s": Speed(1.41, 91.6, 183, 362, 362, 733, 864, 32, 96 * MIB),  # L40S datasheet
    "a100-40gb": Speed(19.5, 19.5, 156, 312, 312, 0, 1555, 32, 40 * MIB),  # A100 datasheet
    "a100": Speed(19.5, 19.5, 156, 312, 312, 0, 2039, 32, 40 * MIB),  # A100 datasheet
    "h100": Speed(67, 67, 494.7, 989.4, 989.4, 1978.9, 3350, 64, 50 * MIB),  # H100 datasheet; Hopper whitepaper
    "h200": Speed(67, 67, 494.7, 989.4, 989.4, 1978.9, 4800, 64, 50 * MIB),  # H200 datasheet; Hopper whitepaper
    "b200": Speed(37, 75, 1100, 2250, 2250, 4500, 7700, 64, 126 * MIB),  # HGX B200 datasheet
}

GPUS: dict[str, Gpu] = {
    gpu.name: gpu._replace(speed=_SPEEDS[gpu.name])
    for gpu in (
        Gpu("t4", "Tesla T4", 14_930 * MIB, (7, 5), 40),
        Gpu("v100-16gb", "Tesla V100-SXM2-16GB", 16_130 * MIB, (7, 0), 80),
        Gpu("v100-32gb", "Tesla V100-SXM2-32GB", 32_501 * MIB, (7, 0), 80),
        Gpu("rtx3090", "NVIDIA GeForce RTX 3090", 24_114 * MIB, (8, 6), 82),
        Gpu("rtx4090", "NVIDIA GeForce RTX 4090", 24_176 * MIB, (8, 9), 128),
        Gpu("rtx5090", "NVIDIA GeForce RTX 5090", 32_117 * MIB, (12, 0), 170),
        Gpu("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", 48_508 * MIB, (8, 9), 142),
        Gpu("l4", "NVIDIA L4", 22_558 * MIB, (8, 9), 58),
        Gpu("a10g", "NVIDIA A10G", 22_517 * MIB, (8, 6), 80),
        Gpu("a30", "NVIDIA A30", 24_094 * MIB, (8, 0), 56),
        Gpu("l40s", "NVIDIA L40S", 45_465 * MIB, (8, 9), 142),
        Gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", 40_326 * MIB, (8, 0), 108),
        Gpu("a100", "NVIDIA A100-SXM4-80GB", 81_039 * MIB, (8, 0), 108),
        Gpu("h100", "NVIDIA H100 80GB HBM3", 81_008 * MIB, (9, 0), 132),
        Gpu("h200", "NVIDIA H200", 143_073 * MIB, (9, 0), 132),
        Gpu("b200", "NVIDIA B200", 182_630 * MIB, (10, 0), 148),
    )
}


gpus: Mapping[str, Gpu] = MappingProxyType(GPUS)
"""The GPUs that are known, by their short names."""


def rules_of(gpu: Gpu) -> Hashable:
    """GPUs of equal rules run the same kernels, with the same memory beside their results: the sizes of workspaces and the
    choice of attention kernels differ by generation, and in generation 8 between data center (8.0) and other GPUs."""
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
    size = re.fullmatch(r"(\d+(?:\.\d+)?)(|b|[kmgt]i?b)", key)
    if size:
        return _gpu_of_memory(name, size[1], size[2])
    raise ValueError(
        f"{name!r} is not a GPU that is known{_similar(key)}: use one of {', '.join(GPUS)}, or its memory as 24GiB"
    )


def parse_gpus(text: str) -> list[Gpu]:
    """The value of an option: GPUs with commas between them, or ``all``. ArgumentTypeError names one that is not known."""
    if text.strip().lower() == "all":
        return list(GPUS.values())
    try:
        return [find_gpu(name.strip()) for name in text.split(",") if name.strip()]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _gpu_of_memory(name: str, number: str, unit: str) -> Gpu:
    bytes = {"": 1, "b": 1}.get(unit) or (1024 if "i" in unit else 1000) ** (1 + "kmgt".index(unit[0]))
    memory = int(float(number) * bytes)
    if memory < GIB:
        raise ValueError(f"a GPU of {name} is smaller than 1 GiB: give its memory as 24GiB")
    return Gpu(
        name, f"GPU of {name if unit else f'{memory / GIB:.1f} GiB'}", memory, (9, 0), 132
    )  # it has the rules of an H100, and its speed is not known


def _similar(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key, GPUS, 1)
    return f" (did you mean {close[0]}?)" if close else ""
