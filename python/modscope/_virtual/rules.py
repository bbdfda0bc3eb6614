"""Rules: the memory that operators take beside their results on a real GPU.

A rule is a function of the card and of an operator's arguments that answers the events of one call (see
``operators.Events``). Rules are registered here by name; each states where it comes from. The modules of ``_MODULES`` hold
them by subject. An operator without a rule takes its results only; what went through such operators is counted.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from modscope._virtual import operators
from modscope._virtual.gpus import Gpu
from modscope._virtual.operators import Events

__all__ = ["Answer", "Card", "Rule", "Rules", "Table", "Times", "all_rules", "argument", "rule"]

Answer = Events | Callable[[], Events] | None
"""The events of a call, or a function that answers them at each call, or None: nothing is taken beside the results."""
RuleFunction = Callable[["Card", Any, Any, Any], Answer]

_MODULES = ("workspaces", "reductions", "sorting", "normalization", "convolution", "recurrent", "attention_memory")


class Card(NamedTuple):
    """What a rule may depend on beside the arguments."""

    capability: tuple[int, int]
    processors: int
    """Streaming multiprocessors."""
    torch: tuple[int, int] = (2, 11)
    """The version of torch whose rules are used."""

    @property
    def threads_per_processor(self) -> int:
        """The most threads that are resident on a streaming multiprocessor."""
        if self.capability == (7, 5):
            return 1024
        return 1536 if self.capability[0] in (8, 12) and self.capability != (8, 0) else 2048


def make_card(gpu: Gpu, version: str) -> Card:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise ValueError(f"{version!r} is not a version of torch: give it as 2.11")
    return Card(gpu.capability, gpu.processors, (int(numbers[1]), int(numbers[2])))


class Rule(NamedTuple):
    function: RuleFunction
    source: str
    """Where the rule comes from: a file of torch, or what was measured."""
    order: tuple[int, ...] | None = None
    """The numbers of the results in the order in which they are made, if that is not the order in which they are returned."""


_rules: dict[str, Rule] = {}


def rule(
    *names: str, source: str = "", order: tuple[int, ...] | None = None
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the rule of the operators ``names``, such as ``aten.convolution.default``."""

    def register(function: RuleFunction) -> RuleFunction:
        for name in names:
            _rules[name] = Rule(function, source or (function.__doc__ or "").strip(), order)
        return function

    return register


def all_rules() -> dict[str, Rule]:
    """The rules of every module, by the operator's name."""
    for name in _MODULES:
        full_name = f"modscope._virtual.{name}"
        if importlib.util.find_spec(full_name) is not None:
            importlib.import_module(full_name)
    return _rules


def argument(args: Any, kwargs: Any, position: int, name: str, default: Any = None) -> Any:
    """An argument of an operator. torch leaves arguments out that equal their defaults."""
    if name in kwargs:
        return kwargs[name]
    return args[position] if position < len(args) else default


class Found(Protocol):
    """What a table knows of an operator with its arguments; None: it was not measured."""

    @property
    def events(self) -> Answer: ...

    @property
    def seconds(self) -> float | None: ...


class Table(Protocol):
    """What was measured on a GPU. It takes precedence over rules."""

    def find(self, op: Any, args: Any, kwargs: Any) -> Found | None: ...


class Times(Protocol):
    """How long operators take."""

    def seconds(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float: ...

    def advance(self, seconds: float) -> None: ...


def _result_bytes(specs: Any) -> int:
    if isinstance(specs, list):
        return sum(_result_bytes(spec) for spec in specs)
    if not isinstance(specs, tuple):
        return 0
    bytes = specs[2].itemsize
    for count in specs[0]:
        bytes *= count
    return int(bytes)


class Rules(operators.Rules):
    """The rules of one card, as the virtual device asks them."""

    def __init__(self, card: Card, table: Table | None = None, times: Times | None = None) -> None:
        self._card = card
        self._table = table
        self._times = times
        self._rules = all_rules()
        self._bytes_without_rule = 0

    def events(self, op: Any, args: Any, kwargs: Any, specs: Any) -> Answer:
        if self._table is not None:
            found = self._table.find(op, args, kwargs)
            if found is not None and found.events is not None:
                return found.events
        known = self._rules.get(str(op))
        if known is not None:
            return known.function(self._card, args, kwargs, specs)
        bytes = _result_bytes(specs)
        return self._counting(bytes) if bytes and not takes_results_only(op) else None

    def order(self, op: Any) -> tuple[int, ...] | None:
        known = self._rules.get(str(op))
        return known.order if known is not None else None

    def seconds(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        if self._table is not None:
            found = self._table.find(op, args, kwargs)
            if found is not None and found.seconds is not None:
                return found.seconds
        return self._times.seconds(op, args, kwargs, specs) if self._times is not None else 0.0

    def advance(self, seconds: float) -> None:
        if self._times is not None:
            self._times.advance(seconds)

    def bytes_without_rule(self) -> int:
        """The bytes of results of operators of which it is not known what they take beside them."""
        return self._bytes_without_rule

    def _counting(self, bytes: int) -> Callable[[], Events]:
        def count() -> Events:
            self._bytes_without_rule += bytes
            return ()

        return count


def takes_results_only(op: Any) -> bool:
    """Whether it is known that an operator takes no memory beside its results."""
    return torch.Tag.pointwise in op.tags
