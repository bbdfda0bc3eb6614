"""The GPUs that can be virtual: the only table of what torch says of them, how fast they are, and what a program may
reserve of them.

Speeds are those of the makers' datasheets and architecture whitepapers (named above each GPU): dense, without
sparsity, at the boost clock. Where a GeForce GPU is twice as fast with sums in float16, the rate is that of sums in
float32, which torch uses. Needs no torch."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from modscope._read.text import gpu_label, parse_size

__all__ = ["GPUS", "Board", "Gpu", "Speed", "find_gpu", "gpus", "is_described", "parse_gpus", "row_of", "rules_of"]

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
    (6, 0): Architecture(2048, 64, 48),
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
    """What the CUDA context of a process takes of it, with the kernels and libraries that it loads, about."""
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
        # So was the context: the sum of its parts in outside.py.
        Gpu("h200", "NVIDIA H200", 143_073 * MIB, (9, 0), 132, context=703 * MIB,
            speed=Speed(67, 67, 494.7, 989.4, 989.4, 1978.9, 4800, 64), board=Board(60, 6016, 3201, 1980),
            nvlink=450, network=50),
        # HGX B200 datasheet: 7.7 TB/s and 180 GB. The chip has 192 GB and 8,192 bits: it uses 15/16 of both.
        Gpu("b200", "NVIDIA B200", 182_630 * MIB, (10, 0), 148,
            speed=Speed(37, 75, 1100, 2250, 2250, 4500, 7700, 64), board=Board(126, 7680, 3996, 1965),
            nvlink=900, network=50),
        # The rows below were not verified on a GPU. The names above them say where their speeds can be looked up.
        # H20: vendors' datasheets; the bus follows from 4.0 TB/s
        Gpu("h20", "NVIDIA H20", 97_200 * MIB, (9, 0), 78,
            speed=Speed(1, 44, 74, 148, 148, 296, 4000, 64), board=Board(60, 6144, 2604, 1980),
            nvlink=450, network=50),
        # H100 datasheet; Hopper whitepaper
        Gpu("h100-pcie", "NVIDIA H100 PCIe", 81_008 * MIB, (9, 0), 114,
            speed=Speed(51, 51, 378, 756, 756, 1513, 2039, 64), board=Board(50, 5120, 1593, 1755),
            nvlink=300, network=25),
        # H100 NVL datasheet
        Gpu("h100-nvl", "NVIDIA H100 NVL", 95_330 * MIB, (9, 0), 132,
            speed=Speed(60, 60, 417.5, 835.5, 835.5, 1671, 3938, 64), board=Board(50, 6016, 2619, 1785),
            nvlink=300, network=25),
        # GH200 datasheet (96 GB); the link to the host is NVLink-C2C
        Gpu("gh200", "NVIDIA GH200 480GB", 96_760 * MIB, (9, 0), 132,
            speed=Speed(67, 67, 494.7, 989.4, 989.4, 1978.9, 4022, 450), board=Board(50, 6144, 2619, 1980),
            nvlink=450, network=50),
        # HGX B300 datasheet
        Gpu("b300", "NVIDIA B300 SXM6 AC", 274_400 * MIB, (10, 3), 148,
            speed=Speed(1.2, 75, 1100, 2250, 2250, 4500, 8000, 64), board=Board(126, 8192, 3906, 1965),
            nvlink=900, network=100),
        # Tesla P100 datasheet; Pascal whitepaper
        Gpu("p100", "Tesla P100-PCIE-16GB", 16_270 * MIB, (6, 0), 56,
            speed=Speed(4.7, 9.3, 0, 18.7, 0, 0, 732, 16), board=Board(4, 4096, 715, 1303)),
        # Turing whitepaper
        Gpu("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", 10_810 * MIB, (7, 5), 68,
            speed=Speed(0.42, 13.4, 0, 53.8, 0, 0, 616, 16), board=Board(5, 352, 7001, 1545)),
        # GA102 whitepaper
        Gpu("rtx3080", "NVIDIA GeForce RTX 3080", 10_000 * MIB, (8, 6), 68,
            speed=Speed(0.47, 29.8, 29.8, 59.5, 59.5, 0, 760, 32), board=Board(5, 320, 9501, 1710)),
        # RTX 3060 product page: 12 GB
        Gpu("rtx3060", "NVIDIA GeForce RTX 3060", 12_030 * MIB, (8, 6), 28,
            speed=Speed(0.2, 12.7, 12.7, 25.5, 25.5, 0, 360, 32), board=Board(3, 192, 7501, 1777)),
        # Ada whitepaper; it has eight lanes to the host
        Gpu("rtx4060ti-16gb", "NVIDIA GeForce RTX 4060 Ti", 15_940 * MIB, (8, 9), 34,
            speed=Speed(0.34, 22.1, 22.1, 44.1, 44.1, 88.2, 288, 16), board=Board(32, 128, 9001, 2535)),
        # Ada whitepaper
        Gpu("rtx4080", "NVIDIA GeForce RTX 4080", 15_940 * MIB, (8, 9), 76,
            speed=Speed(0.76, 48.7, 48.7, 97.5, 97.5, 194.9, 717, 32), board=Board(64, 256, 11201, 2505)),
        # RTX Blackwell whitepaper
        Gpu("rtx5080", "NVIDIA GeForce RTX 5080", 15_830 * MIB, (12, 0), 84,
            speed=Speed(0.88, 56.3, 56.3, 112.6, 112.6, 225.1, 960, 64), board=Board(64, 256, 15001, 2617)),
        # RTX Blackwell whitepaper
        Gpu("rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 15_830 * MIB, (12, 0), 70,
            speed=Speed(0.69, 43.9, 43.9, 87.9, 87.9, 175.8, 896, 64), board=Board(48, 256, 14001, 2452)),
        # RTX PRO Blackwell whitepaper
        Gpu("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97_240 * MIB, (12, 0), 188,
            speed=Speed(1.97, 126, 251.9, 503.8, 503.8, 1007.6, 1792, 64), board=Board(128, 512, 14001, 2617)),
        # GA102 whitepaper
        Gpu("a6000", "NVIDIA RTX A6000", 48_560 * MIB, (8, 6), 84,
            speed=Speed(0.6, 38.7, 77.4, 154.8, 154.8, 0, 768, 32), board=Board(6, 384, 8001, 1800),
            nvlink=56.25),
        # A40 datasheet
        Gpu("a40", "NVIDIA A40", 45_400 * MIB, (8, 6), 84,
            speed=Speed(0.58, 37.4, 74.8, 149.7, 149.7, 0, 696, 32), board=Board(6, 384, 7251, 1740),
            nvlink=56.25),
        # A10 datasheet
        Gpu("a10", "NVIDIA A10", 22_517 * MIB, (8, 6), 72,
            speed=Speed(0.49, 31.2, 62.5, 125, 125, 0, 600, 32), board=Board(6, 384, 6251, 1695)),
        # L40 datasheet
        Gpu("l40", "NVIDIA L40", 45_465 * MIB, (8, 9), 142,
            speed=Speed(1.41, 90.5, 90.5, 181, 181, 362, 864, 32), board=Board(96, 384, 9001, 2490)),
        # DGX Spark datasheet: 1,000 sparse TFLOP/s in 4 bits. Its memory is the system's too, which leaves less of it.
        Gpu("gb10", "NVIDIA GB10", 122_500 * MIB, (12, 1), 48,
            speed=Speed(0.48, 29.7, 62.5, 125, 125, 250, 273, 300), board=Board(24, 256, 4266, 2418)),
    )
}
# fmt: on


gpus: Mapping[str, Gpu] = MappingProxyType(GPUS)
"""The GPUs that are known, by their short names."""


def is_described(gpu: Gpu) -> bool:
    """Whether more than its memory is known: it is in the table, or in a file."""
    return gpu.name in GPUS or gpu.name.lower().endswith(".json")


def rules_of(gpu: Gpu) -> Hashable:
    """GPUs of equal rules run the same kernels with the same workspaces. Both differ by generation, and in generation 8
    between data center (8.0) and other GPUs."""
    major, minor = gpu.capability
    return (major, major == 8 and minor > 0)


def find_gpu(name: str) -> Gpu:
    """A GPU by its short name, one of as much memory as ``name`` says (``24GiB``, ``16 GB``, a number of bytes), or
    the one that a JSON file describes (``mine.json``)."""
    if name.lower().endswith(".json"):
        return _gpu_of_file(name)
    key = re.sub(r"[\s_]", "", name.lower())
    for candidate in (
        key,
        re.sub(r"\s+", "-", name.strip().lower()),
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
        f"{name!r} is not a GPU that is known{_similar(key)}: use one of {', '.join(GPUS)}, or its memory as 24GiB, or "
        "a JSON file that describes it"
    )


# ---- a GPU that a file describes ----

_LIMITS: dict[str, tuple[float, float]] = {
    "memory": (GIB, 4096 * GIB), "context": (0, 8 * GIB), "processors": (1, 1024), "nvlink": (0, 10_000),
    "network": (0.001, 10_000), "cache": (0, 4096), "bus": (16, 65_536), "memory_clock": (100, 100_000),
    "clock": (100, 10_000), "float64": (0, 1e6), "float32": (0.01, 1e6), "tf32": (0, 1e6), "float16": (0, 1e6),
    "bfloat16": (0, 1e6), "float8": (0, 1e6), "bandwidth": (1, 1e6), "link": (0.1, 10_000),
}  # fmt: skip
"""The least and the most that a field of a file may say."""
_WHOLE = ("memory", "context", "processors", *Board._fields)
_MOST_OF_A_FILE = 1 << 16


def _gpu_of_file(name: str) -> Gpu:
    """As ``modscope doctor --gpu-row`` prints one. Its name is the file's, by which it is found again."""
    try:
        with open(name, encoding="utf-8") as file:
            row = json.loads(file.read(_MOST_OF_A_FILE))
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{name} is not JSON") from None
    try:
        return _gpu_of_row(name, row)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _gpu_of_row(name: str, row: object) -> Gpu:
    fields = _fields_of(row, "the file", ("title", "memory", "capability", "processors"), Gpu._fields)
    title, capability = fields["title"], fields["capability"]
    if not isinstance(title, str) or not 0 < len(title) <= 100:
        raise ValueError("title must be the GPU's name, as torch gives it")
    numbers = [part for part in capability if type(part) is int and 0 <= part <= 99] if type(capability) is list else []
    if len(numbers) != 2 or numbers[0] < 5:
        raise ValueError("capability must be two numbers, such as [8, 9]")
    plain = {key: _number(key, fields[key]) for key in fields if key in _LIMITS}
    gpu = Gpu(name, title, int(plain["memory"]), (numbers[0], numbers[1]), int(plain["processors"]))
    for key, value in plain.items():
        gpu = gpu._replace(**{key: int(value) if key in _WHOLE else value})  # type: ignore[arg-type]
    if fields.get("speed") is not None:
        gpu = gpu._replace(speed=Speed(**_numbers_of(fields["speed"], "speed", Speed._fields)))
    if "board" in fields:
        found = _numbers_of(fields["board"], "board", Board._fields)
        gpu = gpu._replace(board=Board(**{key: int(value) for key, value in found.items()}))
    if gpu.context >= gpu.memory:
        raise ValueError("context must be less than memory")
    if gpu.speed and "board" in fields:
        expected = 2 * gpu.board.bus / 8 * gpu.board.memory_clock / 1000
        if not 0.8 < gpu.speed.bandwidth / expected < 1.25:
            raise ValueError(
                f"bandwidth is {gpu.speed.bandwidth:g}, and bus and memory_clock make {expected:.0f} "
                "(2 * bits / 8 * MHz / 1000)"
            )
    return gpu


def _fields_of(value: object, what: str, needed: Sequence[str], known: Sequence[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object with {', '.join(needed)}")
    for key in needed:
        if key not in value:
            raise ValueError(f"{what} has no {key}")
    for key in value:
        if key not in known:
            raise ValueError(f"{what} has {key!r}, which is none of {', '.join(known)}")
    return value


def _number(key: str, value: object) -> float:
    low, high = _LIMITS[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{key} must be a number from {low:.12g} to {high:.13g}, not {value!r}")
    return value


def _numbers_of(value: object, what: str, known: Sequence[str]) -> dict[str, float]:
    return {key: _number(key, number) for key, number in _fields_of(value, what, known, known).items()}


def row_of(gpu: Gpu) -> dict[str, object]:
    """What a file says of a GPU."""
    row: dict[str, object] = {key: value for key, value in gpu._asdict().items() if key != "name"}
    row["capability"] = list(gpu.capability)
    row["speed"] = gpu.speed._asdict() if gpu.speed else None
    row["board"] = gpu.board._asdict()
    return row


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
