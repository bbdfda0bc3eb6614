"""The message of torch.OutOfMemoryError, as torch's CUDA allocator words it."""

from __future__ import annotations

__all__ = ["message"]

_MIB = 1 << 20
_SMALL, _LARGE, _ROUND = 2 * _MIB, 20 * _MIB, 2 * _MIB


def _format(size: int) -> str:
    """As torch formats sizes in this message."""
    if size <= 1024:
        return f"{size} bytes"
    for unit, name in ((1 << 10, "KiB"), (1 << 20, "MiB")):
        if size <= unit << 10:
            return f"{size / unit:.2f} {name}"
    return f"{size / (1 << 30):.2f} GiB"


def _segment(requested: int) -> int:
    """The segment that the allocator tries to take for a request."""
    if requested <= _MIB:
        return _SMALL
    return _LARGE if requested < 10 * _MIB else -(-requested // _ROUND) * _ROUND


def message(
    requested: int, allocated: int, reserved: int, context: int, free: int, total: int, allowed: int | None = None
) -> str:
    """``allocated``, ``reserved``: by torch; ``context``: what the process takes besides; ``free``, ``total``: of the GPU;
    ``allowed``: the most that torch may take, if less."""
    limit = "" if allowed is None else f"{_format(allowed)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {_format(_segment(requested))}. GPU 0 has a total capacity of {_format(total)} "
        f"of which {_format(free)} is free. Including non-PyTorch memory, this process has {_format(reserved + context)} memory "
        f"in use. {limit}Of the allocated memory {_format(allocated)} is allocated by PyTorch, and {_format(reserved - allocated)} is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
