"""Register the virtual device's kernels in torch's dispatcher, and take them off again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from modscope._virtual import kernels, operators, storages, times

__all__ = ["kernels_registered"]

_KEPT = ("c10d", "_c10d_functional", "_dtensor", "symm_mem")
"""Namespaces whose kernels for CUDA pass tensors on to a process group."""


def _bound(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: operators.run(op, *args, **kwargs)


def _resolved_at_call(name: str) -> Callable[..., Any]:
    """A kernel of the operator ``namespace::name.overload``, which is looked up when it is called first."""
    op: Any = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal op
        if op is None:
            namespace, _, rest = name.partition("::")
            packet, _, overload = rest.partition(".")
            op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        return operators.run(op, *args, **kwargs)

    return run


def _kernels() -> dict[str, Callable[..., Any]]:
    """By the operator's full name: what a virtual device runs. The fallback runs the rest."""
    found: dict[str, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        if name.partition("::")[0] not in _KEPT:
            found[name] = _resolved_at_call(name)
    found.update({f"aten::{name}": _bound(op) for name, op in kernels.from_meta().items()})
    for of in (storages.KERNELS, kernels.KERNELS):
        found.update({f"aten::{name}": times.timed(name, kernel) for name, kernel in of.items()})
    return found


def _register(every: Any, library: Any, others: dict[str, Any]) -> None:
    every.fallback("CUDA", operators.run, False)
    for name, kernel in _kernels().items():
        namespace, _, rest = name.partition("::")
        of = library if namespace == "aten" else others.get(namespace)
        if of is None:
            of = others[namespace] = torch._C._dispatch_library("IMPL", namespace, "")
        of.impl(rest, "CUDA", kernel, False)
    for name, composed in kernels.COMPOSED.items():
        for key in ("CUDA", "AutogradCUDA"):
            library.impl(name, key, composed, False)


@contextlib.contextmanager
def kernels_registered() -> Iterator[None]:
    # The library of torch.library checks and remembers each name; this one does not, and the check would refuse to
    # replace the kernels of a build with CUDA.
    every = torch._C._dispatch_library("IMPL", "_", "")
    library = torch._C._dispatch_library("IMPL", "aten", "")
    others: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that a kernel is replaced
            _register(every, library, others)
        yield
    finally:
        for each in (library, every, *others.values()):
            each.reset()
