"""Rules of the operators with which FSDP2 copies parameters out of an all-gather, and gradients into a reduce-scatter. Their
kernels read addresses and sizes from a small tensor on the GPU."""

from __future__ import annotations

import math
from typing import Any

from modscope._virtual.rules import Answer, Card, argument, rule

_BLOCK_THREADS = 128
_BLOCK_BYTES = 16 * _BLOCK_THREADS
_LONG = 8


def _table(entries: int) -> Answer:
    return [("temporary", entries * _LONG)]


@rule(
    "aten.split_with_sizes_copy.out",
    source="ATen/native/cuda/TensorShape.cu: split_with_sizes_copy_out_cuda_contiguous_no_cast",
)
def _split_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """Three entries for each part, one more where its blocks begin, and one for each block of threads."""
    source, sizes = args[0], args[1]
    dim, outputs = argument(args, kwargs, 2, "dim", 0), kwargs["out"]
    if not source.is_contiguous() or any(not out.is_contiguous() or out.dtype != source.dtype for out in outputs):
        return None
    dim %= source.dim()
    chunks = math.prod(source.shape[:dim])
    parts = [size * math.prod(source.shape[dim + 1 :]) * source.itemsize for size in sizes]
    most_blocks = card.processors * card.threads_per_processor // _BLOCK_THREADS * 2
    rounds = -(-sum(-(-part // _BLOCK_BYTES) for part in parts) * chunks // most_blocks)
    by_block = min(math.ceil(math.sqrt(rounds)), chunks)
    by_chunk = -(-rounds // max(by_block, 1))
    blocks = sum(-(-part // (_BLOCK_BYTES * max(by_chunk, 1))) for part in parts)
    return _table(4 * len(parts) + 1 + blocks)


@rule(
    "aten._chunk_cat.out",
    "aten._chunk_cat.default",
    source="ATen/native/cuda/TensorShape.cu: _chunk_cat_out_cuda_contiguous",
)
def _chunk_cat_rule(card: Card, args: Any, kwargs: Any, specs: Any) -> Answer:
    """Six entries for each tensor and two more, and one for each block of threads."""
    tensors, dim, chunks = args[0], args[1], args[2]
    out = kwargs.get("out")
    if any(not tensor.is_contiguous() for tensor in tensors):
        return None
    itemsize = tensors[0].itemsize if out is None else out.itemsize
    parts = [-(-tensor.shape[dim] // chunks) * math.prod(tensor.shape[dim + 1 :]) * itemsize for tensor in tensors]
    return _table(6 * len(parts) + 2 + sum(-(-part // _BLOCK_BYTES) for part in parts))
