"""Cells of notebooks: their numbers and source texts. IPython compiles each cell under a file name of its own, which
only it knows how to read; a capture keeps what is needed to read it later. IPython is never imported
here."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

KEY = "cells"  # the key under which the end of a capture has them
_MOST_TEXT = 1 << 18  # characters of all cells of a capture; the text of a cell beyond that is left out
_NUMBER = re.compile(r"In\s?\[(\d{1,9})\]")
_NUMBER_IN_NAME = re.compile(r"<ipython-input-(\d{1,9})-[0-9a-f]+>")
_NAME_OF_KERNEL = re.compile(r"[\\/]ipykernel_\d+[\\/]\d+\.py$")


class Cell(NamedTuple):
    name: str
    """ "cell [3]", as it is shown instead of the file's name."""
    text: str | None
    """The source text; None if it is not known."""


def _number_of(file: str) -> int | None:
    """The execution number that IPython gave to a cell, when it was run last; None: the file is no cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    label = shell.compile.format_code_name(file) if shell is not None else None
    found = _NUMBER.fullmatch(label[1]) if label else None
    found = found or _NUMBER_IN_NAME.fullmatch(file)
    return int(found[1]) if found else None


def _running(files: Iterable[str]) -> Iterator[tuple[str, int, str | None]]:
    """File, number and text of the files that are cells of this process."""
    for file in files:
        with contextlib.suppress(Exception):  # a shell that is not IPython's own may do anything
            number = _number_of(file)
            if number is not None:
                yield file, number, "".join(linecache.getlines(file)) or None


# ---- for a capture ----


def describe(files: Iterable[str]) -> dict[str, str]:
    """Describe the cells among the files, with their numbers and texts, for a capture's end; {} if none is one."""
    found, left = {}, _MOST_TEXT
    for file, number, text in sorted(_running(files), key=lambda cell: -cell[1]):
        kept = text if text is not None and len(text) <= left else None
        left -= len(kept or "")
        found[file] = [number, kept]
    if not found:
        return {}
    import json  # Importing it takes time, and few captures have cells.

    return {KEY: json.dumps(found, separators=(",", ":"), ensure_ascii=False)}


class Cells:
    """The cells that a capture describes, by their files and by the names that are shown."""

    def __init__(self, described: str | None = None) -> None:
        self._by_file = dict(_read(described)) if described else {}
        self._texts = {cell.name: cell.text for cell in self._by_file.values()}

    def name(self, file: str) -> str:
        """The name by which a file is shown: "cell [3]", or the file's name if it is no cell."""
        cell = self._by_file.get(file)
        return cell.name if cell else _name_without_number(file)

    def lines(self, name: str) -> list[str] | None:
        """The source text of the cell that is shown by this name; None: it is not known."""
        text = self._texts.get(name)
        return None if text is None else io.StringIO(text).readlines()  # splitlines would divide at more than "\n"

    def is_cell(self, name: str) -> bool:
        return name in self._texts


def _name_without_number(file: str) -> str:
    """The name of a cell that the capture does not describe, because its process was killed; only IPython's own names
    have the number."""
    found = _NUMBER_IN_NAME.fullmatch(file)
    if found:
        return f"cell [{found[1]}]"
    return "cell [?]" if _NAME_OF_KERNEL.search(file) else file


def _read(described: str) -> Iterator[tuple[str, Cell]]:
    """What ``describe`` wrote; what is not understood is left out. Cells that have the same number keep their files'
    names beside it."""
    import json

    try:
        cells = json.loads(described)
    except (ValueError, RecursionError):
        return
    seen: set[str] = set()
    for file, cell in cells.items() if isinstance(cells, Mapping) else ():
        if isinstance(cell, list) and len(cell) == 2 and isinstance(cell[0], int) and isinstance(cell[1], str | None):
            name = f"cell [{cell[0]}]"
            name = f"{name} ({file})" if name in seen else name
            seen.add(name)
            yield file, Cell(name, cell[1])


# ---- in the running process ----


def show_names(text: str, files: Iterable[str]) -> str:
    """A text in which those of the files that are cells have the names by which they are shown."""
    for file, number, _ in _running(files):
        text = text.replace(file, f"cell [{number}]")
    return text
