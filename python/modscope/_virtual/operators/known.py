"""What is known of values on the virtual device, whose tensors have none.

Programs read integers to decide about sizes: lengths of sequences, positions of image tokens, counts of tokens per
expert. So integers and booleans keep their values where these follow from the CPU's, from constants or from each other,
in tensors of at most ``LARGEST`` elements, and other numbers in tensors of one element: a copy of the storage is on the
CPU. Of others it may be known how they are distributed: indices over a dimension of E elements are taken to be spread
equally, so that each of them occurs in 1 of E elements.

What is known belongs to a storage and holds for every view of it. It is forgotten when the storage is written to by an
operator whose result is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

import torch
from modscope._virtual.operators import operators

__all__ = ["LARGEST", "forget", "fraction_of", "run", "spread", "tell", "values_of"]

LARGEST = 1 << 18
"""Elements of the largest tensor that keeps its values: the tokens of 64 sequences of 4,096."""
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool))


class _KnownStorage(NamedTuple):
    storage: StorageWeakRef
    values: torch.UntypedStorage | None
    """A copy on the CPU."""
    fraction: float
    """The fraction of the elements that are not zero; 0: unknown."""
    classes: int
    """The values are spread equally over 0 to ``classes`` - 1; 0: unknown."""


_entries: dict[int, _KnownStorage] = {}
_purge_at = 1024
"""The number of entries at which those of freed storages are removed."""


def _entry_of(tensor: torch.Tensor) -> _KnownStorage | None:
    entry = _entries.get(tensor.untyped_storage().data_ptr())
    if entry is None or entry.storage.expired():  # another storage has that address now
        return None
    return entry


def _add(tensor: torch.Tensor, values: torch.UntypedStorage | None, fraction: float, classes: int) -> None:
    global _purge_at
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return
    if len(_entries) >= _purge_at:
        for address in [address for address, entry in _entries.items() if entry.storage.expired()]:
            del _entries[address]
        _purge_at = max(1024, 2 * len(_entries))
    _entries[storage.data_ptr()] = _KnownStorage(StorageWeakRef(storage), values, fraction, classes)


def forget(tensor: torch.Tensor) -> None:
    """Something is written to a tensor, and its values are not known any more."""
    _entries.pop(tensor.untyped_storage().data_ptr(), None)


def forget_all() -> None:
    """Called when the device is removed."""
    _entries.clear()
    _facts.clear()


# ---- values ----


def _may_be_kept(tensor: torch.Tensor) -> bool:
    """Small tensors of integers are kept, and single numbers of other types, such as an optimizer's count of steps."""
    return tensor.numel() <= LARGEST if tensor.dtype in _INTEGERS else tensor.numel() == 1


def _host_view(of: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype).set_(of, like.storage_offset(), like.shape, like.stride())


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a tensor as one on the CPU, in memory that its views share; None: they are not known."""
    if tensor.device.type == "cpu":
        return tensor if _may_be_kept(tensor) else None
    if not _may_be_kept(tensor):
        return None
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    entry = _entry_of(tensor)
    return None if entry is None or entry.values is None else _host_view(entry.values, tensor)


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


def tell(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """These are the values of a tensor: keep them if they are of a kind that is kept."""
    if tensor.numel() == 0:
        return
    mirror = values_of(tensor)
    if mirror is None:
        if not _may_be_kept(tensor) or not _fills_its_storage(tensor):
            forget(tensor)
            return
        # Not torch's memory, which a tracker would attribute to the program.
        storage = torch.frombuffer(bytearray(tensor.untyped_storage().nbytes()), dtype=torch.uint8).untyped_storage()
        mirror = _host_view(storage, tensor)
        _add(tensor, storage, 0.0, 0)
    mirror.copy_(values)


def spread(total: int, tensor: torch.Tensor) -> None:
    """The elements of a tensor are counts that differ by 1 at most and add up to ``total``."""
    share, more = divmod(total, max(tensor.numel(), 1))
    counts = torch.full((tensor.numel(),), share, dtype=tensor.dtype)
    counts[:more] += 1
    tell(tensor, counts.view(tensor.shape))


# ---- distributions ----


def fraction_of(tensor: torch.Tensor) -> float | None:
    """The fraction of the elements that are not zero, if it follows from how they were made."""
    entry = _entry_of(tensor)
    if entry is None:
        return None
    return entry.fraction or (1 - 1 / entry.classes if entry.classes else None)


def classes_of(tensor: torch.Tensor) -> int:
    entry = _entry_of(tensor)
    return entry.classes if entry is not None else 0


def copy_distribution(source: torch.Tensor, copy: torch.Tensor) -> None:
    """Values that are not known are written to a tensor. If they are all that its storage has, they are distributed as
    before."""
    if not _entries or not (copy.dtype in _INTEGERS or copy.numel() == 1):
        return
    forget(copy)
    entry = _entry_of(source)
    if entry is not None and entry.values is None and source.device.type != "cpu" and _fills_its_storage(copy):
        _add(copy, None, entry.fraction, entry.classes)


def tell_fraction(tensor: torch.Tensor, fraction: float) -> None:
    _add(tensor, None, fraction, 0)


def tell_classes(tensor: torch.Tensor, classes: int) -> None:
    _add(tensor, None, 0.0, classes)


# ---- operators ----


class _Facts:
    """What is the same for all calls of an operator."""

    def __init__(self, op: Any) -> None:
        arguments = op._schema.arguments
        self.written = [
            (i, a.name, a.kwarg_only)
            for i, a in enumerate(arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        self.is_computed = op.namespace == "aten" and torch.Tag.nondeterministic_seeded not in op.tags
        """The kernel for the CPU is torch's own, and says what that for CUDA returns."""
        self._op = op

    def overwrites(self, args: Any) -> bool:
        """The result does not depend on what is written to. A scatter of as many elements is taken for a
        permutation."""
        return self._op in _OVERWRITE or (self._op is _aten.scatter_.src and args[2].numel() == args[0].numel())


_aten = torch.ops.aten
_OVERWRITE = {_aten.zero_.default, _aten.fill_.Scalar, _aten.fill_.Tensor}
_LEAVE = {_aten._amp_update_scale_.default}
"""Operators that are taken to leave what they write to as it is: a scale that fits is neither raised nor lowered."""
_facts: dict[Any, _Facts] = {}


def _host_argument(argument: Any) -> Any:
    """An argument on the CPU; raises LookupError if its values are not known."""
    if isinstance(argument, torch.Tensor):
        values = values_of(argument)
        if values is None:
            raise LookupError
        return values
    if isinstance(argument, (list, tuple)):
        return [_host_argument(item) for item in argument]
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def _host_written(facts: _Facts, tensor: Any, is_out: bool, args: Any) -> Any:
    """A tensor on the CPU, or a list of them, for an operator to write to."""
    if is_out or facts.overwrites(args):
        if not _may_be_kept(tensor):
            raise LookupError
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return _host_argument(tensor)


def _compute(op: Any, facts: _Facts, args: Any, kwargs: Any, result: Any) -> bool:
    """Run the operator on known values. False: they, or the result's, are not known."""
    writes_only = result is None and bool(facts.written)
    if not facts.is_computed or not (writes_only or (isinstance(result, torch.Tensor) and _may_be_kept(result))):
        return False
    written = {name: is_out for _, name, is_out in facts.written}
    positions = {i: is_out for i, _, is_out in facts.written}
    try:
        host_args = [
            _host_written(facts, a, positions[i], args) if i in positions else _host_argument(a)
            for i, a in enumerate(operators.with_tensors(op, args))
        ]
        host_kwargs = {
            name: _host_written(facts, a, written[name], args) if name in written else _host_argument(a)
            for name, a in kwargs.items()
        }
        values = op(*host_args, **host_kwargs)
    except (LookupError, RuntimeError):
        return False
    if not writes_only:
        tell(result, values)
    return True


def _follow(op: Any, args: Any, kwargs: Any, result: Any) -> None:
    facts = _facts.get(op)
    if facts is None:
        facts = _facts[op] = _Facts(op)
    if _compute(op, facts, args, kwargs, result):
        return
    if _entries and op not in _LEAVE:
        for position, name, _ in facts.written:
            argument = kwargs[name] if name in kwargs else args[position] if position < len(args) else None
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(tensor, torch.Tensor) and _may_be_kept(tensor):
                    forget(tensor)
    rule = RULES.get(op)
    if rule is not None:
        rule(args, kwargs, result)


def _follow_floats(op: Any, args: Any, result: torch.Tensor) -> None:
    """A tensor of other numbers is known only if all of them are 1: models make masks so."""
    if result is not args[0]:
        return
    if _entries:  # without the storage's Python object: a reference to it keeps autograd from adding in place
        _entries.pop(result.data_ptr() - result.storage_offset() * result.itemsize, None)
    if (
        op is _aten.fill_.Scalar
        and args[1] == 1
        and 1 < result.dim()
        and result.numel() <= LARGEST
        and _fills_its_storage(result)
    ):
        tell_fraction(result, 1.0)


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The results of an operator, and what is known of their values."""
    result = operators.run(op, *args, **kwargs)
    if isinstance(result, torch.Tensor) and result.dtype.is_floating_point and result.numel() != 1:
        _follow_floats(op, args, result)
        return result
    _follow(op, args, kwargs, result)
    return result


# ---- rules: how values are distributed that are not known ----

_Rule = Callable[[Any, Any, Any], None]


def _argument(args: Any, kwargs: Any, position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _indices_over(position: int, default: int | None) -> _Rule:
    """The result, or its second part, has indices over the dimension that an argument names."""

    def rule(args: Any, kwargs: Any, result: Any) -> None:
        indices = result if isinstance(result, torch.Tensor) else result[1]
        dim = _argument(args, kwargs, position, "dim", default)
        of = args[0]
        if indices.numel():
            tell_classes(indices, of.numel() if dim is None or of.dim() == 0 else of.size(dim))

    return rule


def _same(args: Any, kwargs: Any, result: Any) -> None:
    """The result has the values of the first argument."""
    entry = _entry_of(args[0])
    if entry is not None and entry.values is None:
        _add(result, None, entry.fraction, entry.classes)


def _sorted(args: Any, kwargs: Any, result: Any) -> None:
    _same(args, kwargs, result[0])
    position = 2 if isinstance(_argument(args, kwargs, 1, "stable"), bool) and len(args) > 2 else 1
    dim = kwargs.get("dim", args[position] if len(args) > position and not isinstance(args[position], bool) else -1)
    if args[0].dim() and result[1].numel():
        tell_classes(result[1], args[0].size(dim))


def _compared(fraction: Callable[[int, float], float]) -> _Rule:
    """A comparison of values that are spread over classes with a number."""

    def rule(args: Any, kwargs: Any, result: Any) -> None:
        left, right = args[0], args[1]
        classes = classes_of(left)
        if not classes and isinstance(right, torch.Tensor) and right.device.type != "cpu":
            classes = classes_of(right)
        if classes:
            number = right if isinstance(right, (int, float)) else 0
            tell_fraction(result, min(max(fraction(classes, float(number)), 1 / classes), 1.0))

    return rule


def _not(args: Any, kwargs: Any, result: Any) -> None:
    fraction = fraction_of(args[0])
    if fraction is not None and args[0].dtype == torch.bool:
        tell_fraction(result, 1 - fraction)


def _not_zero(args: Any, kwargs: Any, result: Any) -> None:
    """``mask != 0`` and ``mask > 0`` select what the mask does."""
    fraction = fraction_of(args[0])
    if fraction is not None and not classes_of(args[0]) and args[1] == 0:
        tell_fraction(result, fraction)


def _either(first: _Rule, second: _Rule) -> _Rule:
    def rule(args: Any, kwargs: Any, result: Any) -> None:
        first(args, kwargs, result)
        second(args, kwargs, result)

    return rule


def _scattered(args: Any, kwargs: Any, result: Any) -> None:
    """A number is written to some elements along a dimension, as one_hot does."""
    dim, index, value = args[1], args[2], args[3]
    if value and index.dim() == result.dim() and result.dim():
        tell_fraction(result, min(1.0, index.size(dim) / result.size(dim)))


def _counted(args: Any, kwargs: Any, result: Any) -> None:
    fraction = fraction_of(args[0])
    if fraction is not None and not classes_of(args[0]) and result.dtype in _INTEGERS and _may_be_kept(result):
        spread(round(fraction * args[0].numel()), result)


def _any(args: Any, kwargs: Any, result: Any) -> None:
    fraction = fraction_of(args[0])
    if fraction is not None and _may_be_kept(result) and fraction * args[0].numel() >= result.numel() > 0:
        tell(result, torch.ones((), dtype=torch.bool).expand(result.shape))


def _all(args: Any, kwargs: Any, result: Any) -> None:
    if fraction_of(args[0]) == 1 and _may_be_kept(result):
        tell(result, torch.ones((), dtype=torch.bool).expand(result.shape))


def _absorbed_by(number: int) -> _Rule:
    """``True | unknown`` is true and ``False & unknown`` is false: loops of generation end by it."""

    def rule(args: Any, kwargs: Any, result: Any) -> None:
        for operand in args[:2]:
            values = values_of(operand) if isinstance(operand, torch.Tensor) else None
            if values is not None and _may_be_kept(result) and values.numel() and bool((values == number).all()):
                tell(result, torch.full((), number, dtype=result.dtype).expand(result.shape))

    return rule


def _random_integers(args: Any, kwargs: Any, result: Any) -> None:
    bounds = [a for a in args[1:] if isinstance(a, int)]
    if bounds and (len(bounds) == 1 or bounds[0] == 0):
        tell_classes(result, bounds[-1])


RULES: dict[Any, _Rule] = {
    _aten.topk.default: _indices_over(2, -1),
    _aten.argmax.default: _indices_over(1, None),
    _aten.argmin.default: _indices_over(1, None),
    _aten.max.dim: _indices_over(1, None),
    _aten.min.dim: _indices_over(1, None),
    _aten.multinomial.default: lambda args, kwargs, result: tell_classes(result, args[0].size(-1)),
    _aten.sort.default: _sorted,
    _aten.sort.stable: _sorted,
    _aten.clone.default: _same,
    _aten._to_copy.default: _same,
    _aten.eq.Scalar: _compared(lambda classes, number: 1 / classes),
    _aten.eq.Tensor: _compared(lambda classes, number: 1 / classes),
    _aten.ne.Scalar: _either(_compared(lambda classes, number: 1 - 1 / classes), _not_zero),
    _aten.ne.Tensor: _compared(lambda classes, number: 1 - 1 / classes),
    _aten.lt.Scalar: _compared(lambda classes, number: number / classes),
    _aten.le.Scalar: _compared(lambda classes, number: (number + 1) / classes),
    _aten.gt.Scalar: _either(_compared(lambda classes, number: (classes - number - 1) / classes), _not_zero),
    _aten.ge.Scalar: _compared(lambda classes, number: (classes - number) / classes),
    _aten.logical_not.default: _not,
    _aten.bitwise_not.default: _not,
    _aten.scatter_.value: _scattered,
    _aten.scatter.value: _scattered,
    _aten.sum.dim_IntList: _counted,
    _aten.sum.default: _counted,
    _aten.any.default: _any,
    _aten.any.dim: _any,
    _aten.any.dims: _any,
    **dict.fromkeys((_aten.all.default, _aten.all.dim, _aten.all.dims), _all),
    **{op: _absorbed_by(1) for op in (_aten.bitwise_or.Tensor, _aten.bitwise_or_.Tensor, _aten.logical_or.default)},
    **{op: _absorbed_by(0) for op in (_aten.bitwise_and.Tensor, _aten.bitwise_and_.Tensor, _aten.logical_and.default)},
    _aten.random_.to: _random_integers,
    getattr(_aten.random_, "from"): _random_integers,
}
