"""Custom operators that have a fake kernel: on the virtual device that tells their results, whatever kernels they have."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from modscope._virtual import known
from modscope._virtual.registration import KEPT

__all__ = ["fakes_preferred"]


@contextlib.contextmanager
def fakes_preferred() -> Iterator[None]:
    """Register a kernel for CUDA for each operator of torch.library.custom_op that has a fake kernel, or gets one.
    Those of process groups are made of others."""
    from torch._library import custom_ops

    definition: Any = custom_ops.CustomOpDef
    libraries: dict[str, Any] = {}

    def prefer_fake(of: Any) -> None:
        if of._abstract_fn is None:
            return
        namespace, _, name = of._qualname.partition("::")
        if namespace in KEPT:
            return
        if namespace not in libraries:
            libraries[namespace] = torch._C._dispatch_library("IMPL", namespace, "")
        op = of._opoverload
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel is replaced
            libraries[namespace].impl(name, "CUDA", lambda *args, **kwargs: known.run(op, *args, **kwargs), False)

    def then_prefer(register: Any) -> Any:
        def registered(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = register(self, *args, **kwargs)
            prefer_fake(self)
            return made

        return registered

    before = {name: getattr(definition, name) for name in ("register_fake", "register_kernel")}
    try:
        for of in list(custom_ops.OPDEFS.values()):
            prefer_fake(of)
        for name, register in before.items():
            setattr(definition, name, then_prefer(register))
        yield
    finally:
        for name, register in before.items():
            setattr(definition, name, register)
        for library in libraries.values():
            library.reset()
