"""Virtual ranks: what ``modscope predict --ranks`` is asked, and the environment of a rank. Needs no torch."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Iterator

__all__ = ["MOST_RANKS", "environment", "in_environment", "parse_count", "parse_rank", "parse_sizes", "set_environment"]

MOST_RANKS = 1 << 20


def parse_sizes(text: str) -> list[int]:
    """The value of --ranks: one number, or several with commas between them."""
    sizes = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+", size) and 1 <= int(size) <= MOST_RANKS for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks: give 64, or several such as 8,16,32,64")
    return list(dict.fromkeys(map(int, sizes)))


def parse_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or not 1 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks: give one number, 1 or more")
    return int(text)


def parse_rank(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank: the first one is 0")
    return int(text)


def environment(rank: int, size: int, per_node: int) -> dict[str, str]:
    """What torchrun would set for a rank. The process has one GPU of its own, so its local rank is 0: as where a launcher
    shows each process only its own GPU."""
    nodes = -(-size // per_node)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": min(size, per_node),
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


def set_environment(rank: int, size: int, per_node: int) -> None:
    os.environ.update(environment(rank, size, per_node))


@contextlib.contextmanager
def in_environment(rank: int, size: int, per_node: int) -> Iterator[None]:
    """While this is entered, the process has that environment."""
    before = dict(os.environ)
    set_environment(rank, size, per_node)
    try:
        yield
    finally:
        for name in environment(rank, size, per_node):
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
