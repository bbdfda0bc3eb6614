"""``metrics``: what a step of any training loop took, for a logger."""

from __future__ import annotations

import re
import sys

import torch
from modscope._read.groups import merge_numbers
from modscope.integrations._common import PREFIX, CallbackOptions, Environment, TrainingMemory

__all__ = ["metrics"]

_TOP = 5
_LONGEST = 200


class _Metrics:
    """The memory of each step as a flat dict of numbers, which W&B, MLflow and TensorBoard take as it is::

        modscope.metrics(model, optimizer)  # begin to count
        for batch in loader:
            loss = step(batch)
            wandb.log({"loss": loss, **modscope.metrics()})

    Each call has the highest peak since the call before, in bytes: ``memory/peak``, ``memory/activation`` and the other
    categories, ``memory/reserved`` on a GPU, and ``memory/module/NAME`` of the five modules that held most; layers are
    one, as ``GPT.h.N.mlp``. The first call begins to count and returns an empty dict; ``modscope.metrics.stop()`` ends
    it."""

    def __init__(self) -> None:
        self._memory: TrainingMemory | None = None

    def __call__(self, *given: object) -> dict[str, int]:
        """``given``: models and optimizers that exist already."""
        if self._memory is None or not self._memory.active:
            memory = TrainingMemory(CallbackOptions("step", (), None, sys.maxsize))
            memory.begin(Environment(_device(), "."), *given)
            self._memory = memory
            return {}
        self._memory.give(*given)
        self._memory.batch_ends()
        figures, modules = self._memory.take_figures()
        self._memory.step_begins(0)
        held: dict[str, int] = {}
        for fqn, value in modules:
            name = _name(fqn)
            held[name] = held.get(name, 0) + value
        largest = sorted(held.items(), key=lambda item: (-item[1], item[0]))[:_TOP]
        return {**figures, **{f"{PREFIX}module/{fqn}": value for fqn, value in largest}}

    def stop(self) -> None:
        """Stop counting. The next call begins anew."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.end()


def _name(fqn: str) -> str:
    """A module in the characters and the length that MLflow takes, which takes the fewest."""
    return re.sub(r"[^\w.]", "", merge_numbers(fqn).replace("*", "N"))[-_LONGEST:]


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


metrics = _Metrics()
