"""GPUs that can be virtual: what torch says of them. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["GPUS", "Gpu", "find_gpu", "gpus", "label_of", "rules_of"]

MIB = 1 << 20
GIB = 1 << 30


def label_of(title: str) -> str:
    """A GPU's title without its maker's name."""
    return re.sub(r"^(NVIDIA |GeForce |Tesla )+", "", title)


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

    @property
    def capacity(self) -> int:
        """What is left for torch's allocator."""
        return self.memory - self.context

    @property
    def label(self) -> str:
        """Its title without the maker's name: ``RTX 4090``."""
        return label_of(self.title)


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
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
    for candidate in (key, key.replace("-", ""), key.removeprefix("nvidia"), key.removesuffix("-80gb").removesuffix("80gb"), f"rtx{key}"):
        if candidate in GPUS:
            return GPUS[candidate]
    size = re.fullmatch(r"(\d+(?:\.\d+)?)(|b|[kmgt]i?b)", key)
    if size:
        return _gpu_of_memory(name, size[1], size[2])
    raise ValueError(f"{name!r} is not a GPU that is known{_similar(key)}: use one of {', '.join(GPUS)}, or its memory as 24GiB")


def _gpu_of_memory(name: str, number: str, unit: str) -> Gpu:
    bytes = {"": 1, "b": 1}.get(unit) or (1024 if "i" in unit else 1000) ** (1 + "kmgt".index(unit[0]))
    memory = int(float(number) * bytes)
    if memory < GIB:
        raise ValueError(f"a GPU of {name} is smaller than 1 GiB: give its memory as 24GiB")
    return Gpu(name, f"GPU of {name if unit else f'{memory / GIB:.1f} GiB'}", memory, (9, 0), 132)


def _similar(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key, GPUS, 1)
    return f" (did you mean {close[0]}?)" if close else ""
