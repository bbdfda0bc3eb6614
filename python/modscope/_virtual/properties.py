"""What torch.cuda.get_device_properties() says of a GPU, from data sheets and NVIDIA's table of compute capabilities."""

from __future__ import annotations

import types
from typing import NamedTuple

from modscope._virtual.gpus import Gpu

__all__ = ["DeviceProperties"]


class _Architecture(NamedTuple):
    threads: int
    """The most threads of a multiprocessor."""
    shared: int
    """KiB of shared memory of a multiprocessor."""
    optin: int
    """KiB of shared memory that a block can ask for."""


_ARCHITECTURES = {
    (7, 0): _Architecture(2048, 96, 96),
    (7, 5): _Architecture(1024, 64, 64),
    (8, 0): _Architecture(2048, 164, 163),
    (8, 6): _Architecture(1536, 100, 99),
    (8, 9): _Architecture(1536, 100, 99),
    (9, 0): _Architecture(2048, 228, 227),
    (10, 0): _Architecture(2048, 228, 227),
    (12, 0): _Architecture(1536, 100, 99),
}


class _Board(NamedTuple):
    cache: int
    """MiB of level 2 cache."""
    bus: int
    """Bits of the memory bus."""
    memory_clock: int
    """MHz."""
    clock: int
    """MHz."""


_BOARDS = {
    "t4": _Board(4, 256, 5001, 1590),
    "v100-16gb": _Board(6, 4096, 877, 1530),
    "v100-32gb": _Board(6, 4096, 877, 1530),
    "rtx3090": _Board(6, 384, 9751, 1695),
    "rtx4090": _Board(72, 384, 10501, 2520),
    "rtx5090": _Board(96, 512, 14001, 2407),
    "rtx6000ada": _Board(96, 384, 10001, 2505),
    "l4": _Board(48, 192, 6251, 2040),
    "a10g": _Board(6, 384, 6251, 1710),
    "a30": _Board(24, 3072, 1215, 1440),
    "l40s": _Board(96, 384, 9001, 2520),
    "a100-40gb": _Board(40, 5120, 1215, 1410),
    "a100": _Board(40, 5120, 1593, 1410),
    "h100": _Board(50, 5120, 2619, 1980),
    "h200": _Board(60, 6144, 3201, 1980),
    "b200": _Board(126, 8192, 3996, 1965),
}
_OTHER = "h100"
_UUID = "00000000-0000-0000-0000-000000000000"


class DeviceProperties(types.SimpleNamespace):
    """As torch.cuda._CudaDeviceProperties."""

    def __init__(self, gpu: Gpu) -> None:
        architecture = _ARCHITECTURES.get(gpu.capability, _ARCHITECTURES[9, 0])
        board = _BOARDS.get(gpu.name, _BOARDS[_OTHER])
        super().__init__(
            name=gpu.title,
            major=gpu.capability[0],
            minor=gpu.capability[1],
            total_memory=gpu.memory,
            multi_processor_count=gpu.processors,
            is_integrated=0,
            is_multi_gpu_board=0,
            warp_size=32,
            max_threads_per_block=1024,
            max_threads_per_multi_processor=architecture.threads,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=48 << 10,
            shared_memory_per_block_optin=architecture.optin << 10,
            shared_memory_per_multiprocessor=architecture.shared << 10,
            L2_cache_size=board.cache << 20,
            memory_bus_width=board.bus,
            memory_clock_rate=board.memory_clock * 1000,
            clock_rate=board.clock * 1000,
            gcnArchName=gpu.title,
            uuid=_UUID,
            pci_bus_id=0,
            pci_device_id=0,
            pci_domain_id=0,
        )

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )
