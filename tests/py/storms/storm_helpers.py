"""How long a storm runs and with which random numbers, and the state of the process that it must leave unchanged.

`make storm MINUTES=60` sets both variables; without them every storm has the same programs each time, and is short."""

import os
import random
import time
from collections.abc import Iterator

from helpers import torch_globals
from modscope import _native
from modscope._trackers import mem_tracker
from torch.utils import _python_dispatch

import torch

SECONDS = float(os.environ.get("MODSCOPE_STORM_SECONDS", "0"))  # of each test; 0: its own short default
SEED = int(os.environ.get("MODSCOPE_STORM_SEED", "1"))


def rounds(at_least: int, seconds: float, most_seconds: float = 60) -> Iterator[tuple[int, random.Random]]:
    """The number of each round and its random numbers: as many rounds as fit into the time, but at least so many,
    unless they take more than `most_seconds`. A round depends on SEED and on its number only."""
    begun, number = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < (SECONDS or seconds) or (number < at_least and passed < most_seconds):
        yield number, random.Random(f"{SEED} {number}")
        number += 1
    print(f"{number} rounds in {time.monotonic() - begun:.1f} s, MODSCOPE_STORM_SEED={SEED}")


def open_files() -> list[str]:
    """What the process has open, without the folder that is being listed."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            pass
    return sorted(found)


def state_of_process() -> dict[str, object]:
    """What must be the same before a tracker is entered and after it is left."""
    return {
        **torch_globals(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "in a dispatch mode": getattr(_python_dispatch, "_is_in_torch_dispatch_mode", None),
        "trackers": mem_tracker.active_trackers(),
        "blocks": _native.blocks_intercepted(),
        "nodes": _native.nodes_intercepted(),
        "files": open_files(),
    }
