"""A script that iterates no DataLoader: the shapes of what goes into its root modules, step by step, as it takes them.

Nothing is read ahead: each step is predicted, as many as ``--steps`` says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from modscope._predict.epoch.batch_shapes import Shape, shape_of

LEAST_STEPS = 4
"""Fewer say nothing of other steps."""


class PlainLoop:
    def __init__(self, log_count: Callable[[], int]) -> None:
        self._log_count = log_count
        self._depth = 0
        self._inputs: list[Shape] = []
        self.marks: list[int] = []
        """Where the log was when the first root call began, and when each step ended."""
        self.shapes: list[Shape] = []

    def install(self) -> Callable[[], None]:
        """Returns what undoes it."""
        import torch

        module_type: Any = torch.nn.Module
        call = module_type.__call__
        loop = self

        @functools.wraps(call)
        def __call__(module: Any, *args: Any, **named: Any) -> Any:
            if loop._depth == 0 and torch._C._current_graph_task_id() == -1:
                loop._note(module, args, named)
            loop._depth += 1
            try:
                return call(module, *args, **named)
            finally:
                loop._depth -= 1

        module_type.__call__ = __call__
        return lambda: setattr(module_type, "__call__", call)

    def _note(self, module: Any, args: Any, named: dict[str, Any]) -> None:
        """A loss without parameters is no root of a step."""
        if not self.marks:
            self.marks.append(self._log_count())
        if next(module.parameters(), None) is not None:
            self._inputs.append(shape_of({**{str(number): each for number, each in enumerate(args)}, **named}))

    def step_ended(self) -> None:
        """Of a step of several root calls, the shape is that of the largest."""
        if not self._inputs:
            return
        self.shapes.append(max(self._inputs, key=_elements))
        self.marks.append(self._log_count())
        self._inputs = []

    @property
    def has_steps(self) -> bool:
        return len(self.shapes) >= LEAST_STEPS

    def as_read(self) -> tuple[list[Shape], list[int]]:
        """The different shapes, and which of them each step has."""
        numbers: dict[tuple[tuple[str, int], ...], int] = {}
        different: list[Shape] = []
        steps = []
        for shape in self.shapes:
            number = numbers.setdefault(tuple(shape.features.items()), len(numbers))
            if number == len(different):
                different.append(shape)
            steps.append(number)
        return different, steps


def _elements(shape: Shape) -> int:
    product = 1
    for dim in shape.dims:
        product *= dim
    return product
