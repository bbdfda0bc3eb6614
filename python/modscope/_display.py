"""What ``MemTracker.display_snapshot`` and ``display_modulewise_snapshots`` print: lists and aligned tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modscope._text import bytes_per, size_in


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An aligned table, with its figures aligned to the right."""
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
        "\n".join([f"Device: {device}", *(f"\t{key}: {size_in(value, units)}" for key, value in sums.items())])
        for device, sums in _shown(snapshot)
    )


def table_of(snapshot: Snapshot, units: str) -> str:
    shown = _shown(snapshot)
    headers = ["Device", *map(str, shown[0][1])]
    return table(headers, ([device, *(size_in(v, units) for v in sums.values())] for device, sums in shown))


def snapshot_text(snapshot: Snapshot, units: str, tabulate: bool) -> str:
    bytes_per(units)
    if not _shown(snapshot):
        return "No memory tracked."
    return table_of(snapshot, units) if tabulate else lines_of(snapshot, units)


def states_text(snapshots: Mapping[Any, Sequence[Snapshot]], units: str, tabulate: bool) -> str:
    """The call snapshots of a module, by state."""
    bytes_per(units)
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
                rows.append([call, device, *(size_in(v, units) for v in sums.values())])
    return table(["State & Call", "Device", *words], rows)
