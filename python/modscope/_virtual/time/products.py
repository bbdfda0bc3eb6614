"""How long matrix products take: those of linear layers, of convolutions and of attention.

A product is computed in tiles, one on each streaming multiprocessor at a time. The library that computes it chooses the
size of the tiles, and into how many parts the sum is split; here, the fastest choice of the model is taken.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from modscope._virtual.gpus import Gpu, Speed

__all__ = ["AttentionSizes", "ConvolutionSizes", "Product", "Products", "Rate"]

MOST_OF_PEAK = {"float32": 0.82, "tf32": 0.72, "float64": 0.75, "float16": 0.80, "bfloat16": 0.80, "float8": 0.70}
"""The fraction of a peak that large products reach: the clock sinks under load, and tiles wait for memory."""

TILES = (
    (256, 128, 1.0),
    (128, 128, 0.95),
    (128, 64, 0.80),
    (64, 128, 0.80),
    (64, 64, 0.60),
    (32, 128, 0.40),
    (128, 32, 0.40),
    (32, 32, 0.25),
)
"""Rows and columns of a tile, and how much of the rate of the largest one it reaches."""
SPLITS = (1, 2, 4, 8, 16, 32)
"""Into how many parts a sum can be split, each computed apart and then added."""
SHORTEST_SUM = 64
"""The fewest elements of a part of a sum."""
MOST_WAVES = 8
"""Tiles for each multiprocessor, beyond which a sum is not split."""
FEW = 16
"""Rows or columns, up to which a product reads its matrices as fast as memory gives them."""
SUM_BEFORE_FULL_RATE = 48
"""Elements of the sum that a tile needs until the pipeline is full."""
MISALIGNED = 0.3
"""The fraction of the rate of tensor cores that is reached where a row does not begin at a multiple of 16 bytes."""


Product = tuple[int, int, int, int]
"""How many products, rows, columns, and the length of the sums."""


class Rate(NamedTuple):
    """How fast one type of numbers is multiplied."""

    kind: str
    """A field of Speed."""
    peak: float
    """Operations a second."""

    @property
    def by_tensor_cores(self) -> bool:
        return self.kind not in ("float32", "float64")


def _rate(speed: Speed, dtype: torch.dtype, tf32: bool) -> Rate:
    if dtype in (torch.float64, torch.complex128):
        kind = "float64"
    elif dtype == torch.float16:
        kind = "float16"
    elif dtype == torch.bfloat16:
        kind = "bfloat16"
    elif dtype.itemsize == 1:
        kind = "float8"
    else:
        kind = "tf32" if tf32 else "float32"
    if not getattr(speed, kind):  # without a unit of its own, it is computed as float16 or float32
        kind = "float16" if kind == "float8" else "float32"
    return Rate(kind, getattr(speed, kind) * 1e12)


class Products:
    """Times of matrix products on one GPU."""

    def __init__(self, gpu: Gpu, speed: Speed) -> None:
        self._speed = speed
        self._processors = gpu.processors

    def rate(self, dtype: torch.dtype, tf32: bool) -> Rate:
        return _rate(self._speed, dtype, tf32)

    def seconds(
        self, rate: Rate, batch: int, m: int, n: int, k: int, aligned: bool = True, of_peak: float = 1.0
    ) -> float:
        """Seconds for ``batch`` products of m by k and k by n matrices, if memory were infinitely fast."""
        if not batch * m * n * k or min(m, n) <= FEW:
            return 0.0
        each = rate.peak / self._processors * MOST_OF_PEAK[rate.kind] * of_peak
        if rate.by_tensor_cores and not aligned:
            each *= MISALIGNED
        best = math.inf
        for rows, columns, fraction in TILES:
            tiles = batch * -(-m // rows) * -(-n // columns)
            for parts in SPLITS:
                depth = -(-k // parts)
                if parts > 1 and (depth < SHORTEST_SUM or tiles * parts > MOST_WAVES * self._processors):
                    break
                waves = -(-tiles * parts // self._processors)
                operations = 2 * rows * columns * (depth + SUM_BEFORE_FULL_RATE)
                added = 4 * batch * m * n * parts / (self._speed.bandwidth * 1e9) if parts > 1 else 0.0
                best = min(best, waves * operations / (each * fraction) + added)
        return best


TILE_OF_QUERIES, TILE_OF_KEYS = 128, 64


class AttentionSizes(NamedTuple):
    batch: int
    """The number of sequences times that of heads."""
    queries: int
    keys: int
    width: int
    value_width: int
    causal: bool

    @classmethod
    def of(cls, query: Any, key: Any, value: Any, causal: bool) -> AttentionSizes:
        heads = math.prod(query.shape[:-2])
        return cls(heads, query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1], causal)

    def operations(self, backward: bool, processors: int) -> float:
        """Forward two products, backward five, in tiles of queries and keys, where the device is filled by whole waves
        of them. Where only earlier keys are looked at, half of the work is left, but the longest tile of a wave is not
        shorter."""
        rows, columns = -(-self.queries // TILE_OF_QUERIES), -(-self.keys // TILE_OF_KEYS)
        waves = max(self.batch * rows / processors, 1.0)
        filled = math.ceil(waves) * processors / (self.batch * rows)
        work = 0.5 + 0.5 / waves if self.causal else 1.0
        pairs = self.batch * rows * TILE_OF_QUERIES * columns * TILE_OF_KEYS * filled * work
        both = self.width + self.value_width
        return 2 * pairs * (both + both + self.width if backward else both)


class ConvolutionSizes:
    """The sizes of a convolution as matrix products."""

    def __init__(self, x: Any, y: Any, weight: Any, groups: int) -> None:
        places_in, places_out = x[0] * math.prod(x[2:]), y[0] * math.prod(y[2:])
        out_channels, in_channels, taps = y[1] // groups, x[1] // groups, math.prod(weight[2:])
        self.depthwise = in_channels == 1 and groups > 1
        self.pointwise = taps == 1 and places_in == places_out
        self.in_channels, self.groups = in_channels, groups
        self.forward: Product = (groups, places_out, out_channels, in_channels * taps)
        taps_seen = max(taps * places_out // max(places_in, 1), 1)  # of a stride, each place sees some of the taps
        self.towards_input: Product = (groups, places_in, in_channels, out_channels * taps_seen)
        self.towards_weight: Product = (groups, out_channels, in_channels * taps, places_out)
