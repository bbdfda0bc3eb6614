"""Refuse operators on tensors of the CPU and of the GPU where torch refuses them, with torch's message.

torch generates its kernels for CUDA from native_functions.yaml, which it brings along. That says of each function
whether its kernel wants all arguments on one device, or leaves that to TensorIterator, which takes single numbers from
the CPU. What is not certain is allowed."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

__all__ = ["check", "check_attention", "check_recurrent"]

_ITERATOR = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


class _Given(NamedTuple):
    """An argument of a call that is a tensor, or the tensors of one that is a list."""

    name: str
    is_written: bool
    is_out: bool
    is_positional: bool
    tensors: list[torch.Tensor]
    is_list: bool


_Check = Callable[[list[_Given]], None]

# ---- native_functions.yaml ----


@functools.cache
def _functions() -> str:
    """The text of the file, which is empty if this torch does not have it."""
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    path = os.path.join(packages, "torchgen", "packaged", "ATen", "native", "native_functions.yaml")
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        return file.read()
    return ""


def _entry(name: str) -> str:
    """What the file says of a function, such as ``add.Tensor``."""
    text = _functions()
    begin = text.find(f"\n- func: {name}(")
    return text[begin : text.find("\n- func: ", begin + 1)] if begin >= 0 else ""


def _structured(entry: str) -> str:
    """The entry of the structured kernel that a function is made of, or an empty text."""
    delegate = re.search(r"^  structured_delegate: (\S+)", entry, re.M)
    return _entry(delegate[1]) if delegate else entry if "\n  structured: True" in entry else ""


_CUDA_KERNEL = re.compile(r"^    [\w, ]*\bCUDA\b[\w, ]*:|^  ufunc_inner_loop:", re.M)


def _wrapper(name: str, is_out: bool, is_structured: bool) -> str:
    """The name of the generated kernel, which is in the message."""
    base, _, overload = name.partition(".")
    base += "_out" if is_out else ""
    if is_structured:
        return f"wrapper_CUDA_{base}" + (f"_{overload}" if overload else "")
    return f"wrapper_CUDA_{overload}_{base}"


# ---- the checks ----


def _tensors(given: list[_Given]) -> Iterator[tuple[_Given, torch.Tensor]]:
    for argument in given:
        for tensor in argument.tensors:
            yield argument, tensor


def _want_one_device(wrapper: str, given: list[_Given]) -> None:
    """Every argument must be on the device of the first one, also single numbers."""
    checked = [a for a in given if a.is_out] + [a for a in given if a.is_positional]
    common: torch.device | None = None
    for argument, tensor in _tensors(checked):
        if common is not None and tensor.device != common:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but got {argument.name} is on {tensor.device}, "
                f"different from other tensors on {common} (when checking argument in method {wrapper})"
            )
        common = tensor.device


def _want_iterable(given: list[_Given]) -> None:
    """As TensorIterator: single numbers of the CPU may be read, but not written to."""
    for argument, tensor in _tensors(given):
        if not tensor.is_cuda and (argument.is_written or tensor.dim() > 0):
            raise RuntimeError(_ITERATOR)


def _want_out_with_results(given: list[_Given]) -> None:
    """A structured kernel that is no TensorIterator compares ``out`` with the device of its first argument."""
    expected = next(tensor.device for argument, tensor in _tensors(given) if not argument.is_out)
    for argument, tensor in _tensors(given):
        if argument.is_out and tensor.device != expected:
            raise RuntimeError(f"Expected out tensor to have device {expected}, but got {tensor.device} instead")


def _want_equal_lists(given: list[_Given]) -> None:
    """Tensors on several devices are handled one after the other, together with those at the same place of other
    lists."""
    lists = [argument for argument in given if argument.is_list]
    for i in range(min(len(argument.tensors) for argument in lists)):
        at = [argument._replace(tensors=[argument.tensors[i]]) for argument in lists]
        if any(argument.tensors[0].is_cuda for argument in at):
            _want_iterable(at)


def _want_usable_indices(given: list[_Given]) -> None:
    """Check the devices of indices, which may be on the CPU."""
    indexed = given[0].tensors[0]
    if not indexed.is_cuda and any(index.is_cuda for index in given[1].tensors):
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor ({indexed.device})"
        )


def _want_usable_values(given: list[_Given]) -> None:
    """What is written to indices: a single number may be on the CPU."""
    written, values = given[0], given[-1]
    if values.tensors[0].numel() != 1 and values.tensors[0].device != written.tensors[0].device:
        raise RuntimeError(_ITERATOR)


def _want_mask(given: list[_Given]) -> None:
    (written,), (mask,) = given[0].tensors, given[1].tensors
    if written.device != mask.device:
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {mask.device} and self on "
            f"{written.device}"
        )


def _want_filled_places(given: list[_Given]) -> None:
    (written,), (index,) = given[0].tensors, given[1].tensors
    if written.device != index.device:
        raise RuntimeError(
            "index_fill_(): self and index value tensors should have same device type, but got self tensor device type "
            f"{written.device} and index value tensor device type {index.device}"
        )


def _want_convolvable(given: list[_Given]) -> None:
    """Weight and bias must be of the input's type, to which the device belongs."""
    input = given[0].tensors[0]
    for argument in given[1:]:
        of = argument.tensors[0].type()
        if of != input.type():
            tail = "" if input.is_cuda else f" or input should be a MKLDNN tensor and {argument.name} is a dense tensor"
            raise RuntimeError(f"Input type ({input.type()}) and {argument.name} type ({of}) should be the same{tail}")


_SPECIAL: dict[str, _Check | None] = {
    "convolution": _want_convolvable,
    "index.Tensor": _want_usable_indices,
    "_index_put_impl_": _want_usable_values,
    "masked_fill_.Scalar": _want_mask,
    "masked_fill_.Tensor": _want_mask,
    "index_fill_.int_Scalar": _want_filled_places,
    "index_fill_.int_Tensor": _want_filled_places,
    "bernoulli_.Tensor": None,  # they copy what is on another device
    "fill_.Tensor": None,
    "_foreach_copy_": None,
}


@functools.cache
def _check_of(name: str, is_out: bool) -> _Check | None:
    """The check of torch's function ``name``, as ``add.Tensor``. ``is_out``: it has an argument ``out``."""
    if name in _SPECIAL:
        return _SPECIAL[name]
    entry = _entry(name)
    structured = _structured(entry)
    if not _CUDA_KERNEL.search(structured or entry):
        return None  # it is made of other functions
    if "\n  device_check: NoCheck" not in entry:
        return functools.partial(_want_one_device, _wrapper(name, is_out, bool(structured)))
    if name.startswith("_foreach_"):
        return _want_equal_lists
    if structured and "structured_inherits: TensorIteratorBase" not in structured:
        return _want_out_with_results
    return _want_iterable if "TensorIterator" in entry + structured else None


# ---- calls ----


def _given(op: Any, args: Any, kwargs: Any) -> list[_Given]:
    """The arguments of a call that are tensors, in the order of its schema."""
    found = []
    for position, argument in enumerate(op._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        is_list = isinstance(value, (list, tuple))
        tensors = [item for item in (value if is_list else (value,)) if isinstance(item, torch.Tensor)]
        if tensors:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            found.append(_Given(argument.name, is_written, argument.is_out, not argument.kwarg_only, tensors, is_list))
    return found


def check(op: Any, *args: Any, **kwargs: Any) -> None:
    """Raise torch's RuntimeError if it refuses these arguments, of which one is on the CPU."""
    namespace, _, name = op.name().partition("::")
    is_out = any(a.is_out for a in op._schema.arguments)
    check_arguments = _check_of(name, is_out) if namespace == "aten" else None
    if check_arguments is not None:
        given = _given(op, args, kwargs)
        if any(tensor.is_cuda for _, tensor in _tensors(given)):
            check_arguments(given)


def check_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if not query.device == key.device == value.device:
        raise RuntimeError(
            f"Expected query, key, and value to have the same device type, but got query.device: {query.device} "
            f"key.device: {key.device} and value.device: {value.device} instead."
        )


def check_recurrent(input: torch.Tensor, hidden: Any, parameters: Any) -> None:
    for name, tensors in (("hidden", hidden), ("parameter", parameters)):
        for tensor in tensors:
            if tensor is not None and tensor.device != input.device:
                raise RuntimeError(
                    f"Input and {name} tensors are not at the same device, found input tensor at {input.device} and "
                    f"{name} tensor at {tensor.device}"
                )
