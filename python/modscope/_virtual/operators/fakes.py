"""Fake kernels of operators that are not torch's own: those that torch.library.register_fake registered."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._library import fake_impl, simple_registry

import torch

__all__ = ["find", "selected", "set_selected", "sizes_known"]

_selected = 0.5


def set_selected(fraction: float) -> None:
    """Where an operator selects by values that are not known, take this fraction of the elements (0.5 by default)."""
    global _selected
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction of selected elements must be between 0 and 1, not {fraction}")
    _selected = fraction


def selected() -> float:
    return _selected


def find(op: Any) -> Callable[..., Any] | None:
    """The registered fake kernel of an operator. Called directly, it may ask for sizes; by way of the meta device it
    may not."""
    if op.namespace in ("aten", "prims"):
        return None
    kernel: Callable[..., Any] | None = simple_registry.singleton.find(op.name()).fake_impl.kernel
    return kernel


class _Sizes:
    """As torch.library.FakeImplCtx, for sizes that depend on values: a fraction of the largest first dimension."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        sizes = [one.size(0) for one in arguments if isinstance(one, torch.Tensor) and one.dim()]
        self._largest = max(sizes, default=1)

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        size = round(_selected * self._largest)
        return builtins.max(min, size if max is None else builtins.min(size, max))

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> int:
        return self.new_dynamic_size(min=min, max=max)


@contextlib.contextmanager
def sizes_known(arguments: Sequence[Any]) -> Iterator[None]:
    """Answer fake kernels that ask for sizes (torch.library.get_ctx), given the operator's arguments."""
    sizes = _Sizes(arguments)
    with fake_impl.set_ctx_getter(lambda: sizes):
        yield
