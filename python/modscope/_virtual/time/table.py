"""A table of what operators were measured to take on a GPU: workspace and time.

``modscope calibrate`` writes such a file, and the virtual device looks each operator up in it. A table answers for
exactly the operators that were measured: the same operator with tensors of the same types, shapes and strides."""

from __future__ import annotations

import bisect
import contextlib
import functools
import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent

__all__ = [
    "FORMAT",
    "JobTable",
    "Measured",
    "MeasuredEvents",
    "MeasuredOperator",
    "Table",
    "TableError",
    "Variants",
    "encode",
    "from_truth",
    "load",
    "signature",
]

FORMAT = 1
_GZIP = b"\x1f\x8b"
_MOST_ITEMS = 8
_MOST_BYTES = 1 << 50  # of an event, which is more than any GPU has
_MOST_SECONDS = 1e6  # of an operator
MeasuredEvents = tuple[WorkspaceEvent, ...]
Variants = list[tuple[MeasuredEvents, int]]
"""What the calls of one signature took, in their order: the events, and how many calls in a row took them."""


class TableError(ValueError):
    """A file is not a table that can be used. The text says why."""


class Measured(NamedTuple):
    events: Workspace
    """The workspace; None: it was not measured, and the rules are asked."""
    seconds: float | None
    """How long the operator's kernels take; None: it was not measured."""


# ---- signatures ----


def _number(value: float) -> float:
    """No operator's memory depends on a scale or a learning rate, except that 0 and 1 may be cases of their own."""
    return value if value in (0.0, 1.0) else 0.5


def spec(argument: Any) -> Any:
    """What of an argument decides about memory and time, as JSON has it. Long lists of tensors end with how much they
    leave out."""
    if isinstance(argument, torch.Tensor):
        return [str(argument.dtype)[6:], list(argument.shape), list(argument.stride())]
    if isinstance(argument, (list, tuple)):
        if len(argument) > _MOST_ITEMS and isinstance(argument[0], torch.Tensor):
            left_out = argument[_MOST_ITEMS:]
            elements = sum(tensor.numel() for tensor in left_out)
            return [*map(spec, argument[:_MOST_ITEMS]), f"{len(left_out)} more of {elements} elements"]
        return [spec(item) for item in argument]
    if isinstance(argument, float):
        return _number(argument)
    if isinstance(argument, torch.device):
        return argument.type
    if isinstance(argument, torch.Generator):
        return None
    if isinstance(argument, (torch.UntypedStorage, torch.TypedStorage)):  # its text would have every byte
        return f"storage of {argument.nbytes()} bytes"
    return argument if isinstance(argument, (int, str, type(None))) else str(argument)


def _key(op: str, args: Any, kwargs: dict[str, Any]) -> str:
    return json.dumps([op, args, dict(sorted(kwargs.items()))], separators=(",", ":"))


def signature(op: Any, args: Any, kwargs: dict[str, Any]) -> str:
    """The key of a call, as JSON: the operator, its arguments' specs, its keywords' specs."""
    return _key(str(op), [spec(item) for item in args], {name: spec(value) for name, value in kwargs.items()})


_INDEX_PUT = "aten._index_put_impl_.default"


def _out_of_place(op: str) -> str | None:
    """The form of an operator that makes a result instead of changing an argument. Operators are measured under a
    dispatch mode, and there autograd calls those forms."""
    if op == _INDEX_PUT:
        return "aten.index_put.default"
    name, _, overload = op.rpartition(".")
    return f"{name[:-1]}.{overload}" if name.endswith("_") and not name.endswith("__") else None


# ---- tables ----


class _InTurn:
    """Answers the variants of one signature in the order in which they were measured; the last one holds from then
    on."""

    def __init__(self, variants: Variants) -> None:
        self._variants = variants
        self._at = 0
        self._left = variants[0][1]

    def __call__(self) -> MeasuredEvents:
        events = self._variants[self._at][0]
        self._left -= 1
        if self._left <= 0 and self._at + 1 < len(self._variants):
            self._at += 1
            self._left = self._variants[self._at][1]
        return events


class MeasuredOperator(NamedTuple):
    """A row of a table: an operator with one combination of arguments."""

    op: str
    args: Any
    """The specs of the arguments."""
    kwargs: dict[str, Any]
    """The specs of the keyword arguments."""
    variants: Variants
    seconds: float | None
    """How long its kernels run; None: that was not measured."""


class Table:
    """Measured operators by their signatures."""

    def __init__(self, about: dict[str, Any], rows: Iterable[MeasuredOperator]) -> None:
        self.about = about
        """The GPU and the versions it was measured with: ``gpu``, ``capability``, ``torch``, ``cuda``, ``cudnn``."""
        self._rows: dict[
            str, list[MeasuredOperator]
        ] = {}  # by operator; moved to _found when the operator is first looked up
        self._found: dict[str, Measured] = {}
        for row in rows:
            self._rows.setdefault(row.op, []).append(row)
        self._count = sum(map(len, self._rows.values()))

    def __len__(self) -> int:
        return self._count

    def find(self, op: Any, args: Any, kwargs: Any) -> Measured | None:
        """What was measured of a call; None if no such call was. The virtual device asks once for each combination of
        arguments."""
        name = str(op)
        found = self._lookup(name, args, kwargs)
        if found is None and (other := _out_of_place(name)):
            found = self._lookup(other, args[:4] if name == _INDEX_PUT else args, kwargs)
        return found

    def _lookup(self, op: str, args: Any, kwargs: Any) -> Measured | None:
        for _, args_spec, kwargs_spec, variants, seconds in self._rows.pop(op, ()):
            events = _InTurn(variants) if len(variants) > 1 else variants[0][0] if variants else None
            with contextlib.suppress(RecursionError):  # no arguments are nested so deeply
                self._found[_key(op, args_spec, kwargs_spec)] = Measured(events, seconds)
        return self._found.get(signature(op, args, kwargs))


# ---- files ----


def load(path: str) -> Table:
    """The table in a file that ``modscope calibrate`` wrote. TableError or OSError if it cannot be used."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        content = json.loads(gzip.decompress(data) if data[:2] == _GZIP else data)
    except (ValueError, EOFError, OSError, RecursionError, zlib.error):
        content = None
    if not isinstance(content, dict) or "operators" not in content:
        raise TableError(f"{path} is not a table of operators: make one with  modscope calibrate -o FILE")
    if content.get("format") != FORMAT:
        number = content.get("format")
        raise TableError(
            f"{path} is a table of format {number if isinstance(number, int) else 'unknown'}, and this modscope reads "
            f"format {FORMAT}: make it again with  modscope calibrate -o FILE"
        )
    try:
        return Table(
            {name: value for name, value in content.items() if name != "operators"}, map(_row, content["operators"])
        )
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise TableError(f"{path} is damaged: make it again with  modscope calibrate -o FILE") from None


def _row(row: list[Any]) -> MeasuredOperator:
    """What is wrong in a row is found now, and not while a script runs."""
    op, args, kwargs, runs, seconds = row
    if not isinstance(op, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise TypeError("an operator has a name, a list of arguments and an object of keywords")
    if seconds is not None and not 0 <= float(seconds) <= _MOST_SECONDS:
        raise ValueError("a time is a number of seconds")
    return MeasuredOperator(op, args, kwargs, _variants(runs), seconds)


def _variants(runs: list[Any] | None) -> Variants:
    return [
        (tuple(_event(str(what), int(bytes)) for what, bytes in events), int(times)) for events, times in runs or ()
    ]


def _event(what: str, bytes: int) -> WorkspaceEvent:
    if what not in ("temporary", "kept", "result") or abs(bytes) > _MOST_BYTES:
        raise ValueError("an event takes or gives back some bytes, or is a result")
    return what, bytes


def encode(path: str, about: dict[str, Any], rows: Iterable[MeasuredOperator]) -> bytes:
    """What the file of a table holds, compressed if the name ends with .gz."""
    operators = [[op, args, kwargs, variants or None, seconds] for op, args, kwargs, variants, seconds in rows]
    data = json.dumps({"format": FORMAT, **about, "operators": operators}, separators=(",", ":")).encode()
    return gzip.compress(data, mtime=0) if path.endswith(".gz") else data


# ---- measurements of jobs: for the tests and benchmarks of predictions ----

_WORKSPACES = (33_554_432, 1_048_576)
"""The sizes of the workspaces of cuBLAS and cuBLASLt on an H200 (see rules/matrix_products.py)."""


class JobTable(Table):
    """The operators of one training job, measured step by step on a GPU. It is complete: an operator that is not in it
    takes its results only, and the workspaces that products keep are among its events."""

    def __init__(self, rows: dict[str, list[tuple[MeasuredEvents, list[int]]]]) -> None:
        super().__init__({}, ())
        self._measured = rows
        self._step = 0
        self.used: set[str] = set()

    def __len__(self) -> int:
        return len(self._measured)

    def begin_step(self, step: int) -> None:
        """A step begins; 0 is the first one, to which making the model belongs too."""
        self._step = step

    def find(self, op: Any, args: Any, kwargs: Any) -> Measured:
        for name in filter(None, (str(op), _out_of_place(str(op)))):
            key = _as_measured(signature(name, args[:4] if "index_put" in name else args, kwargs))
            variants = self._measured.get(key)
            if variants is not None:
                self.used.add(key)
                return Measured(functools.partial(self._next, variants), None)
        return Measured((), None)

    def unused(self) -> set[str]:
        return set(self._measured) - self.used

    def _next(self, variants: list[tuple[MeasuredEvents, list[int]]]) -> MeasuredEvents:
        for events, left in variants:
            if self._step < len(left) and left[self._step] > 0:
                left[self._step] -= 1
                return events
        return ()


def _shorten(value: Any) -> Any:
    """The measurements have the first items of long lists only, and the floats as they were."""
    if isinstance(value, list):
        return [_shorten(item) for item in value[:_MOST_ITEMS]]
    return _number(value) if isinstance(value, float) else value


def _as_measured(key: str) -> str:
    op, args, kwargs = json.loads(key)
    return _key(op, _shorten(args), {name: _shorten(value) for name, value in kwargs.items()})


def _requested(block: int, sizes: Sequence[int]) -> int:
    """The size that was requested of a block, which may be up to 1 MiB larger: the largest of ``sizes`` that it can
    be."""
    at = bisect.bisect_right(sizes, block)
    return sizes[at - 1] if at and block - sizes[at - 1] <= 1 << 20 else block


def _job_events(events: list[tuple[str, int]], sizes: Sequence[int]) -> MeasuredEvents:
    """The measurements tell results by their addresses: a block that is freed at such an address was a temporary
    one."""
    freed = [-bytes for what, bytes in events if what == "tmp" and bytes < 0]
    converted: list[tuple[str, int]] = []
    for what, block in events:
        bytes = _requested(block, sizes) if block > 0 else -_requested(-block, sizes)
        if what == "out" and bytes > 0:
            converted.append(("result", bytes))
        elif what == "out":
            if ("result", -bytes) in converted:
                converted[converted.index(("result", -bytes))] = ("temporary", -bytes)
                converted.append(("temporary", bytes))
        else:
            converted.append(("kept" if block in _WORKSPACES and block not in freed else "temporary", bytes))
    return tuple(converted)


def from_truth(path: str, requested: Iterable[int] = ()) -> JobTable:
    """The table of a job whose operators were measured: rows of operator, argument specs, keyword specs, events, and
    how often they were seen in each step. The events have the sizes of blocks; ``requested`` are sizes that the job
    requested."""
    sizes = sorted({max(512, -(-bytes // 512) * 512) for bytes in requested})
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    rows: dict[str, list[tuple[MeasuredEvents, list[int]]]] = {}
    for op, args, kwargs, events, times in content:
        key = _key(op, _shorten(args), {name: _shorten(value) for name, value in kwargs.items()})
        rows.setdefault(key, []).append((_job_events(events, sizes), list(times)))
    return JobTable(rows)
