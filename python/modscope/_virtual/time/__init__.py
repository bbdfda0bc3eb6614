"""How long operators run, and the tables of measurements that are part of the package. Importing this needs no
torch."""

from __future__ import annotations

import os

__all__ = ["SHIPPED_TABLES", "table_path"]

SHIPPED_TABLES = ("h200",)
"""What ``modscope calibrate`` measured on these GPUs (torch 2.11, CUDA 13.0)."""


def table_path(name: str) -> str:
    """The path of a table: of a shipped one by the GPU's name, or of the file ``name``."""
    if name in SHIPPED_TABLES and not os.path.exists(name):
        return os.path.join(os.path.dirname(os.path.abspath(__file__)), f"table_{name}.json.gz")
    return os.path.abspath(name)
