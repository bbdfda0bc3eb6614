"""The dispatcher as a source of blocks: storages of what operators return."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from modscope import _native


def fake_mode() -> Any:
    """The FakeTensorMode that is active here, or None."""
    from torch._guards import active_fake_mode

    return active_fake_mode()


def is_fake(tensor: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


class Dispatch(TorchDispatchMode):
    """Tells the ledger what every operator returns, in C."""

    def __init__(self) -> None:
        super().__init__()
        self._fake_mode = fake_mode()
        self._thread = threading.get_ident()
        self._asleep = False

    def leave(self) -> None:
        """Take a mode of ours off this thread's stack. Where another's is on top, or in another
        thread, this one can only be put to sleep."""
        self._asleep = True
        top = _get_current_dispatch_mode()
        if threading.get_ident() == self._thread and isinstance(top, Dispatch):
            top.__exit__(None, None, None)
            if top is not self:
                top._asleep, self._asleep = True, False  # left in another order than entered: ours goes on for it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Tensors spread over devices are seen as the local operators they become.
        distributed = sys.modules.get("torch.distributed.tensor")
        if distributed is not None and any(t is distributed.DTensor for t in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        # A fake mode that somebody else enters works out shapes: nothing is held.
        if not self._asleep and fake_mode() is self._fake_mode:
            _native.note_result(result, args, kwargs)
        return result
