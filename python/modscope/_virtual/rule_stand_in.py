"""What ``rules`` provides, for the modules that register rules while it is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from modscope._virtual.operators import Events

Answer = Events | Callable[[], Events] | None
RuleFunction = Callable[["Card", Any, Any, Any], Answer]
RULES: dict[str, RuleFunction] = {}


class Card(NamedTuple):
    """What a rule may depend on beside the arguments."""

    capability: tuple[int, int]
    processors: int
    torch: tuple[int, int] = (2, 11)


def rule(*names: str, source: str = "") -> Callable[[RuleFunction], RuleFunction]:
    def register(function: RuleFunction) -> RuleFunction:
        for name in names:
            RULES[name] = function
        return function

    return register


class Rule(NamedTuple):
    function: RuleFunction


def all_rules() -> dict[str, Rule]:
    return {name: Rule(function) for name, function in RULES.items()}


def argument(args: Any, kwargs: Any, position: int, name: str, default: Any = None) -> Any:
    """An argument of an operator. torch leaves arguments out that equal their defaults."""
    if name in kwargs:
        return kwargs[name]
    return args[position] if position < len(args) else default
