"""Custom operators that are written in Python: their bodies run on the virtual device.

A body may allocate more than the results that its fake kernel shows. Where it cannot run here, because it calls a
kernel of an extension, the fake kernel answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from modscope._virtual.operators import operators
from modscope._virtual.time import times

__all__ = ["forget", "kernel", "ran", "why_fake"]

ran: set[str] = set()
"""Operators whose bodies ran."""
why_fake: dict[str, str] = {}
"""Why the fake kernels of others were used."""


def forget() -> None:
    """Called when the device is removed."""
    ran.clear()
    why_fake.clear()


def kernel(name: str, body: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of the operator ``namespace::name.overload``. ``fake``: runs it by its fake kernel."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if name not in why_fake:
            try:
                result = body(*args, **kwargs)
                ran.add(name)
                return _with_strides_of_fake(name, result, args, kwargs) if times.is_compiled() else result
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                why_fake[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                ran.discard(name)
        return fake(*args, **kwargs)

    return run


def _operator(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _with_strides_of_fake(name: str, result: Any, args: Any, kwargs: Any) -> Any:
    """Generated code takes the strides of results from the fake kernel, and asserts them."""
    if isinstance(result, torch.Tensor):
        specs: Any = operators.infer_on_meta(_operator(name), args, kwargs)
        return _as(result, specs)
    if isinstance(result, (tuple, list)) and any(isinstance(each, torch.Tensor) for each in result):
        specs = operators.infer_on_meta(_operator(name), args, kwargs)
        if len(specs) == len(result):
            return type(result)([_as(each, spec) for each, spec in zip(result, specs)])
    return result


def _as(tensor: Any, spec: Any) -> Any:
    if not isinstance(tensor, torch.Tensor) or not isinstance(spec, tuple) or tensor.dtype != spec[2]:
        return tensor
    shape, strides = tuple(spec[0]), tuple(spec[1])
    if tuple(tensor.shape) != shape or tensor.stride() == strides:
        return tensor
    last = sum((size - 1) * stride for size, stride in zip(shape, strides)) if tensor.numel() else -1
    room = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    if last >= room:
        return operators.make(shape, strides, spec[2])
    return tensor.as_strided(shape, strides)
