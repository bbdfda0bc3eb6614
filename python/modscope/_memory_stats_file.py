"""The files that ``MemoryTracker.save_stats`` writes, of modscope and of torch: a pickle of plain data."""

from __future__ import annotations

import collections
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Rows = dict[int, tuple[str, float]]

# What torch's own files refer to, beside plain data: the types of its dicts.
_ALLOWED: dict[tuple[str, str], type] = {
    ("collections", "defaultdict"): collections.defaultdict,
    ("builtins", "int"): int,
}


@dataclass
class Stats:
    """What a ``MemoryTracker`` has recorded."""

    memories_allocated: Rows = field(default_factory=dict)
    memories_active: Rows = field(default_factory=dict)
    memories_reserved: Rows = field(default_factory=dict)
    markers: dict[str, int] = field(default_factory=dict)
    num_alloc_retries: int = 0
    op_index: int = 0
    allocated_at_start: float | None = None
    """MiB before the first operator; None where it is not known."""

    def growth(self) -> Iterator[tuple[str, float]]:
        """Each operator's name, and how much more was allocated after it than after the one before."""
        before = self.allocated_at_start
        for name, allocated in self.memories_allocated.values():
            if before is not None:
                yield name, allocated - before
            before = allocated

    def operator_counts(self) -> dict[str, int]:
        """How many operators have each name."""
        return collections.Counter(_parts(name)[1] for name, _ in self.memories_allocated.values())

    def last_position(self) -> str:
        """The module and the phase of the last operator; "" if there is none."""
        rows = self.memories_allocated
        return _parts(rows[max(rows)][0])[0] if rows else ""


def _parts(name: str) -> tuple[str, str]:
    """ "layers.0.forward.addmm.default_3" is ("layers.0.forward", "addmm.default")."""
    without_number = name.rpartition("_")[0] or name
    position, _, overload = without_number.rpartition(".")
    position, _, operator = position.rpartition(".")
    return position, f"{operator}.{overload}" if operator else overload


def write(path: str | os.PathLike[str], stats: Stats) -> None:
    content = pickle.dumps(dict(vars(stats)), pickle.HIGHEST_PROTOCOL)
    with open(path, "wb") as file:
        file.write(content)


class _PlainUnpickler(pickle.Unpickler):
    """Refuses everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, and only plain data is read")
        return allowed


def read(path: str | os.PathLike[str]) -> Stats:
    """OSError if the file cannot be read, ValueError if it is not a file of ``save_stats``."""
    with open(path, "rb") as file:
        try:
            content = _PlainUnpickler(file).load()
        except OSError:
            raise
        except Exception as error:  # a damaged pickle raises anything
            raise _refusal(path, f"it is not a pickle of plain data ({error})") from None
    why = _what_is_wrong(content)
    if why:
        raise _refusal(path, why)
    stats = Stats(**{name: content[name] for name in Stats.__dataclass_fields__ if name in content})
    for name in ("memories_allocated", "memories_active", "memories_reserved"):
        setattr(stats, name, {number: (row[0], float(row[1])) for number, row in sorted(content[name].items())})
    stats.markers = dict(stats.markers)
    stats.op_index = len(stats.memories_allocated)  # files of torch before 2.15 do not have it
    return stats


def _refusal(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(f"{os.fspath(path)!r} cannot be loaded: {why}. Load a file that MemoryTracker.save_stats wrote.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_row(number: object, row: object) -> bool:
    return (
        type(number) is int
        and isinstance(row, tuple)
        and len(row) == 2
        and isinstance(row[0], str)
        and _is_number(row[1])
    )


def _what_is_wrong(content: object) -> str:
    """Why it is not what ``save_stats`` writes; "" if it is."""
    if not isinstance(content, dict):
        return f"it holds a {type(content).__name__} instead of a dict"
    for name in ("memories_allocated", "memories_active", "memories_reserved"):
        rows = content.get(name)
        if not isinstance(rows, dict):
            return f"it has no dict {name!r}"
        if not all(_is_row(number, row) for number, row in rows.items()):
            return f"{name!r} is not a dict of numbers to pairs of a name and a number"
        if rows.keys() != content["memories_allocated"].keys():
            return f"{name!r} and 'memories_allocated' are not of the same operators"
    markers = content.get("markers")
    if not isinstance(markers, dict) or not all(isinstance(k, str) and type(v) is int for k, v in markers.items()):
        return "'markers' is not a dict of names to numbers"
    if type(content.get("num_alloc_retries")) is not int:
        return "'num_alloc_retries' is not a number"
    if not (content.get("allocated_at_start") is None or _is_number(content["allocated_at_start"])):
        return "'allocated_at_start' is not a number"
    return ""
