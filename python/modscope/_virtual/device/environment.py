"""What torch reads from the environment. Nothing here imports torch."""

from __future__ import annotations

import os

__all__ = ["allocator_settings"]

# torch reads the first that is set
_CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def allocator_settings() -> str | None:
    """What the environment says, as PYTORCH_CUDA_ALLOC_CONF."""
    return next((os.environ[name] for name in _CONF_NAMES if os.environ.get(name)), None)
