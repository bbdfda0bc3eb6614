"""The collectives of a capture as the page draws them. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modscope._load import Capture
from modscope._text import clean, counted

__all__ = ["collectives_of_page"]

_MOST = 20_000  # that a page has; each takes about ten bytes of it


def collectives_of_page(
    capture: Capture, first: int, last: int | None, modules: Sequence[str]
) -> dict[str, Any] | None:
    """Those that were launched between two moments, as columns; None if there are none. ``modules``: the page's names."""
    found = [one for one in capture.collectives() if one.event > first and (last is None or one.event <= last + 1)]
    if not found:
        return None
    shown = found[:_MOST]
    kinds = sorted({one.kind for one in shown})
    groups = list(dict.fromkeys(one.group for one in shown))
    numbers = {name: i for i, name in enumerate(modules)}
    return {
        "kinds": kinds,
        "groups": [
            clean(f"{counted(group.size, 'rank')} ({group.ranks}) of {group.name} over {group.backend}")
            if group.size
            else "an unknown group"
            for group in groups
        ],
        "event": [one.event for one in shown],
        "time": [round(one.time * 1e6) for one in shown],
        "nanoseconds": [round((one.seconds or 0) * 1e9) for one in shown],
        "timing": [one.timing or "" for one in shown],
        "bytes": [one.bytes for one in shown],
        "kind": [kinds.index(one.kind) for one in shown],
        "group": [groups.index(one.group) for one in shown],
        "module": [numbers.get(one.module, -1) for one in shown],
        "phase": [one.phase for one in shown],
        "left_out": len(found) - len(shown),
    }
