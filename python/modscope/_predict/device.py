"""Install the virtual GPU for a prediction, verify that it works here, and say what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modscope._virtual.certainty import doubts_as_text, workspaces_as_text
from modscope._virtual.device.environment import allocator_settings
from modscope._virtual.gpus import Gpu

if TYPE_CHECKING:
    from modscope._predict.result import RanksFacts
    from modscope._virtual.device.device import VirtualDevice


def install(
    gpu: Gpu,
    version: str | None,
    unlimited: bool = False,
    table: str = "",
    also: Sequence[Gpu] = (),
    node: tuple[int, int] = (1, 0),
) -> VirtualDevice:
    """``node``: how many such GPUs there are, and the index of the one that the program should use. RuntimeError,
    ValueError or OSError says in a sentence why it cannot be installed; torch is then as it was."""
    from modscope._torch import interception as _interception
    from modscope._virtual.device.device import VirtualDevice
    from modscope._virtual.time import table as tables

    device = VirtualDevice(gpu, version, unlimited, tables.load(table) if table else None, also, *node)
    device.install()
    if why := _interception.why_no_blocks():
        device.remove()
        raise RuntimeError(f"it needs the interception of allocators, which cannot be used ({why})")
    return device


def info(gpu: Gpu, version: str) -> dict[str, str]:
    """What a capture says of the virtual GPU on which it was made."""
    return {
        "source": "predicted",
        "gpu": gpu.name,
        "gpu_title": gpu.title,
        "gpu_memory": str(gpu.memory),
        "gpu_context": str(gpu.context),
        "gpu_capability": f"{gpu.capability[0]}.{gpu.capability[1]}",
        "rules": version,
        "allocator": allocator_settings() or "",
        "clock": "virtual" if gpu.speed else "unknown",
    }


def end_info(ranks: RanksFacts | None, device: VirtualDevice | None) -> dict[str, str]:
    """What its end says: what NCCL would take of the GPU, which libraries take some, and which sizes are not sure."""
    from modscope import _native

    info = {"communicator_bytes": str(ranks["communicator_bytes"])} if ranks else {}
    if device and (libraries := device.libraries()):
        info["libraries"] = ",".join(libraries)
    if device:
        found = _native.virtual_workspaces(device.used())
        info["workspaces"] = workspaces_as_text(found, device.bytes_without_rule())
    doubts = doubts_as_text(_native.virtual_doubts(device.used() if device else 0))
    return {**info, "doubts": doubts} if doubts else info
