"""The environment of a virtual rank. Needs no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["MOST_PER_NODE", "MOST_RANKS", "environment", "gpus_of_node", "in_environment", "too_many"]

MOST_RANKS = 1 << 17
"""More than any cluster has GPUs. torch makes a list of all ranks for each group."""
MOST_PER_NODE = 128
"""torch has 8 bits for the index of a GPU."""


def too_many(ranks: int) -> str:
    """The sentence that refuses so many ranks."""
    return f"{ranks} ranks are too many: give {MOST_RANKS} or fewer"


def gpus_of_node(rank: int, size: int, per_node: int) -> tuple[int, int]:
    """How many GPUs a rank sees, and the index of its own: as many as its node has ranks, one for each."""
    return min(size, per_node), rank % per_node


def environment(rank: int, size: int, per_node: int) -> dict[str, str]:
    """What torchrun would set for a rank."""
    nodes = -(-size // per_node)
    gpus, own = gpus_of_node(rank, size, per_node)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": own,
        "LOCAL_WORLD_SIZE": gpus,
        "GROUP_RANK": rank // per_node,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    return {name: str(value) for name, value in variables.items()}


@contextlib.contextmanager
def in_environment(rank: int, size: int, per_node: int) -> Iterator[None]:
    """While this is entered, the process has that environment."""
    before = dict(os.environ)
    os.environ.update(environment(rank, size, per_node))
    try:
        yield
    finally:
        for name in environment(rank, size, per_node):
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
