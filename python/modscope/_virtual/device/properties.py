"""What torch.cuda.get_device_properties() says of a GPU, from the table of GPUs."""

from __future__ import annotations

import types

from modscope._virtual.gpus import Board, Gpu, row_of

__all__ = ["DeviceProperties", "gpu_row"]


_UUID = "00000000-0000-0000-0000-{:012x}"


class DeviceProperties(types.SimpleNamespace):
    """As torch.cuda._CudaDeviceProperties."""

    def __init__(self, gpu: Gpu, index: int = 0) -> None:
        architecture, board = gpu.architecture, gpu.board
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
            shared_memory_per_block_optin=architecture.shared_of_block << 10,
            shared_memory_per_multiprocessor=architecture.shared << 10,
            L2_cache_size=board.cache << 20,
            memory_bus_width=board.bus,
            memory_clock_rate=board.memory_clock * 1000,
            clock_rate=board.clock * 1000,
            gcnArchName=gpu.title,
            uuid=_UUID.format(index),
            pci_bus_id=index,
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


def gpu_row() -> dict[str, object] | None:
    """The first GPU that torch sees, as a file for ``--gpu`` describes one; None: there is none. torch does not say how
    fast it is, beside its memory."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip:
        return None
    said = torch.cuda.get_device_properties(0)
    board = Board(
        getattr(said, "L2_cache_size", 0) >> 20,
        max(getattr(said, "memory_bus_width", 0), 16),
        max(getattr(said, "memory_clock_rate", 0) // 1000, 100),
        max(getattr(said, "clock_rate", 0) // 1000, 100),
    )
    capability = (said.major, said.minor)
    return row_of(Gpu("", said.name, said.total_memory, capability, said.multi_processor_count, board=board))
