"""A plan: which modules are to be checkpointed. It is kept as JSON. Needs no torch."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from modscope._read.text import clean, shorten_middle

VERSION = 1
_KIND = "modscope plan"
_MOST_COLUMNS = 120


class PlanError(ValueError):
    """The plan cannot be read, or does not suit the model."""

    def __init__(self, text: str) -> None:
        super().__init__(clean(text))  # the plan's names are in it, and Python prints it to the terminal


class Plan(NamedTuple):
    """Which modules are to be checkpointed, and what that is expected to change."""

    checkpoint: dict[str, list[str]]
    """By the name of a root module: the paths of its modules below it, such as ``h.0``."""
    facts: dict[str, Any] = {}
    """How it was made, and what it is expected to change. Nothing depends on it."""

    @property
    def modules(self) -> list[str]:
        """The full names of the modules: ``GPT2.h.0``."""
        return [f"{root}.{path}" for root, paths in self.checkpoint.items() for path in paths]

    def as_json(self) -> str:
        body = {"kind": _KIND, "version": VERSION, "checkpoint": self.checkpoint, **self.facts}
        return json.dumps(body, indent=2) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.as_json())


def short_name(module: str) -> str:
    """A module's name in an error: a plan may have names of any length."""
    return shorten_middle(module, _MOST_COLUMNS)


def plan_of(modules: list[str], facts: Mapping[str, Any] | None = None) -> Plan:
    """From full names. A root module itself cannot be in a plan."""
    found: dict[str, list[str]] = {}
    for name in modules:
        root, dot, path = name.partition(".")
        if not dot:
            raise PlanError(f"{name} is a root module: a plan holds modules below one")
        found.setdefault(root, []).append(path)
    return Plan(found, dict(facts or {}))


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """PlanError says what is wrong with the file; OSError if it cannot be read."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        body = json.loads(text)
    except ValueError as error:
        raise PlanError(f"{os.fspath(path)} is not a plan: it is not JSON ({error})") from None
    except RecursionError:
        raise PlanError(f"{os.fspath(path)} is not a plan: its JSON is nested too deeply") from None
    try:
        return parse_plan(body)
    except PlanError as error:
        raise PlanError(f"{os.fspath(path)}: {error}") from None


def parse_plan(body: Any) -> Plan:
    """A plan from what its JSON holds."""
    if not isinstance(body, dict) or body.get("kind") != _KIND:
        raise PlanError(f'it is not a plan of modscope: it has no "kind": "{_KIND}"')
    version = body.get("version")
    if version != VERSION or isinstance(version, bool):
        shown = version if isinstance(version, int) else "unknown"
        raise PlanError(
            f"it is a plan of version {shown}, and this modscope reads version {VERSION}: update modscope, or "
            f"make the plan again"
        )
    checkpoint = body.get("checkpoint")
    if not isinstance(checkpoint, dict) or not all(_is_list_of_paths(paths) for paths in checkpoint.values()):
        raise PlanError('"checkpoint" is not an object with a list of module names for each root module')
    for root, paths in checkpoint.items():
        _check_nesting(root, paths)
    facts = {key: value for key, value in body.items() if key not in ("kind", "version", "checkpoint")}
    return Plan({root: list(paths) for root, paths in checkpoint.items()}, facts)


def _is_list_of_paths(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(path, str) and path and all(path.split(".")) for path in value)


def _check_nesting(root: str, paths: list[str]) -> None:
    """In sorted order, a module is followed by one that lies in it, if there is any."""
    ordered = sorted(path.split(".") for path in paths)
    for around, next_one in itertools.pairwise(ordered):
        if around == next_one:
            raise PlanError(f"it names a module of {root} twice")
        if around == next_one[: len(around)]:
            raise PlanError(
                f"{short_name('.'.join([root, *next_one]))} lies in {short_name('.'.join([root, *around]))}, which is "
                f"checkpointed as a whole: name one of them"
            )
