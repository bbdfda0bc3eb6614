"""What may be different about the ranks of a script that is predicted again. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple


class ShardingChange(NamedTuple):
    """What is changed about a script's ranks. 0 or "" leaves it as the script has it."""

    ranks: int = 0
    reshard: str = ""
    """yes or no: whether modules are resharded after their forward."""
    over: int = 0
    """How many ranks hold one copy of what is sharded."""
