"""The dispatcher as a source of block events: the storages of the tensors that operators return."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

import torch
from modscope import _native


def active_fake_mode() -> Any:
    """The FakeTensorMode that is active in this thread, or None."""
    from torch import _guards

    return _guards.active_fake_mode()


def is_fake(tensor: torch.Tensor) -> bool:
    fake_tensors = sys.modules.get("torch._subclasses.fake_tensor")  # without it there are none
    kind = getattr(fake_tensors, "FakeTensor", None)
    return kind is not None and isinstance(tensor, kind)


class OperatorMode(TorchDispatchMode):
    """A mode for all operators. torch.cond and other operators of higher order would raise under any other mode."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
            return
        # In torch 2.8 each of these operators has a table with a rule for each class of modes that it supports.
        for operator in torch._ops._higher_order_ops.values():
            operator.python_key_table.setdefault(type(self), _rule_of(operator))


def _rule_of(operator: Any) -> Callable[..., Any]:
    def run(mode: OperatorMode, *args: Any, **kwargs: Any) -> Any:
        return mode.__torch_dispatch__(operator, [], args, kwargs)

    return run


class LogMode(OperatorMode):
    """Gives every operator of this thread, and of autograd's threads that work for it, to a log. It is a C function
    that torch calls, so no Python code runs for an operator."""

    def __init__(self, log: _native.OperatorLog | _native.OperatorTimes) -> None:
        super().__init__()
        self.use(log)

    def use(self, log: _native.OperatorLog | _native.OperatorTimes) -> None:
        vars(self)["__torch_dispatch__"] = types.MethodType(log.run, self)  # torch accepts only a method of the mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # there is no frame that dynamo could compile

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else torch.compile would run what it compiles uncompiled, which takes other memory


class DispatcherSource(OperatorMode):
    """Reports the result of every operator to the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self._fake_mode = active_fake_mode()
        self._thread = threading.get_ident()
        self._disabled = False

    def leave(self) -> None:
        """Remove a mode of this class from this thread's stack. Under another class's mode, or in another thread, a
        mode cannot be removed: it is disabled and stays on the stack."""
        self._disabled = True
        top = _get_current_dispatch_mode()
        if threading.get_ident() == self._thread and isinstance(top, DispatcherSource):
            top.__exit__(None, None, None)
            if top is not self:
                # the one that stays on the stack reports in place of the one that left
                top._disabled, self._disabled = True, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Make torch not import dynamo. It would do so at the first operator, which takes seconds, and a child that is
        forked meanwhile could never import it. Until the program imports dynamo, there is nothing to disable."""
        return False

    _run_without_dynamo: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run = DispatcherSource._run_without_dynamo
        if run is None:
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)  # not there while it is being imported
            if disable is None:
                return self._run(func, types, args, kwargs)
            run = DispatcherSource._run_without_dynamo = disable(DispatcherSource._run)
        return run(self, func, types, args, kwargs)

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        # A DTensor's operator runs as operators on local tensors, which are counted when they run.
        distributed = sys.modules.get("torch.distributed.tensor")
        if distributed is not None and any(t is distributed.DTensor for t in types):
            return NotImplemented
        # Under a fake mode entered later, torch or the program only computes shapes: no memory is held.
        if self._disabled or active_fake_mode() is not self._fake_mode:
            return func(*args, **(kwargs or {}))
        return _native.run_operator(func, args, kwargs)
