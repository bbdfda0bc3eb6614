"""Run operators on the virtual device: nothing is computed, only the results' shapes, strides and types are.

These are torch's own: each operator is called once with tensors on the device "meta" for each combination of arguments,
and what it returned is remembered. Results get memory from the virtual device's allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from modscope import _native
from modscope._virtual.shapes import SHAPES

__all__ = ["contiguous_strides", "empty_like_meta", "make", "run", "to_meta"]

_MOST_REMEMBERED = 200_000
Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


class _Mutated(NamedTuple):
    """A result that is one of the arguments."""

    position: int
    name: str
    is_out: bool
    """The argument is ``out=``: it is resized to the result."""


class _Plan:
    """What does not change between the calls of an operator."""

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
        self.mutates_only = bool(self.returns) and all(m is not None and not m.is_out for m in self.returns)
        """Every result is an argument: nothing is made."""


_plans: dict[Any, _Plan] = {}
_remembered: dict[Any, Any] = {}
out_of_memory: Callable[[int], BaseException] = lambda bytes: torch.OutOfMemoryError(f"no memory for {bytes} bytes")


def contiguous_strides(size: Any) -> list[int]:
    strides = [1] * len(size)
    for i in range(len(size) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(size[i + 1], 1)
    return strides


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


def _key(argument: Any) -> Any:
    """What of an argument decides about the result."""
    if isinstance(argument, torch.Tensor):
        return (argument.shape, argument.stride(), argument.dtype)
    if isinstance(argument, (list, tuple)):
        return tuple([_key(item) for item in argument])
    if isinstance(argument, torch.Generator):
        return None
    if isinstance(argument, (int, float)):
        return (type(argument), argument)
    return argument


def _spec(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return (result.shape, result.stride(), result.dtype)
    if isinstance(result, (list, tuple)):
        return [_spec(item) for item in result]
    return result


def with_tensors(op: Any, args: Any) -> list[Any]:
    """The arguments of an operator, with tensors in place of numbers where its schema has tensors: torch gives a kernel a
    tensor that was made of a number as that number."""
    return [
        torch.tensor(a) if isinstance(a, (int, float, complex)) and isinstance(argument.type, torch.TensorType) else a
        for a, argument in zip(args, op._schema.arguments, strict=False)
    ]


class NoShape(NotImplementedError):
    """An operator has no kernel that tells the shapes of its results."""


def _infer(op: Any, args: Any, kwargs: Any) -> Any:
    """The specs of the results."""
    function = SHAPES.get(op, op)
    meta_args = [_meta_argument(a) for a in with_tensors(op, args)]
    try:
        return _spec(function(*meta_args, **{name: _meta_argument(a) for name, a in kwargs.items()}))
    except NotImplementedError as error:
        if isinstance(error, NoShape):
            raise
        raise NoShape(
            f"the virtual GPU cannot tell what the operator {op} returns: torch has no fake kernel for it. Register one before "
            f"the operator is called: @torch.library.register_fake({op._schema.name!r}), a function of the same arguments that "
            f"returns empty tensors of the results' shapes and types."
        ) from error


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


class _BesideResults:
    """The memory that an operator takes beside its results, as ``hidden_memory`` lists it: ``("temporary", bytes)`` takes,
    and with negative bytes gives back; ``("kept", bytes)`` takes for good, as a workspace; ``("result", bytes)`` is a result."""

    def __init__(self, events: Sequence[tuple[str, int]]) -> None:
        self._events = events
        self._at = 0
        self._taken: list[tuple[int, int]] = []

    def before_result(self) -> None:
        """Do what comes before the next result."""
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
            handle = _native.virtual_take(bytes)
            if handle is None:
                raise out_of_memory(bytes)
            if what == "temporary":
                self._taken.append((bytes, handle))
            return
        for i, (size, handle) in enumerate(self._taken):
            if size == -bytes:
                _native.virtual_give(handle)
                del self._taken[i]
                return


hidden_memory: Callable[[Any, Any, Any], Sequence[tuple[str, int]] | None] | None = None
"""What an operator with these arguments takes beside its results, in order; None: nothing."""


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The results of an operator."""
    plan = _plans.get(op)
    if plan is None:
        plan = _plans[op] = _Plan(op)
    if plan.mutates_only:
        hidden = hidden_memory(op, args, kwargs) if hidden_memory is not None else None
        if hidden:
            _BesideResults(hidden).end()
        mutated = [_argument(m, args, kwargs) for m in plan.returns if m is not None]
        return mutated[0] if len(mutated) == 1 else tuple(mutated)
    key: Any = (op, _key(args), tuple([(name, _key(a)) for name, a in kwargs.items()]) if kwargs else ())
    specs = _remembered.get(key, _remembered)
    if specs is _remembered:
        if len(_remembered) > _MOST_REMEMBERED:
            _remembered.clear()
        specs = _remembered[key] = _infer(op, args, kwargs)
    if len(plan.returns) == 0:
        return None
    one = len(plan.returns) == 1
    hidden = hidden_memory(op, args, kwargs) if hidden_memory is not None else None
    beside = _BesideResults(hidden) if hidden else None
    results = []
    for spec, mutation in zip([specs] if one else specs, plan.returns, strict=True):
        if beside is not None:
            beside.before_result()
        if mutation is None:
            results.append(_realize(spec))
        else:
            argument = _argument(mutation, args, kwargs)
            results.append(_resize_out(argument, spec) if mutation.is_out else argument)
    if beside is not None:
        beside.end()
    return results[0] if one else tuple(results)


def forget() -> None:
    _plans.clear()
    _remembered.clear()
