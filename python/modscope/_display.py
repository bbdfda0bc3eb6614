"""Figures as text: lists and aligned tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def divisor(units: str) -> int:
    try:
        return UNITS[units]
    except (KeyError, TypeError):
        raise ValueError(f"Unsupported unit: {units!r}. Supported units are: {', '.join(UNITS)}") from None


def amount(value: int, units: str) -> str:
    return f"{value} B" if units == "B" else f"{value / divisor(units):.2f} {units}"


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts ``layers.2`` before ``layers.10``."""
    parts = filter(None, re.split(r"(\d+)", name))
    return [(0, int(part), "") if part.isdecimal() and len(part) < 20 else (1, 0, part.lower()) for part in parts]


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An aligned table; figures to the right."""
    lines = [tuple(headers), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    rule = "  ".join("=" * width for width in widths)

    def text(line: Sequence[str], heading: bool = False) -> str:
        cells = (
            cell.rjust(width) if re.match(r"-?\d", cell) and not heading else cell.ljust(width)
            for cell, width in zip(line, widths)
        )
        return "  ".join(cells)

    return "\n".join([rule, text(lines[0], True), rule, *(text(line) for line in lines[1:]), rule])


Sums = Mapping[str, int]
Snapshot = Mapping[Any, Sums]


def _shown(snapshot: Snapshot) -> list[tuple[str, Sums]]:
    return [(str(device), sums) for device, sums in snapshot.items() if sums["Total"] > 0]


def lines_of(snapshot: Snapshot, units: str) -> str:
    return "\n".join(
        "\n".join([f"Device: {device}", *(f"\t{key}: {amount(value, units)}" for key, value in sums.items())])
        for device, sums in _shown(snapshot)
    )


def table_of(snapshot: Snapshot, units: str) -> str:
    shown = _shown(snapshot)
    headers = ["Device", *map(str, shown[0][1])]
    return table(headers, ([device, *(amount(v, units) for v in sums.values())] for device, sums in shown))


def snapshot_text(snapshot: Snapshot, units: str, tabulate: bool) -> str:
    divisor(units)
    if not _shown(snapshot):
        return "No memory tracked."
    return table_of(snapshot, units) if tabulate else lines_of(snapshot, units)


def states_text(snapshots: Mapping[Any, Sequence[Snapshot]], units: str, tabulate: bool) -> str:
    """What a module held around its calls."""
    divisor(units)
    if not tabulate:
        parts = []
        for state, taken in snapshots.items():
            parts.append(str(state))
            for i, snapshot in enumerate(taken):
                parts += [f"# {i + 1}:", lines_of(snapshot, units)]
        return "\n".join(parts) + "\n"
    rows: list[list[str]] = []
    words: list[str] = []
    for state, taken in snapshots.items():
        for i, snapshot in enumerate(taken):
            for n, (device, sums) in enumerate(_shown(snapshot)):
                words = list(map(str, sums))
                call = f"{state} # {i + 1}" if n == 0 else ""
                rows.append([call, device, *(amount(v, units) for v in sums.values())])
    return table(["State & Call", "Device", *words], rows)
