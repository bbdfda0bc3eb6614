"""What --json prints, as a JSON Schema: ``modscope help json --schema``. schema.txt describes the objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

from modscope._show.output_file import SCHEMA

_CONTINUED = " " * 20
_HEADING = re.compile(r"(?:(?P<command>[a-z]+) )?(?P<name>\w+)(?: < (?P<bases>[\w ]+))?: (?P<about>.+)")
_SCALARS = {"int": "integer", "number": "number", "text": "string", "bool": "boolean"}
_ABOUT = (
    'What a command of modscope prints with --json: "command" says which. Bytes are integers, times are seconds where '
    'the key does not say otherwise. New keys may be added; no key changes its meaning while "schema" has the same '
    "number."
)
_OWN_KEYS = {"command": "the command that prints it", "schema": "the version of what --json prints"}


class _Key(NamedTuple):
    type: str
    about: str
    is_optional: bool


class _Object(NamedTuple):
    command: str
    """The command that prints it; "": it is a part of other objects."""
    bases: list[str]
    about: str
    keys: dict[str, _Key]


def schema() -> dict[str, Any]:
    """One JSON Schema (draft 2020-12) for the objects of all commands."""
    objects = _parse(resources.files(__package__).joinpath("schema.txt").read_text(encoding="utf-8"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "modscope --json",
        "description": _ABOUT,
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name, each in objects.items() if each.command],
        "$defs": {name: _definition(each, objects) for name, each in objects.items()},
    }


def _parse(text: str) -> dict[str, _Object]:
    found: dict[str, _Object] = {}
    for line in _whole_lines(text):
        if heading := _HEADING.fullmatch(line):
            last = found[heading["name"]] = _Object(
                heading["command"] or "", (heading["bases"] or "").split(), heading["about"], {}
            )
        else:
            key, of_type, about = line.split(None, 2)
            last.keys[key.removesuffix("?")] = _Key(of_type, about, key.endswith("?"))
    return found


def _whole_lines(text: str) -> Iterator[str]:
    """The lines without comments, each with those that continue it."""
    joined = re.sub(rf"\n{_CONTINUED}\s*", " ", text)
    return (line for line in joined.splitlines() if line and not line.startswith("#"))


def _definition(of: _Object, objects: dict[str, _Object]) -> dict[str, Any]:
    keys = _keys_of(of, objects)
    properties = {name: {**_type(key.type), "description": key.about} for name, key in keys.items()}
    required = [name for name, key in keys.items() if not key.is_optional]
    if of.command:
        fixed = {"command": of.command, "schema": SCHEMA}
        own = {name: {"const": value, "description": _OWN_KEYS[name]} for name, value in fixed.items()}
        properties, required = {**own, **properties}, [*own, *required]
    return {"type": "object", "description": of.about, "properties": properties, "required": required}


def _keys_of(of: _Object, objects: dict[str, _Object]) -> dict[str, _Key]:
    """Its keys, after those of its bases."""
    keys: dict[str, _Key] = {}
    for base in of.bases:
        keys |= _keys_of(objects[base], objects)
    return keys | of.keys


def _type(text: str) -> dict[str, Any]:
    if text.endswith("?"):
        one = _type(text[:-1])
        return {"type": [one["type"], "null"]} if text[:-1] in _SCALARS else {"anyOf": [one, {"type": "null"}]}
    if text.startswith("["):
        return {"type": "array", "items": _type(text[1:-1])}
    if text.startswith("{"):
        return {"type": "object", "additionalProperties": _type(text[1:-1])}
    return {"type": _SCALARS[text]} if text in _SCALARS else {"$ref": f"#/$defs/{text}"}
