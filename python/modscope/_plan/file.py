"""A plan: which modules are to be checkpointed, and which results they keep. It is kept as JSON. Needs no torch."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from modscope._read.text import clean, shorten_middle

VERSION = 2
_WITHOUT_RESULTS = 1
"""The version of plans in which no module keeps results. Earlier versions of modscope read those."""
_KIND = "modscope plan"
_MOST_COLUMNS = 120


class PlanError(ValueError):
    """The plan cannot be read, or does not suit the model."""

    def __init__(self, text: str) -> None:
        super().__init__(clean(text))  # the plan's names are in it, and Python prints it to the terminal


class KeptOperator(NamedTuple):
    """An operator in the forward of a checkpointed module, whose result is kept."""

    operator: str
    """The dispatcher's name: ``aten::addmm``, ``aten::mul.Tensor``."""
    call: int
    """Which of the operator's calls in one call of the module, from 1 on."""
    of: int = 0
    """How many calls of the operator that has; 0: any number."""


Keep = dict[str, tuple[KeptOperator, ...]]
"""By the path or the full name of a module: the results that it keeps, in the order of its forward."""


class Plan(NamedTuple):
    """Which modules are to be checkpointed, and what that is expected to change."""

    checkpoint: dict[str, list[str]]
    """By the name of a root module: the paths of its modules below it, such as ``h.0``."""
    facts: dict[str, Any] = {}
    """How it was made, and what it is expected to change. Nothing depends on it."""
    keep: dict[str, Keep] = {}
    """By root module and path: of modules that are checkpointed, the results that are not computed again."""

    @property
    def modules(self) -> list[str]:
        """The full names of the modules: ``GPT2.h.0``."""
        return [f"{root}.{path}" for root, paths in self.checkpoint.items() for path in paths]

    def as_json(self) -> str:
        version, keep = (VERSION, {"keep": self.keep_as_json()}) if self.keep else (_WITHOUT_RESULTS, {})
        body = {"kind": _KIND, "version": version, "checkpoint": self.checkpoint, **keep, **self.facts}
        return json.dumps(body, indent=2) + "\n"

    def keep_as_json(self) -> dict[str, list[dict[str, Any]]]:
        """Modules that keep the same results share an object."""
        found: dict[str, list[dict[str, Any]]] = {}
        for root, keep in self.keep.items():
            alike: dict[tuple[KeptOperator, ...], list[str]] = {}
            for path, places in keep.items():
                alike.setdefault(places, []).append(path)
            found[root] = [
                {"modules": paths, "operators": [_place_as_json(place) for place in places]}
                for places, paths in alike.items()
            ]
        return found

    def write(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.as_json())


def short_name(module: str) -> str:
    """A module's name in an error: a plan may have names of any length."""
    return shorten_middle(module, _MOST_COLUMNS)


def _place_as_json(place: KeptOperator) -> dict[str, Any]:
    return {"operator": place.operator, "call": place.call, **({"of": place.of} if place.of else {})}


def plan_of(modules: list[str], facts: Mapping[str, Any] | None = None, keep: Keep | None = None) -> Plan:
    """From full names. A root module itself cannot be in a plan."""
    found: dict[str, list[str]] = {}
    kept: dict[str, Keep] = {}
    for name in modules:
        root, dot, path = name.partition(".")
        if not dot:
            raise PlanError(f"{name} is a root module: a plan holds modules below one")
        found.setdefault(root, []).append(path)
        if keep and keep.get(name):
            kept.setdefault(root, {})[path] = tuple(keep[name])
    return Plan(found, dict(facts or {}), kept)


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
    """Make a plan from what its JSON holds."""
    if not isinstance(body, dict) or body.get("kind") != _KIND:
        raise PlanError(f'it is not a plan of modscope: it has no "kind": "{_KIND}"')
    version = body.get("version")
    if version not in (_WITHOUT_RESULTS, VERSION) or isinstance(version, bool):
        shown = version if isinstance(version, int) else "unknown"
        raise PlanError(
            f"it is a plan of version {shown}, and this modscope reads versions {_WITHOUT_RESULTS} and {VERSION}: "
            f"update modscope, or make the plan again"
        )
    checkpoint = body.get("checkpoint")
    if not isinstance(checkpoint, dict) or not all(_is_list_of_paths(paths) for paths in checkpoint.values()):
        raise PlanError('"checkpoint" is not an object with a list of module names for each root module')
    for root, paths in checkpoint.items():
        _check_nesting(root, paths)
    keys = ("kind", "version", "checkpoint", *(["keep"] if version == VERSION else []))
    facts = {key: value for key, value in body.items() if key not in keys}
    keep = _parse_keep(body.get("keep", {}), checkpoint) if version == VERSION else {}
    return Plan({root: list(paths) for root, paths in checkpoint.items()}, facts, keep)


def _parse_keep(body: Any, checkpoint: dict[str, list[str]]) -> dict[str, Keep]:
    """PlanError if a module keeps results that is not checkpointed, or an operator's place is wrong."""
    if not isinstance(body, dict) or not all(isinstance(items, list) for items in body.values()):
        raise PlanError('"keep" is not an object with a list for each root module')
    found: dict[str, Keep] = {}
    for root, items in body.items():
        of_root = found.setdefault(root, {})
        known = set(checkpoint.get(root, ()))
        for item in items:
            paths: Any = item.get("modules") if isinstance(item, dict) else None
            operators: Any = item.get("operators") if isinstance(item, dict) else None
            if not _is_list_of_paths(paths) or not isinstance(operators, list):
                raise PlanError('an item of "keep" has no "modules" with names of modules, or no list of "operators"')
            places = tuple(_parse_place(operator) for operator in operators)
            for path in paths:
                if path not in known or path in of_root:
                    why = "is not in" if path not in known else 'is twice in "keep", and should be once, as in'
                    raise PlanError(f'{short_name(f"{root}.{path}")} keeps results, and {why} "checkpoint"')
                of_root[path] = places
    return {root: kept for root, keep in found.items() if (kept := {path: at for path, at in keep.items() if at})}


def _parse_place(body: Any) -> KeptOperator:
    found = body if isinstance(body, dict) else {}
    operator, call, of = found.get("operator"), found.get("call"), found.get("of") or 0
    if not isinstance(operator, str) or not re.fullmatch(r"[\w.]+::[\w.]+", operator, re.ASCII):
        raise PlanError('an operator in "keep" has no name as "aten::addmm" or "aten::mul.Tensor"')
    if type(call) is not int or type(of) is not int or call < 1 or (of and call > of):
        raise PlanError(f'{short_name(operator)} in "keep" has no "call" from 1 on, or that is more than "of"')
    return KeptOperator(operator, call, of)


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
