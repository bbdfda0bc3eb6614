"""Register the virtual device's kernels in torch's dispatcher, and take them off again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from modscope import _native
from modscope._virtual import kernels, known, sparse, storages, times

__all__ = ["KEPT", "kernels_registered"]

KEPT = ("c10d", "_c10d_functional", "_dtensor", "symm_mem", "fsdp")
"""Namespaces whose kernels for CUDA pass tensors on to a process group, or are made of other operators."""


def _bound(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: known.run(op, *args, **kwargs)


def _resolved_at_call(name: str) -> Callable[..., Any]:
    """A kernel of the operator ``namespace::name.overload``, which is looked up when it is called first."""
    op: Any = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal op
        if op is None:
            namespace, _, rest = name.partition("::")
            packet, _, overload = rest.partition(".")
            op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        return known.run(op, *args, **kwargs)

    return run


def _kernels() -> dict[str, Callable[..., Any]]:
    """By the operator's full name: what a virtual device runs. The fallback runs the rest."""
    found: dict[str, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        if name.partition("::")[0] not in KEPT:
            found[name] = _resolved_at_call(name)
    found.update({f"aten::{name}": _bound(op) for name, op in kernels.from_meta().items()})
    tables: list[dict[str, Any]] = [storages.KERNELS, kernels.KERNELS]
    for of in tables:
        found.update({f"aten::{name}": times.timed(name, kernel) for name, kernel in of.items()})
    return found


def _register(libraries: dict[str, Any]) -> None:
    """Make a library for each namespace, and register in it."""
    libraries["_"] = torch._C._dispatch_library("IMPL", "_", "")
    libraries["_"].fallback("CUDA", _native.operator_kernel(known.run), False)
    for name, kernel in _kernels().items():
        namespace, _, rest = name.partition("::")
        if namespace not in libraries:
            libraries[namespace] = torch._C._dispatch_library("IMPL", namespace, "")
        libraries[namespace].impl(rest, "CUDA", _native.operator_kernel(kernel, name), False)
    for name, kernel in sparse.KERNELS.items():
        libraries["aten"].impl(name, "SparseCUDA", _native.operator_kernel(kernel, f"aten::{name}"), False)
    for name, composed in kernels.COMPOSED.items():
        for key in ("CUDA", "AutogradCUDA"):
            libraries["aten"].impl(name, key, composed, False)


@contextlib.contextmanager
def kernels_registered() -> Iterator[None]:
    # torch.library.Library checks and remembers each name, and would refuse to replace the kernels of a build with CUDA.
    libraries: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that a kernel is replaced
            _register(libraries)
        yield
    finally:
        for library in libraries.values():
            library.reset()
