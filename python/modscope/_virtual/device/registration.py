"""Register the virtual device's kernels in torch's dispatcher, and take them off again.

An operator runs by its function in ``KERNELS``, by torch's own composition in ``COMPOSED``, or by known.run, which asks
the meta device for its results. A custom operator runs by its fake kernel."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.machinery
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from modscope import _native
from modscope._virtual.device import storages
from modscope._virtual.operators import bodies, encoder, known, same_device, sparse, values, views
from modscope._virtual.rules import attention, batch_norm, convolution, losses, recurrent, sorting, torchvision
from modscope._virtual.time import times

__all__ = ["INFERENCES", "KEPT", "fakes_preferred", "kernels_registered"]

KEPT = ("c10d", "_c10d_functional", "_dtensor", "symm_mem", "fsdp")
"""Namespaces whose kernels for CUDA pass tensors on to a process group, or are made of other operators."""


KERNELS = {
    **storages.KERNELS,
    **views.KERNELS,
    **values.KERNELS,
    **sparse.FROM_DENSE,
    **attention.KERNELS,
    **encoder.KERNELS,
    **recurrent.KERNELS,
    **losses.KERNELS,
    **sorting.KERNELS,
}
INFERENCES = {**attention.INFERENCES, **convolution.INFERENCES}
COMPOSED = {**attention.COMPOSED, **batch_norm.COMPOSED, **recurrent.COMPOSED}
"""Operators made of differentiable ones."""

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
_NO_KERNEL_FOR_CPU = (
    "aten::_foreach_norm.Scalar",
    "aten::_fused_rms_norm",
    "aten::_grouped_mm",
    "aten::split_with_sizes_copy.out",
    "aten::_chunk_cat",
    "aten::_chunk_cat.out",
)
"""Operators with a CUDA kernel that torch composes of others on the CPU."""


def _aten_operator(name: str) -> Any:
    """The operator ``aten::name.overload``."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _from_meta() -> dict[str, Any]:
    """Operators that a CUDA build has a kernel for, although they can also be composed of others.

    torch composes them where that kernel is missing, with other memory and more launches. A kernel for the CPU tells
    that there is one for CUDA. So does the name of an operator on lists of tensors. Convolutions ask for libraries that
    are not there; a few have no kernel for the CPU."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = ["aten::convolution", "aten::convolution_backward", *_NO_KERNEL_FOR_CPU]
    for name in torch._C._dispatch_get_all_op_names():
        for_lists = name.startswith("aten::_foreach_") and not name.endswith("out")
        if name.startswith("aten::") and (for_lists or has(name, "CPU")) and not has(name, "CUDA"):
            if any(has(name, key) for key in _COMPOSITE):
                names.append(name)
    return {name.removeprefix("aten::"): _aten_operator(name) for name in names}


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


def _flags_of(name: str) -> int:
    """What the operator ``namespace::name.overload`` does beside returning new tensors, for captures: 1 it changes one
    in place, 2 it returns a view, 4 it draws random numbers; not attention, which does so only with dropout."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    schema = op._schema
    is_view = any(result.alias_info is not None for result in schema.returns)
    is_random = torch.Tag.nondeterministic_seeded in op.tags
    has_dropout = any(argument.name == "dropout_p" for argument in schema.arguments)
    is_mutable = bool(schema.is_mutable)
    return 1 * is_mutable | 2 * (is_view and not is_mutable) | 4 * (is_random and not has_dropout)


def _checked(kernel: Callable[..., Any], name: str) -> Any:
    """A kernel of the operator ``namespace::name.overload`` that refuses the devices that torch's own refuses."""

    def check(*args: Any, **kwargs: Any) -> None:
        same_device.check(_aten_operator(name), *args, **kwargs)

    return _native.operator_kernel(kernel, name, check if name.startswith("aten::") else None)


def _kernels() -> dict[str, Callable[..., Any]]:
    """By the operator's full name: what a virtual device runs. The fallback runs the rest."""
    found: dict[str, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        if name.partition("::")[0] not in KEPT:
            found[name] = _resolved_at_call(name)
    found.update({f"aten::{name}": _bound(op) for name, op in _from_meta().items()})
    found.update({f"aten::{name}": times.timed(name, kernel) for name, kernel in KERNELS.items()})
    return found


def _register(libraries: dict[str, Any]) -> None:
    """Make a library for each namespace, and register in it."""
    libraries["_"] = torch._C._dispatch_library("IMPL", "_", "")
    libraries["_"].fallback("CUDA", _native.operator_kernel(known.run, None, same_device.check), False)
    for name, kernel in _kernels().items():
        namespace, _, rest = name.partition("::")
        if namespace not in libraries:
            libraries[namespace] = torch._C._dispatch_library("IMPL", namespace, "")
        libraries[namespace].impl(rest, "CUDA", _checked(kernel, name), False)
    for name, kernel in sparse.KERNELS.items():
        libraries["aten"].impl(name, "SparseCUDA", _native.operator_kernel(kernel, f"aten::{name}"), False)
    for name, composed in COMPOSED.items():
        for key in ("CUDA", "AutogradCUDA"):
            libraries["aten"].impl(name, key, _native.operator_kernel(composed, f"aten::{name}", None, True), False)


@contextlib.contextmanager
def kernels_registered() -> Iterator[None]:
    # torch.library.Library checks and remembers each name, and would refuse to replace the kernels of a build with
    # CUDA.
    libraries: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that a kernel is replaced
            _register(libraries)
        _native.note_operators(_flags_of)
        yield
    finally:
        _native.note_operators(None)
        for library in libraries.values():
            library.reset()


# ---- operators that are not torch's own ----


class _Extensions:
    """Kernels for CUDA of operators that are not torch's own, in place of those that their libraries register. They are
    looked for whenever a library may have been loaded."""

    def __init__(self) -> None:
        self._libraries: dict[str, Any] = {}
        self._seen = set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))
        self.look()

    def look(self) -> None:
        """Replace the kernels of operators that have been registered since."""
        names = set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))
        names.update(filter(torch._C._dispatch_has_kernel, torchvision.KERNELS))
        for name in names - self._seen:
            self.replace(name)

    def replace(self, name: str, body: Callable[..., Any] | None = None) -> None:
        """``name``: namespace::name.overload. ``body``: its kernel, where that is a function in Python."""
        self._seen.add(name)
        namespace, _, rest = name.partition("::")
        if namespace in ("aten", *KEPT):
            return
        if namespace not in self._libraries:
            self._libraries[namespace] = torch._C._dispatch_library("IMPL", namespace, "")
        kernel: Callable[..., Any] = torchvision.KERNELS.get(name) or _resolved_at_call(name)
        if body is not None and name not in torchvision.KERNELS:
            kernel = bodies.kernel(name, body, kernel)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel is replaced
            self._libraries[namespace].impl(rest, "CUDA", _native.operator_kernel(kernel, name), False)

    def replace_custom(self, of: Any, *_: Any) -> None:
        """An operator of torch.library.custom_op, whose kernel may be for every device."""
        if of._abstract_fn is not None:
            functions = vars(of)["_backend_fns"]
            self.replace(of._qualname, functions.get("cuda") or functions.get(None))

    def replace_in(self, library: Any, op: Any, fn: Any, key: str = "", *_: Any) -> None:
        """What was registered by torch.library.Library.impl."""
        if (key or library.dispatch_key) == "CUDA":
            name = op.name() if isinstance(op, torch._ops.OpOverload) else str(op)
            body = fn if isinstance(fn, types.FunctionType) else None
            self.replace(name if "::" in name else f"{library.ns}::{name}", body)

    def reset(self) -> None:
        for library in self._libraries.values():
            library.reset()


def _then(function: Any, notice: Callable[..., None]) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        notice(*args, **{"key": options["dispatch_key"]} if "dispatch_key" in options else {})
        return result

    return call


@contextlib.contextmanager
def fakes_preferred() -> Iterator[None]:
    """While this is entered, operators that are not torch's own run by their fake kernels on the device."""
    from torch._library import custom_ops

    definition: Any = custom_ops.CustomOpDef
    found = _Extensions()
    look: Callable[..., None] = lambda *_: found.look()
    watched: list[tuple[Any, str, Callable[..., None]]] = [
        (definition, "register_fake", found.replace_custom),
        (definition, "register_kernel", found.replace_custom),
        (torch.library.Library, "impl", found.replace_in),
        (ctypes.CDLL, "__init__", look),  # torch.ops.load_library
        (importlib.machinery.ExtensionFileLoader, "create_module", look),
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in watched]
    try:
        for of in list(custom_ops.OPDEFS.values()):
            found.replace_custom(of)
        for owner, name, notice in watched:
            setattr(owner, name, _then(vars(owner)[name], notice))
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)
        found.reset()
