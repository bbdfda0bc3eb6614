"""A script that is predicted on virtual GPUs, each time in a process of its own: as it is, with a plan, with other settings
of the allocator, or with other arguments. For ``modscope fit``, ``plan`` and ``batch``. Needs no torch itself."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from modscope import _predict_process, _run
from modscope._capture import Allocator
from modscope._load import CaptureError
from modscope._plan_file import Plan
from modscope._predict_result import failed_early
from modscope._predict_script import CAPTURE, FACTS
from modscope._predict_text import describe_error, hints
from modscope._script_arguments import check_ranks
from modscope._sharding_change import ShardingChange
from modscope._virtual.environment import allocator_settings
from modscope._virtual.gpus import Gpu
from modscope._virtual.network import RANKS_PER_NODE


def _facts(path: str) -> dict[str, Any]:
    """What is known of a prediction beside its capture; empty if the script's process ended without it."""
    try:
        with open(os.path.join(os.path.dirname(path), FACTS), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (OSError, ValueError):
        return {}


def sharding_of(path: str) -> dict[str, Any] | None:
    """How a script whose prediction is at ``path`` uses fully_shard (_predict_sharding.Sharding.facts); None: it does not."""
    ranks: dict[str, Any] = _facts(path).get("ranks") or {}
    return ranks.get("fully_shard")


_CONF = "PYTORCH_CUDA_ALLOC_CONF"


class PredictedScript:
    """``target``: the script, or -m and a module, with its arguments. ``options``: those of _script_arguments.add_options. Its captures
    are deleted with it."""

    def __init__(self, target: Sequence[str], options: argparse.Namespace) -> None:
        """CaptureError if the script cannot be run, or the allocator's settings are not known."""
        self.target = list(target)
        self._asked = argparse.Namespace(module=target[0] == "-m", table=None, selected=0.5, plan=None, stacks=1)
        self._asked.ranks, self._asked.rank = [options.ranks] if options.ranks else None, options.rank
        self._asked.ranks_per_node, self._asked.mail, self._asked.reshard, self._asked.shard_over = (
            options.ranks_per_node,
            None,
            None,
            None,
        )
        self._asked.steps, self._asked.seconds, self._asked.torch = options.steps, options.seconds, options.torch
        self._asked.target = self.target[1:] if self._asked.module else self.target
        self._check()
        self.name: str = self._asked.target[0]
        self.ranks: int = options.ranks or 0
        """As rank 0, or the one that was asked for, of so many; 0: the script is alone."""
        self.per_node: int = options.ranks_per_node or RANKS_PER_NODE
        self._folder = tempfile.TemporaryDirectory(prefix="modscope-")
        self._count = 0

    def __enter__(self) -> PredictedScript:
        return self

    def __exit__(self, *unused: object) -> None:
        self._folder.cleanup()

    def _check(self) -> None:
        try:
            if not self._asked.target:
                raise CaptureError("-m needs the name of a module")
            check_ranks(self._asked)
            Allocator(self._asked.torch, allocator_settings())
            _run.check_target(self._asked)
        except (_run.Refused, ValueError) as error:
            raise CaptureError(str(error)) from None

    def predict(
        self,
        gpus: Sequence[Gpu],
        what: str = "",
        *,
        plan: Plan | None = None,
        conf: str = "",
        target: Sequence[str] | None = None,
        sharding: ShardingChange | None = None,
    ) -> str:
        """The path of a capture, made with unlimited memory. ``conf`` is added to the allocator's settings; ``target``
        replaces the script's; ``sharding``: more ranks, and what fully_shard gets. The first prediction shows on stderr what the script prints, the others do not. ``what``
        says to somebody who waits what is different this time. CaptureError: the script did not get far enough."""
        self._count += 1
        part = os.path.join(self._folder.name, str(self._count))
        os.mkdir(part)
        asked = argparse.Namespace(**vars(self._asked))
        if plan is not None:
            asked.plan = os.path.join(part, "plan.json")
            plan.write(asked.plan)
        if target is not None:
            asked.target = list(target[1:] if asked.module else target)
        if sharding is not None:
            asked.ranks = [sharding.ranks] if sharding.ranks else asked.ranks
            asked.reshard, asked.shard_over = sharding.reshard or None, sharding.over or None
        path = os.path.join(part, CAPTURE)
        status = self._run(_predict_process.command(asked, gpus, "--part", part, "-o", path), what, conf)
        facts = _facts(path)
        path = facts.get("capture") or path  # that of a rank has its number in the name
        self._check_steps(facts)
        if not os.path.isfile(path):
            raise CaptureError(
                f"{self.name} ended with status {status}{f' ({what})' if what else ''}, and nothing could be predicted"
            )
        return path

    def _check_steps(self, facts: dict[str, Any]) -> None:
        """CaptureError if the script failed before its first optimizer step."""
        result = {"steps": 0, **facts, "fits": True}  # memory is unlimited
        if facts and failed_early(result):
            why = f"{self.name} failed before its first optimizer step ({describe_error(result)}), so what it needs is not known"
            raise CaptureError(". ".join([why, *(hint.removesuffix(".") for hint in hints(result))]))

    def _run(self, words: list[str], what: str, conf: str) -> int:
        settings = ",".join(filter(None, (allocator_settings(), conf)))
        environment = {**os.environ, _CONF: settings} if conf else None
        silent = self._count > 1
        shown = silent and sys.stderr is not None and sys.stderr.isatty()
        if shown:
            print(f"\rpredicting {self.name} again: {what}"[:79], end="", file=sys.stderr, flush=True)
        null = subprocess.DEVNULL
        out = null if silent or sys.stderr is None else 2
        try:
            return _predict_process.wait(
                subprocess.Popen(words, stdin=null if silent else None, stdout=out, stderr=out, env=environment)
            )
        finally:
            if shown:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
