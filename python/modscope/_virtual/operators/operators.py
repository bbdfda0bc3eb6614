"""Run operators on the virtual device: nothing is computed, only the results' shapes, strides and types are.

These are torch's own: each operator is called once with tensors on the device "meta" for each combination of arguments,
and what it returned is remembered. Results get memory from the virtual device's allocator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from modscope import _native
from modscope._virtual.certainty import SOURCES
from modscope._virtual.operators import fakes
from modscope._virtual.operators.geometry import contiguous_strides
from modscope._virtual.operators.shapes import SHAPES
from modscope._virtual.operators.unknown import KernelError, unknown_kernel

__all__ = [
    "OperatorCosts",
    "Workspace",
    "WorkspaceEvent",
    "WorkspaceEvents",
    "check_ordinal",
    "contiguous_strides",
    "empty_like_meta",
    "give_kept_back",
    "infer_on_meta",
    "key_of_call",
    "make",
    "meta_arguments",
    "on_device",
    "run",
    "spec_of",
    "start",
    "take_and_give_back",
    "taken",
    "to_meta",
    "with_tensors",
]

_MOST_REMEMBERED = 200_000
Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""A tensor's shape, strides and type."""


class _Mutated(NamedTuple):
    """A result that is one of the arguments."""

    position: int
    name: str
    is_out: bool
    """The argument is ``out=``: it is resized to the result."""


class _Schema:
    """What an operator's schema says of all its calls: which results are arguments, and the order of the results."""

    def __init__(self, op: Any) -> None:
        schema = op._schema
        self.returns: list[_Mutated | None] = []
        for returned in schema.returns:
            alias = returned.alias_info
            mutated = None
            if alias is not None and alias.is_write:
                for position, argument in enumerate(schema.arguments):
                    other = argument.alias_info
                    if other is not None and other.is_write and other.before_set == alias.before_set:
                        mutated = _Mutated(position, argument.name, argument.kwarg_only)
            self.returns.append(mutated)
        self.mutates_only = all(m is not None and not m.is_out for m in self.returns)
        """Every result is an argument, or there is none: nothing is made."""
        self.order = costs.order(op)


_schemas: dict[Any, _Schema] = {}
_remembered: dict[Any, _RememberedCall] = {}
out_of_memory: Callable[[int], BaseException] = lambda bytes: torch.OutOfMemoryError(f"no memory for {bytes} bytes")


device_count = 1
"""How many virtual GPUs there are."""


def check_ordinal(index: int) -> None:
    """Raise what torch raises for a device that is not there."""
    if index >= device_count:
        there = f"are {device_count} virtual GPUs, up to" if device_count > 1 else "is one virtual GPU:"
        raise getattr(torch, "AcceleratorError", RuntimeError)(
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
            f"(There {there} cuda:{device_count - 1}.)"
        )


@contextlib.contextmanager
def on_device(index: int | None) -> Iterator[None]:
    """Make a device the current one meanwhile; None: the current one stays."""
    if index is None:
        yield
        return
    check_ordinal(index)
    before = _native.virtual_set_device(index)
    try:
        yield
    finally:
        _native.virtual_set_device(before)


def make(size: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """A new tensor of the virtual device."""
    tensor = _native.virtual_empty(size, strides, dtype, dtype.itemsize)
    if tensor is None:
        bytes = dtype.itemsize
        for count in size:
            bytes *= count
        raise out_of_memory(bytes)
    return tensor


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def empty_like_meta(meta: torch.Tensor) -> torch.Tensor:
    return make(meta.shape, meta.stride(), meta.dtype)


def _meta_argument(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return to_meta(argument)
    if isinstance(argument, (list, tuple)):
        return [_meta_argument(item) for item in argument]
    if isinstance(argument, torch.device):
        return torch.device("meta")
    if isinstance(argument, torch.Generator):
        return None
    return argument


def meta_arguments(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operator with tensors on the device "meta"."""
    return [_meta_argument(a) for a in args], {name: _meta_argument(a) for name, a in kwargs.items()}


def with_tensors(op: Any, args: Any) -> list[Any]:
    """The arguments of an operator, with tensors in place of numbers where its schema has tensors: torch gives a kernel
    a tensor that was made of a number as that number."""
    return [
        torch.tensor(a) if isinstance(a, (int, float, complex)) and isinstance(argument.type, torch.TensorType) else a
        for a, argument in zip(args, op._schema.arguments, strict=False)
    ]


def _key(argument: Any) -> Any:
    """The part of an argument on which the specs of results depend."""
    if isinstance(argument, torch.Tensor):
        return (argument.shape, argument.stride(), argument.dtype)
    if isinstance(argument, (list, tuple)):
        return tuple([_key(item) for item in argument])
    if isinstance(argument, torch.Generator):
        return None
    if isinstance(argument, (int, float)):
        return (type(argument), argument)
    return argument


def key_of_call(op: Any, args: Any, kwargs: Any) -> Any:
    """What the specs of an operator's results depend on, its workspace and its time."""
    return (op, _key(args), tuple([(name, _key(a)) for name, a in kwargs.items()]) if kwargs else ())


def spec_of(result: Any) -> Any:
    """The specs of what an operator returned, in the same lists."""
    if isinstance(result, torch.Tensor):
        return (result.shape, result.stride(), result.dtype)
    if isinstance(result, (list, tuple)):
        return [spec_of(item) for item in result]
    return result


inferences: dict[Any, Callable[[Any, Any], Any]] = {}
"""Operators for which the meta device gives other results than a GPU, and the functions that return the specs of their
results. Where such a function returns a tensor instead of a spec, that tensor is the result."""


def _infer(op: Any, args: Any, kwargs: Any) -> Any:
    inference = inferences.get(op)
    return infer_on_meta(op, args, kwargs) if inference is None else inference(args, kwargs)


def infer_on_meta(op: Any, args: Any, kwargs: Any) -> Any:
    """The specs of the results, from the operator's function in SHAPES, its registered fake kernel, or the meta
    device."""
    function = SHAPES.get(str(op)) or fakes.find(op) or op
    meta_args = [_meta_argument(a) for a in with_tensors(op, args)]
    try:
        with fakes.sizes_known(meta_args):
            return spec_of(function(*meta_args, **{name: _meta_argument(a) for name, a in kwargs.items()}))
    except RuntimeError as error:  # NotImplementedError is one
        if isinstance(out := kwargs.get("out"), torch.Tensor) and isinstance(error, NotImplementedError):
            return spec_of(out)  # some operators have a meta kernel for new results only
        if not isinstance(error, KernelError) and (
            isinstance(error, NotImplementedError) or "no fake impl" in str(error)
        ):
            raise unknown_kernel(op.name()) from error
        raise


def _realize(spec: Any) -> Any:
    if isinstance(spec, tuple):
        return make(*spec)
    if isinstance(spec, list):
        return [_realize(item) for item in spec]
    return spec


def _argument(mutated: _Mutated, args: Any, kwargs: Any) -> Any:
    return kwargs[mutated.name] if mutated.name in kwargs else args[mutated.position]


def _resize_out(out: torch.Tensor, spec: Spec) -> torch.Tensor:
    if tuple(out.shape) != tuple(spec[0]):
        out.data = make(spec[0], spec[1], out.dtype)
    return out


WorkspaceEvent = tuple[str, int]
"""One event while an operator runs. ``("temporary", bytes)`` takes a block, and with negative bytes gives back one of
that size; ``("kept", bytes)`` takes a block that is never given back, such as a workspace; ``("result", bytes)`` is the
moment at which the next result is made, whose size comes from its spec. A source of certainty.SOURCES in place of
"temporary" says where the size comes from, if not from an exact rule. Temporary blocks that are left are given back
when the operator ends."""
WorkspaceEvents = Sequence[WorkspaceEvent]
Workspace = WorkspaceEvents | Callable[[], WorkspaceEvents] | None
"""The workspace of an operator: the memory that it takes in addition to its results. It is a list of events, or a
function that is called at each call, where calls differ: only the first matrix product of a thread takes cuBLAS's
workspace. None: the operator takes its results only."""


_SOURCES = {source: number for number, source in enumerate(SOURCES, 1)}
"""The numbers of sources in C (MST_SOURCES). 0 is a tensor."""

_kept: list[int] = []
"""Handles of blocks that are kept."""


def give_kept_back() -> None:
    """What operators keep is given back: cuBLAS's workspaces."""
    while _kept:
        _native.virtual_give(_kept.pop())


class _WorkspaceBlocks:
    """Take and give back the blocks of an operator's workspace, in the order of the events."""

    def __init__(self, events: WorkspaceEvents) -> None:
        self._events = events
        self._at = 0
        self._taken: list[tuple[int, int]] = []

    def before_result(self) -> None:
        """Perform the events up to the next result."""
        while self._at < len(self._events):
            what, bytes = self._events[self._at]
            self._at += 1
            if what == "result":
                return
            self._change(what, bytes)

    def end(self) -> None:
        while self._at < len(self._events):
            self.before_result()
        for _, handle in self._taken:
            _native.virtual_give(handle)

    def _change(self, what: str, bytes: int) -> None:
        if bytes > 0:
            handle = _native.virtual_take(bytes, _SOURCES.get(what, 1))
            if handle is None:
                raise out_of_memory(bytes)
            if what == "kept":
                _kept.append(handle)
            else:
                self._taken.append((bytes, handle))
            return
        for i, (size, handle) in enumerate(self._taken):
            if size == -bytes:
                _native.virtual_give(handle)
                del self._taken[i]
                return


@contextlib.contextmanager
def taken(events: WorkspaceEvents) -> Iterator[None]:
    """Take memory while a kernel runs that makes its results by itself."""
    if not events:
        yield
        return
    blocks = _WorkspaceBlocks(events)
    blocks.before_result()
    try:
        yield
    finally:
        blocks.end()


def take_and_give_back(events: WorkspaceEvents) -> None:
    """Take the memory of a kernel that makes no result, and give it back."""
    _WorkspaceBlocks(events).end()


class OperatorCosts:
    """What operators cost in workspace and time. It is asked once for each combination of arguments. This class answers
    while no device is installed: operators cost nothing."""

    def events(self, op: Any, args: Any, kwargs: Any, specs: Any) -> Workspace:
        return None

    def order(self, op: Any) -> tuple[int, ...] | None:
        """The numbers of the results in the order in which they are made, if that is not the order of the schema."""
        return None

    def seconds(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        return 0.0

    def advance(self, seconds: float) -> None:
        """Called after an operator that takes this long."""


costs = OperatorCosts()


class _RememberedCall(NamedTuple):
    """What is remembered of an operator with one combination of arguments."""

    specs: Any
    events: Workspace
    seconds: float


def _call(schema: _Schema, op: Any, args: Any, kwargs: Any) -> _RememberedCall:
    key = key_of_call(op, args, kwargs)
    call = _remembered.get(key)
    if call is None:
        if len(_remembered) > _MOST_REMEMBERED:
            _remembered.clear()
        specs = None if schema.mutates_only else _infer(op, args, kwargs)
        call = _remembered[key] = _RememberedCall(
            specs, costs.events(op, args, kwargs, specs), costs.seconds(op, args, kwargs, specs)
        )
    return call


def _workspace_blocks(call: _RememberedCall) -> _WorkspaceBlocks | None:
    events = call.events() if callable(call.events) else call.events
    return _WorkspaceBlocks(events) if events else None


def _result(spec: Any, mutation: _Mutated | None, args: Any, kwargs: Any) -> Any:
    if mutation is None:
        return _realize(spec)
    argument = _argument(mutation, args, kwargs)
    return _resize_out(argument, spec) if mutation.is_out else argument


def _results(
    schema: _Schema, call: _RememberedCall, blocks: _WorkspaceBlocks | None, args: Any, kwargs: Any
) -> list[Any]:
    specs = [call.specs] if len(schema.returns) == 1 else call.specs
    results: list[Any] = [None] * len(schema.returns)
    for i in schema.order or range(len(specs)):
        if blocks is not None:
            blocks.before_result()
        results[i] = _result(specs[i], schema.returns[i], args, kwargs)
    return results


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    schema = _schemas.get(op)
    if schema is None:
        schema = _schemas[op] = _Schema(op)
    call = _call(schema, op, args, kwargs)
    blocks = _workspace_blocks(call)
    if schema.mutates_only:
        results = [_argument(m, args, kwargs) for m in schema.returns if m is not None]
    else:
        results = _results(schema, call, blocks, args, kwargs)
    if blocks is not None:
        blocks.end()
    costs.advance(call.seconds)
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


class StartedOperator(_WorkspaceBlocks):
    """An operator whose results a kernel makes by itself: it calls ``before_result`` before each, and ``end``."""

    def __init__(self, events: WorkspaceEvents, seconds: float) -> None:
        super().__init__(events)
        self._seconds = seconds

    def end(self) -> None:
        super().end()
        costs.advance(self._seconds)


def start(op: Any, args: Any, kwargs: Any, specs: Any = None) -> StartedOperator:
    """Begin an operator whose kernel makes its results by itself."""
    events = costs.events(op, args, kwargs, specs)
    return StartedOperator((events() if callable(events) else events) or (), costs.seconds(op, args, kwargs, specs))


def forget() -> None:
    """Forget what is remembered of operators: it holds for the installed device only."""
    _schemas.clear()
    _remembered.clear()
    _kept.clear()
