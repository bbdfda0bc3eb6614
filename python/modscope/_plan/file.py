"""A plan: which modules are to be checkpointed. It is kept as JSON. Needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

VERSION = 1
_KIND = "modscope plan"


class PlanError(ValueError):
    """The plan cannot be read, or does not suit the model."""


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
        raise PlanError(
            f"it is a plan of version {version!r}, and this modscope reads version {VERSION}: update modscope, or "
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
    if len(set(paths)) < len(paths):
        raise PlanError(f"it names a module of {root} twice")
    chosen = set(paths)
    for path in paths:
        parts = path.split(".")
        for count in range(1, len(parts)):
            around = ".".join(parts[:count])
            if around in chosen:
                raise PlanError(
                    f"{root}.{path} lies in {root}.{around}, which is checkpointed as a whole: name one of them"
                )
