"""What --json prints against the schema of the package, more strictly than a program that reads it has to be: a key that
the schema does not describe is an error.

tests/py/conftest.py checks every object that a command prints in this process or in a fork of it, in all tests."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable
from typing import Any

from modscope._cli.json_schema import schema

_TYPES = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "object": dict, "array": list}
_TOLD = "describe it in python/modscope/_cli/schema.txt"

Seen = set[tuple[str, str]]
"""Keys that were printed, with the object of the schema that they are in."""

the_schema = functools.cache(schema)


@functools.cache
def validator() -> Any:
    """The validator of the package jsonschema; None where it is not installed."""
    if importlib.util.find_spec("jsonschema") is None:
        return None
    from jsonschema import Draft202012Validator

    return Draft202012Validator(the_schema())


def check(document: dict[str, Any]) -> Seen:
    """AssertionError if the schema does not describe the object of a command as it is. What was seen in it."""
    command, parts = document.get("command"), the_schema()["$defs"]
    names = [each["$ref"].rpartition("/")[2] for each in the_schema()["oneOf"]]
    names = [name for name in names if parts[name]["properties"]["command"]["const"] == command]
    assert names, f"no object of the command {command!r}: {_TOLD}"
    name = min(names, key=lambda name: len(document.keys() ^ parts[name]["properties"].keys()))
    seen = check_part(document, name)
    if validator() is not None:
        validator().validate(document)
    return seen


def check_part(value: Any, name: str, is_open: bool = False) -> Seen:
    """Check a part of such an object, which the schema calls ``name``. ``is_open``: it may have other keys."""
    seen: Seen = set()
    _walk(json.loads(json.dumps(value)), {"$ref": f"#/$defs/{name}"}, name, seen, is_open)
    return seen


def described() -> Seen:
    """All keys that the schema describes."""
    return {(name, key) for name, each in the_schema()["$defs"].items() for key in each["properties"]}


def checked(document_of: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """``document_of`` of _show/output_file.py, with a check of each object."""

    @functools.wraps(document_of)
    def wrapper(*arguments: Any) -> dict[str, Any]:
        document = document_of(*arguments)
        check(json.loads(json.dumps(document)))
        return document

    return wrapper


def _walk(value: Any, part: dict[str, Any], where: str, seen: Seen, is_open: bool = False) -> None:
    if "anyOf" in part:
        if value is not None:
            _walk(value, part["anyOf"][0], where, seen)
    elif "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        _walk_object(value, name, where, seen, is_open)
    elif "const" in part:
        assert value == part["const"], where
    else:
        types = [part["type"]] if isinstance(part["type"], str) else part["type"]
        is_right = any(value is None if word == "null" else _is(value, word) for word in types)
        assert is_right, f"{where} is {value!r}, and must be {' or '.join(types)}"
        for key, each in value.items() if isinstance(value, dict) else ():
            _walk(each, part["additionalProperties"], f"{where}.{key}", seen)
        for each in value if isinstance(value, list) else ():
            _walk(each, part["items"], f"{where}[]", seen)


def _walk_object(value: Any, name: str, where: str, seen: Seen, is_open: bool) -> None:
    part = the_schema()["$defs"][name]
    assert isinstance(value, dict), f"{where} is {value!r}, and must be an object"
    missing, unknown = set(part["required"]) - value.keys(), value.keys() - part["properties"].keys()
    assert not missing, f"{where} ({name}) lacks {sorted(missing)}"
    assert not unknown or is_open, f"{where} ({name}) has {sorted(unknown)}, which the schema does not know: {_TOLD}"
    for key in value.keys() - unknown:
        seen.add((name, key))
        _walk(value[key], part["properties"][key], f"{where}.{key}", seen)


def _is(value: Any, word: str) -> bool:
    return isinstance(value, _TYPES[word]) and (word == "boolean" or not isinstance(value, bool))
