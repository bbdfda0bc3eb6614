"""Whether there is a torch that modscope can track."""

from __future__ import annotations


def check_torch() -> None:
    """ImportError, with what to install, if torch cannot be imported or is too old."""
    import re

    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "modscope tracks PyTorch programs, and torch cannot be imported here. Install it with: pip install torch"
        ) from error
    version = str(getattr(torch, "__version__", "of no version"))
    if [int(part) for part in re.findall(r"\d+", version)[:2]] < [2, 5]:
        raise ImportError(
            f"modscope needs torch 2.5 or newer, and this is torch {version}. "
            "Install a newer one with: pip install --upgrade torch"
        )
