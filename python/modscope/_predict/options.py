"""What ``modscope predict`` is asked, for the script's process. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from modscope._record.options import ScriptOptions, options_of
from modscope._virtual.ranks import options as _ranks
from modscope._virtual.ranks.network import RANKS_PER_NODE

if TYPE_CHECKING:
    import argparse


class PredictOptions(NamedTuple):
    """How a script is predicted. Each field has the name of its option (_record/options.py), but for the last ones."""

    torch: str = ""
    """The version of torch whose rules are followed; "": the installed one."""
    seconds: float = 0.0
    """The script is ended after so long; 0: never."""
    table: str = ""
    """A file of measurements; "": none."""
    selected: float = 0.5
    """Of a mask with unknown values, this fraction of the elements is selected."""
    ranks: int = 0
    """The size of the world of process groups; 0: they have one rank, whatever the script asks for."""
    rank: int = 0
    """Which of them the script is."""
    ranks_per_node: int = RANKS_PER_NODE
    reshard: str = ""
    """yes or no: what fully_shard gets for reshard_after_forward; "": what the script passes."""
    shard_over: int = 0
    """How many ranks hold one copy of what fully_shard shards; 0: as the script's mesh says."""
    no_compile: bool = False
    """torch.compile leaves the program uncompiled."""
    fail_unless_fits: bool = False
    """The exit status is guard.STATUS if the job does not fit."""
    fail_above: int = 0
    """Likewise if it reserves more bytes; 0: any number will do."""

    epoch: bool = False
    """The shapes of all batches of an epoch are read ahead, and steps of some of them are predicted."""
    epoch_batches: int = 0
    """At most so many batches are read; 0: all of them."""

    # These are no options of the command line.
    activation_budget: float | None = None
    """activation_memory_budget of torch._functorch.config, for everything that is compiled; None: the script's own."""
    gpus: list[str] = ["h100"]
    """The script runs on the first of them; the times on all of them are wanted."""
    part: str = ""
    """A folder: the script runs with unlimited memory, nothing is printed, and LOG and FACTS are written there, to be
    replayed on other GPUs."""
    messages: str = ""
    """A folder in which ranks that are predicted at the same time tell each other things; "": this one is predicted
    alone."""
    read_before: str = ""
    """The ``part`` of an earlier prediction of the same script, in which the epoch was read; "": it is read now."""
    real: bool = False
    """Run on the real GPU instead (_predict/check.py)."""


class ShardingChange(NamedTuple):
    """What is changed about a script's ranks. 0 or "" leaves it as the script has it."""

    ranks: int = 0
    reshard: str = ""
    """yes or no: whether modules are resharded after their forward."""
    over: int = 0
    """How many ranks hold one copy of what is sharded."""


def records_of(arguments: argparse.Namespace) -> tuple[ScriptOptions, PredictOptions]:
    """What was asked on the command line; of several numbers of ranks, the first one."""
    ranks = arguments.ranks[0] if arguments.ranks else 0
    return options_of(ScriptOptions, arguments), options_of(PredictOptions, arguments, ranks=ranks)


def with_environment(script: ScriptOptions, prediction: PredictOptions) -> ScriptOptions:
    """The script with the environment of its rank."""
    if not prediction.ranks:
        return script
    asked = prediction.rank, prediction.ranks, prediction.ranks_per_node
    return script._replace(environment=_ranks.environment(*asked))
