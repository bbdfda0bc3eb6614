"""Install the virtual GPU for a prediction, verify that it works here, and say what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modscope._virtual.gpus import Gpu

if TYPE_CHECKING:
    from modscope._virtual.device import VirtualDevice


def install(gpu: Gpu, version: str | None, unlimited: bool = False, table: str = "") -> VirtualDevice:
    """RuntimeError or ValueError says in a sentence why it cannot be installed; torch is then as it was."""
    from modscope import _interception
    from modscope._virtual import operators
    from modscope._virtual.device import VirtualDevice

    load_table: Any = getattr(operators, "load_table", None)
    if table and load_table is None:
        raise RuntimeError("this version of modscope reads no table of measurements: leave --table out")
    device = VirtualDevice(gpu, version, unlimited)
    device.install()
    try:
        if why := _interception.why_no_blocks():
            raise RuntimeError(f"it needs the interception of allocators, which cannot be used ({why})")
        if table:
            load_table(table)
        _verify_backward()
    except BaseException:
        device.remove()
        raise
    return device


def _verify_backward() -> None:
    """Autograd counts the devices when the process's first backward runs, and has no thread for one that came later."""
    import torch

    from modscope import _native

    try:
        torch.ones(1, device="cuda", requires_grad=True).sum().backward()
    except RuntimeError as error:
        raise RuntimeError(
            "a backward ran in this process before the virtual GPU was installed, so autograd does not know it: install it "
            f"before the first backward ({str(error).splitlines()[0][:120]})"
        ) from None
    _native.virtual_empty_cache()
    _native.virtual_reset(True)
    _native.virtual_reset(False)


def bytes_without_rule() -> int | None:
    """How many bytes went through operators without a rule for what they take beside their results; None: not counted."""
    from modscope._virtual import operators

    counted: Any = getattr(operators, "bytes_without_rule", None)
    value = counted() if callable(counted) else counted
    return None if value is None else int(value)


def info(gpu: Gpu, version: str, device: VirtualDevice | None) -> dict[str, str]:
    """What a capture says of the virtual GPU on which it was made."""
    from modscope._virtual.device import allocator_settings

    return {
        "source": "predicted",
        "gpu": gpu.name,
        "gpu_title": gpu.title,
        "gpu_memory": str(gpu.memory),
        "gpu_context": str(gpu.context),
        "gpu_capability": f"{gpu.capability[0]}.{gpu.capability[1]}",
        "rules": version,
        "allocator": allocator_settings() or "",
        "clock": "virtual" if getattr(device, "has_clock", False) else "real",
    }
