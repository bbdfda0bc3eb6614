"""The links between GPUs: how long a collective takes on them, and what its communicator takes of a GPU. Needs no
torch.

A collective is taken to be a ring, as NCCL's largest ones are: each of the n ranks passes (n - 1) / n of the data to
the next one, an all-reduce twice. It runs at the speed of the slowest link on the way: that inside a node or, if the
group has ranks of several nodes, that between nodes, where the adapters of all its ranks on a node work together.
Measured rates differ with NCCL's choices and with what else is on the network."""

from __future__ import annotations

from collections.abc import Sequence

from modscope._virtual.gpus import MIB, Gpu

__all__ = ["RANKS_PER_NODE", "communicator_bytes", "seconds"]

RANKS_PER_NODE = 8
"""By default."""
OF_LINK = 0.75
"""The fraction of a link's rate that large collectives reach."""
HOP = 4e-6
"""Seconds for each rank of a ring, and for a message, beside the transfer; beyond a node twice."""
MOST_HOPS = 32
"""NCCL uses trees and other shortcuts where a ring has more ranks."""

_PASSES = {"all_reduce": 2.0, "send": 1.0, "recv": 1.0, "barrier": 2.0}
_MESSAGES = ("send", "recv")

_OF_TWO, _OF_MORE = 544 * MIB, 688 * MIB  # NVIDIA/nccl issue 964: measured on A100s with NVLink


def communicator_bytes(ranks: int) -> int:
    """What NCCL takes of a GPU for one communicator, outside torch's allocator, about: its channels' buffers. It
    differs with NCCL's version and settings, such as NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS, and with the machine."""
    if ranks < 2:
        return 0
    return _OF_TWO if ranks == 2 else _OF_MORE


def _rate(gpu: Gpu, adapters: int) -> float:
    """Bytes a second. ``adapters``: how many work together between nodes; 0: the group is inside one."""
    inside = 1e9 * (gpu.nvlink or (gpu.speed.link if gpu.speed else 64.0))
    return min(inside, adapters * 1e9 * gpu.network) if adapters else inside


def seconds(gpu: Gpu, kind: str, bytes: int, ranks: Sequence[int], per_node: int) -> float:
    """How long a collective of these ranks takes. ``bytes``: of the whole tensor, which is the larger one of what goes
    in and what comes out on a rank. ``kind``: "all_reduce", "send", "recv", "barrier", or another, which passes the
    data once."""
    count = len(ranks)
    if count < 2:
        return 0.0
    across = ranks[0] // per_node != ranks[-1] // per_node
    adapters = (
        0 if not across else 1 if kind in _MESSAGES else sum(rank // per_node == ranks[0] // per_node for rank in ranks)
    )
    share = 1.0 if kind in _MESSAGES else (count - 1) / count
    hops = 1 if kind in _MESSAGES else min(count - 1, MOST_HOPS)
    latency = HOP * hops * (2 if across else 1)
    return latency + _PASSES.get(kind, 1.0) * share * bytes / (OF_LINK * _rate(gpu, adapters))
