"""CSV, and JSON with one object per line: a row for each event, or a row for each module at a moment. Both have the
same columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from modscope._export import ExportPart, Put
from modscope._export.common import devices_at, shorten_in_rows, write_events
from modscope._read.categories import CATEGORIES, KINDS, TOTAL, Kind
from modscope._read.load import Capture, Snapshot
from modscope._read.module_tree import Branch

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so


def _csv_name(name: str) -> bytes:
    """A name as RFC 4180 writes it. An empty name is quoted: an unquoted empty field means that there is none. An
    apostrophe before a name that begins like a formula makes a spreadsheet show it as text."""
    if name.startswith(_FORMULA):
        name = "'" + name
    quoted = not name or any(char in name for char in ',"\r\n')
    return ('"' + name.replace('"', '""') + '"' if quoted else name).encode("utf-8", "replace")


def _json_name(name: str) -> bytes:
    return json.dumps(name).encode()


Value = str | int | float
_NAMES = {"csv": _csv_name, "json": _json_name}


# ---- a moment ----


def _branches(branches: Iterable[Branch]) -> Iterator[Branch]:
    for branch in branches:
        yield branch
        yield from _branches(branch.children)


_COLUMNS = ("moment", "time", "step", "device", "module", *map(str, CATEGORIES), "own", "subtree", "is_lower_bound")


def _row(device: str, snapshot: Snapshot, branch: Branch) -> tuple[Value, ...]:
    moment = (snapshot.moment, snapshot.time, snapshot.step)
    own = (branch.own[word] for word in CATEGORIES)
    return *moment, device, branch.fqn, *own, branch.own[TOTAL], branch.subtree[TOTAL], snapshot.is_lower_bound


def _kinds_in(found: Iterable[tuple[str, Snapshot]]) -> list[Kind]:
    """The kinds that hold something. Only these have columns."""
    held = {kind for device, snapshot in found for kind in snapshot.kinds.get(device, ())}
    return [kind for kind in KINDS if kind in held]


def _csv_value(value: Value) -> bytes:
    if isinstance(value, str):
        return _csv_name(value)
    return b"%d" % value if isinstance(value, int) else b"%.6f" % value


def _csv_line(values: Iterable[Value]) -> bytes:
    return b",".join(map(_csv_value, values)) + b"\n"


def _json_line(columns: Sequence[str], values: Iterable[Value]) -> bytes:
    return json.dumps(dict(zip(columns, values)), separators=(",", ":")).encode() + b"\n"


def _snapshot(capture: Capture, format: str, put: Put, at: str, device: str | None) -> None:
    found = list(devices_at(capture, at, device))
    kinds = _kinds_in(found)
    columns = (*_COLUMNS, *map(str, kinds))
    if format == "csv":
        put(_csv_line(columns))
    for name, snapshot in found:
        by_module = snapshot.kinds_by_module().get(name, {}) if kinds else {}
        for branch in _branches(snapshot.tree(name)):
            row = *_row(name, snapshot, branch), *(by_module.get(branch.fqn, {}).get(kind, 0) for kind in kinds)
            put(_csv_line(row) if format == "csv" else _json_line(columns, row))


def write(capture: Capture, format: str, put: Put, part: ExportPart) -> None:
    if part.at is None:
        encode, shorten = _NAMES[format], shorten_in_rows(capture)
        write_events(capture, format, put, part, lambda name: encode(shorten(name)))
    else:
        _snapshot(capture, format, put, part.at, part.device)
