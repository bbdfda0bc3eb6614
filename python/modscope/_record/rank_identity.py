"""Which rank of a job this process is: from the environment that launchers set, or from torch.distributed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_FROM_LAUNCHER = {
    "local_rank": "LOCAL_RANK",
    "local_world": "LOCAL_WORLD_SIZE",
    "node": "GROUP_RANK",
    "attempt": "TORCHELASTIC_RESTART_COUNT",
}
"""What a capture calls a number, and the variable that has it."""


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else None


def rank_in_environment(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """The rank and the world size; None if they are not set, or if the process is the only one."""
    rank, world = _number(environment.get("RANK")), _number(environment.get("WORLD_SIZE"))
    return (rank, world) if rank is not None and world is not None and world > 1 else None


def attempt_in_environment(environment: Mapping[str, str] = os.environ) -> int:
    """How often torchrun has started the job again."""
    return _number(environment.get(_FROM_LAUNCHER["attempt"])) or 0


def describe_in_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a capture says of its rank when it begins."""
    info = {"rank": environment.get("RANK", "0"), "world": environment.get("WORLD_SIZE", "1")}
    if rank_in_environment(environment) is None:
        return info
    for key, variable in _FROM_LAUNCHER.items():
        number = _number(environment.get(variable))
        if number is not None:
            info[key] = str(number)
    job = environment.get("TORCHELASTIC_RUN_ID", "")
    return {**info, "host": os.uname().nodename, **({"job": job} if job else {})}


def describe_in_torch() -> dict[str, str]:
    """The rank and the world size of torch.distributed, if the program has a process group now. Imports nothing."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return {}
        return {"rank": str(distributed.get_rank()), "world": str(distributed.get_world_size())}
    except Exception:  # a group that is being destroyed, or a program that has replaced the module
        return {}
