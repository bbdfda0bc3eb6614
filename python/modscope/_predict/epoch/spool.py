"""Batches in files: a batch of each shape, from the process that reads ahead to the one that predicts steps with them.

The virtual GPU computes nothing, so large tensors are stored without their values: they are zeros when they are read.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

_MOST_ELEMENTS = 262_144
"""The virtual GPU knows the integers of tensors of at most so many elements (docs/how-it-works.md)."""
_FEW_ELEMENTS = 64
MOST_BYTES = 1 << 30
"""Of all files together."""


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    import torch

    return torch.zeros(shape, dtype=dtype)


class _Pickler(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        import torch

        if type(item) is not torch.Tensor or item.layout is not torch.strided:
            return NotImplemented
        elements = item.numel()
        is_known = not item.is_floating_point() and not item.is_complex()
        if elements <= _FEW_ELEMENTS or (is_known and elements <= _MOST_ELEMENTS):
            return NotImplemented
        return _zeros, (tuple(item.shape), item.dtype)


class Spool:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._bytes = 0
        self.why_not = ""
        """A sentence, if batches cannot be stored."""

    def _path(self, shape: int) -> str:
        return os.path.join(self.folder, f"{shape}.batch")

    def put(self, shape: int, batch: Any) -> None:
        """Store the batch unless there is no room for it."""
        if self.why_not or self._bytes > MOST_BYTES:
            return
        try:
            with open(self._path(shape), "wb") as file:
                _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(batch)
                self._bytes += file.tell()
        except Exception as error:  # what a dataset returns may raise anything
            os.unlink(self._path(shape))
            self.why_not = f"a batch could not be stored ({type(error).__name__}: {error})"

    def has(self, shape: int) -> bool:
        return os.path.exists(self._path(shape))

    def get(self, shape: int) -> Any:
        with open(self._path(shape), "rb") as file:
            return pickle.load(file)
