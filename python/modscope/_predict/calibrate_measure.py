"""Measure operators while a program runs: the workspace of each, and the time of its kernels.

A dispatch mode sees every operator, in backward too, as autograd's threads inherit it. Around each call it reads how
many blocks the allocator has allocated and freed so far. These counts place the call in the allocator's own trace,
which has the sizes that were requested."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torch
from modscope._virtual.time.table import MeasuredEvents, MeasuredOperator, Variants, signature

__all__ = ["MeasuredCall", "CudaMeter", "Measuring", "Meter", "TraceEntry", "events_of_calls"]

_CALLS_AT_ONCE = 4096
_MOST_VARIANTS = 16
_SLEEP_CYCLES = 300_000  # about 150 microseconds
PRODUCTS = frozenset(
    f"aten.{name}"
    for name in (
        "mm.default addmm.default bmm.default baddbmm.default addbmm.default mv.default addmv.default dot.default "
        "vdot.default "
        "_addmm_activation.default _int_mm.default _scaled_mm.default _grouped_mm.default"
    ).split()
)
"""Operators that take cuBLAS's workspaces, which are kept. The rules know when, so a table leaves these out."""


class Count(NamedTuple):
    """How many blocks were allocated and freed so far."""

    allocated: int
    freed: int


class TraceEntry(NamedTuple):
    is_alloc: bool
    address: int
    bytes: int
    """As requested."""


class MeasuredCall(NamedTuple):
    """A call of an operator that was measured."""

    key: str
    begin: Count
    end: Count
    results: frozenset[int]
    """The addresses of the storages of its results and arguments when it ended."""
    timing: Any
    """What the meter's ``time_begins`` returned."""


class Meter(Protocol):
    """What is measured with; a GPU, or numbers in a test."""

    def start_trace(self) -> Count: ...

    def take_trace(self) -> list[TraceEntry]:
        """The entries since the last ``start_trace``."""

    def count(self) -> Count: ...

    def time_begins(self) -> Any: ...

    def time_ends(self, timing: Any) -> None: ...

    def seconds(self, timing: Any) -> float:
        """The seconds of the call. It is asked for after ``take_trace``."""


# ---- from the trace to events ----


def events_of_calls(calls: Sequence[MeasuredCall], began: Count, trace: Sequence[TraceEntry]) -> list[MeasuredEvents]:
    """The events of each call. ``began`` was the count when the trace began; the calls are in their order, one at a
    time."""
    entries = _numbered(began, trace)
    number, entry = next(entries)
    events = []
    for call in calls:
        while entry is not None and _is_before(number, entry, call.begin):
            number, entry = next(entries)
        inside = []
        while entry is not None and _is_before(number, entry, call.end):
            inside.append(entry)
            number, entry = next(entries)
        events.append(_events(inside, call.results))
    return events


def _numbered(began: Count, trace: Sequence[TraceEntry]) -> Iterator[tuple[int, TraceEntry | None]]:
    allocated, freed = began
    for entry in trace:
        yield (allocated if entry.is_alloc else freed), entry
        allocated, freed = allocated + entry.is_alloc, freed + (not entry.is_alloc)
    while True:
        yield 0, None


def _is_before(number: int, entry: TraceEntry, count: Count) -> bool:
    return number < (count.allocated if entry.is_alloc else count.freed)


def _events(inside: list[TraceEntry], results: frozenset[int]) -> MeasuredEvents:
    """Blocks that were there before the call and are freed in it belong to the program around it: they are left out."""
    live: dict[int, int] = {}
    events: list[tuple[str, int]] = []
    for entry in inside:
        if entry.is_alloc:
            live[entry.address] = len(events)
            events.append(("temporary", entry.bytes))
        elif entry.address in live:
            events.append(("temporary", -events[live.pop(entry.address)][1]))
    for address, at in live.items():
        events[at] = ("result" if address in results else "kept", events[at][1])
    return tuple(events)


# ---- operators ----


class _Operator:
    """What was measured of one signature."""

    def __init__(self) -> None:
        self.variants: Variants = []
        self.seconds: list[float] = []

    def add(self, events: MeasuredEvents, seconds: float) -> None:
        self.seconds.append(seconds)
        if self.variants and self.variants[-1][0] == events:
            self.variants[-1] = (events, self.variants[-1][1] + 1)
        elif len(self.variants) < _MOST_VARIANTS:
            self.variants.append((events, 1))
        else:
            self.variants[-1] = (events, 1)


class Measuring(TorchDispatchMode):
    """Measures the operators that run while it is entered. ``rows`` are what a table is written from."""

    def __init__(self, meter: Meter, after_call: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._meter = meter
        self._after_call = after_call
        self._pid = os.getpid()
        self._operators: dict[str, _Operator] = {}
        self._calls: list[MeasuredCall] = []
        self._began = meter.start_trace()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or os.getpid() != self._pid:  # a forked process, such as a data loader's, has no GPU
            return func(*args, **kwargs)
        key = signature(func, args, kwargs)
        begin, timing = self._meter.count(), self._meter.time_begins()
        result = func(*args, **kwargs)
        self._meter.time_ends(timing)
        end = self._meter.count()
        addresses = _addresses((result, args, kwargs))
        if addresses:
            self._calls.append(MeasuredCall(key, begin, end, addresses, timing))
            if len(self._calls) >= _CALLS_AT_ONCE:
                self.flush()
        self._after_call()
        return result

    def flush(self) -> None:
        """Read the trace of the calls so far."""
        trace = self._meter.take_trace()
        for call, events in zip(self._calls, events_of_calls(self._calls, self._began, trace), strict=True):
            self._operators.setdefault(call.key, _Operator()).add(events, self._meter.seconds(call.timing))
        self._calls.clear()
        self._began = self._meter.start_trace()

    def rows(self) -> list[MeasuredOperator]:
        self.flush()
        rows: list[MeasuredOperator] = []
        for key, operator in sorted(self._operators.items()):
            op, args, kwargs = json.loads(key)
            seconds = float(f"{statistics.median(operator.seconds):.3g}")
            rows.append(MeasuredOperator(op, args, kwargs, _known_variants(op, operator.variants), seconds))
        return rows


def _known_variants(op: str, variants: Variants) -> Variants:
    """None for a product that takes its results only: the rules know of its workspace."""
    if op not in PRODUCTS:
        return variants
    if all(what in ("result", "kept") for events, _ in variants for what, _ in events):
        return []
    return [(tuple([event for event in events if event[0] != "kept"]), times) for events, times in variants]


def _addresses(values: Any) -> frozenset[int]:
    return frozenset(
        value.untyped_storage().data_ptr()
        for value in tree_leaves(values)
        if isinstance(value, torch.Tensor) and value.device.type == "cuda" and value.layout == torch.strided
    )


# ---- the GPU ----


class CudaMeter:
    """Measures on the current CUDA device."""

    def __init__(self) -> None:
        torch.cuda.init()
        self._device = torch.cuda.current_device()
        self._skip = 0
        _take_workspaces()

    def start_trace(self) -> Count:
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", context=None)
        self._skip = len(self._trace())
        return self.count()

    def take_trace(self) -> list[TraceEntry]:
        torch.cuda.synchronize()
        return [
            TraceEntry(entry["action"] == "alloc", entry["addr"], entry["size"])
            for entry in self._trace()[self._skip :]
            if entry["action"] in ("alloc", "free_requested")
        ]

    def _trace(self) -> list[Any]:
        traces: list[list[Any]] = torch.cuda.memory._snapshot()["device_traces"]
        return traces[self._device] if self._device < len(traces) else []

    def count(self) -> Count:
        blocks = torch._C._cuda_memoryStats(self._device)["allocation"]["all"]
        return Count(blocks["allocated"], blocks["freed"])

    def time_begins(self) -> tuple[Any, Any]:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # the GPU waits until the kernels are queued, so launching them is not measured
        torch.cuda._sleep(_SLEEP_CYCLES)
        begin.record()
        return begin, end

    def time_ends(self, timing: tuple[Any, Any]) -> None:
        timing[1].record()

    def seconds(self, timing: tuple[Any, Any]) -> float:
        return float(timing[0].elapsed_time(timing[1])) / 1000

    def close(self) -> None:
        torch.cuda.memory._record_memory_history(None)


def _products() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.zeros(256, 256, device="cuda", dtype=dtype)
        torch.mm(a, a)
        torch.addmm(a[0], a, a)
        torch.nn.functional.linear(a, a, a[0])


class _ProductsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        _products()
        return gradient


def _take_workspaces() -> None:
    """cuBLAS takes a workspace at a thread's first product. Take it for this thread and for autograd's before anything
    is measured."""
    _products()
    _ProductsInBackward.apply(torch.zeros(8, device="cuda", requires_grad=True)).sum().backward()
    torch.cuda.synchronize()
