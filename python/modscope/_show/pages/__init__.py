"""The pages that ``modscope report`` writes: their figures by panel, and one HTML file that needs no other file.

A page's own files are in ``page/``, and ``page/manifest.json`` lists those of each page in their order."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple, TypedDict

from modscope import _capture


class Page(NamedTuple):
    html: str
    notes: list[str]
    """Sentences about what was left out."""


class PageFiles(TypedDict):
    """The files of a page, as ``page/manifest.json`` names them."""

    template: str
    styles: list[str]
    scripts: list[str]


def _read(file: str) -> str:
    return (resources.files("modscope") / "_show" / "page" / file).read_text(encoding="utf-8")


def read_manifest() -> dict[str, PageFiles]:
    """The files of each page, by the page's name."""
    manifest: dict[str, PageFiles] = json.loads(_read("manifest.json"))
    return manifest


def _compact(script: str) -> str:
    """The script without indentation and without comments that have lines of their own: a sixth less to send."""
    without_comments = re.sub(r"(?m)^ */\*(?:(?!\*/)[\s\S])*\*/\n", "", script)
    return re.sub(r"(?m)^ +", "", without_comments)


def _hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def packed(data: bytes) -> str:
    """Bytes as the page's scripts read them: deflated, in base64."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def make_html(name: str, values: Mapping[str, str]) -> str:
    """The page of this name: its template with each {word} replaced by its value, its styles and its scripts. Words
    inside the values are not replaced."""
    files = read_manifest()[name]
    style = "".join(map(_read, files["styles"]))
    script = _compact("\n".join(map(_read, files["scripts"])))
    policy = (
        f"default-src 'none'; script-src {_hash_of(script)}; style-src {_hash_of(style)}; base-uri 'none'; "
        f"form-action 'none'"
    )
    known = {**values, "version": _capture.version, "policy": policy, "style": style, "script": script}
    return re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], found[0]), _read(files["template"]))
