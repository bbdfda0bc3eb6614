"""Tiny torch operations that try an interception point. They run as if the program had changed no mode.

The C extension calls ``run_one_node``, ``create_nodes``, ``make_one_block`` and ``save_one_tensor`` to test whether its
functions are still called."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_C: Any = torch._C


def _identity(x: Any) -> Any:
    return x


@contextlib.contextmanager
def _no_tracing() -> Iterator[None]:
    state = _C._get_tracing_state()
    if state is not None:
        _C._set_tracing_state(None)
    try:
        yield
    finally:
        if state is not None:
            _C._set_tracing_state(state)


def _no_saved_tensor_hooks() -> contextlib.AbstractContextManager[object]:
    """Override the program's saved-tensor hooks with hooks that change nothing."""
    top = getattr(_C._autograd, "_top_saved_tensors_default_hooks", None)  # not in every torch
    if top is None or top(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_identity, _identity)


def _no_transforms() -> contextlib.AbstractContextManager[object]:
    """Leave all functorch transforms.

    Where none is active, functorch is not called: a call would create its thread state, which autograd then
    copies for every node until the thread ends.
    """
    key = _C.DispatchKey.FuncTorchDynamicLayerFrontMode
    if not _C._dispatch_tls_is_dispatch_key_included(key):
        return contextlib.nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    cleared: contextlib.AbstractContextManager[object] = temporarily_clear_interpreter_stack()
    return cleared


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run torch operators without the program's modes, transforms, tracing and saved-tensor hooks."""
    from torch.utils._python_dispatch import _disable_current_modes

    with (
        _no_transforms(),
        _no_tracing(),
        _disable_current_modes(),
        _C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.enable_grad(),
        _no_saved_tensor_hooks(),
    ):
        yield


def make_leaf() -> torch.Tensor:
    return torch.ones(1, device="cpu", dtype=torch.float32, requires_grad=True)


def run_one_node() -> None:
    with undisturbed():
        make_leaf().neg().backward()


def make_one_block() -> None:
    with undisturbed():
        torch.empty(64, device="cpu", dtype=torch.uint8)


def create_nodes() -> None:
    """Create a node of an operator, and one of a custom Function."""
    with undisturbed():
        CloneFunction.apply(make_leaf()).neg()


def save_one_tensor() -> None:
    with undisturbed():
        make_leaf().exp()


def save_tensors(left: torch.Tensor, right: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Let autograd save the three tensors: in a custom Function, as an operator's input and as an optional input. The
    result keeps them."""
    kept = SavingFunction.apply(left, make_leaf()) + right * make_leaf()
    result: torch.Tensor = torch.nn.functional.layer_norm(kept, (kept.numel(),), weight)
    return result


def run_in_thread(work: Callable[[], Any]) -> Any:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join()
    return result[0]


class CloneFunction(torch.autograd.Function):
    """A custom Function: its node is created in Python, and lies in another object than those of operators."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class SavingFunction(torch.autograd.Function):
    """A custom Function that saves its first input."""

    @staticmethod
    def forward(x: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        return x + leaf

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, grads[0].sum().reshape(1)
