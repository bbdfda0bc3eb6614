"""Install the virtual device in torch, and remove it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from modscope import _interception, _native
from modscope._virtual import cuda_functions, legacy_types, operators, probes, storages
from modscope._virtual.gpus import Gpu
from modscope._virtual.memory import Memory, allocator_settings
from modscope._virtual.registration import kernels_registered

__all__ = ["VirtualDevice"]


class VirtualDevice:
    """One virtual GPU. While it is installed, torch in this process believes that it is there."""

    def __init__(self, gpu: Gpu, version: str | None = None) -> None:
        self.gpu = gpu
        self.memory = Memory(gpu)
        self._version = version or str(torch.__version__)
        self._undo = contextlib.ExitStack()

    def install(self) -> None:
        """Install the device. No backward may have run in this process: autograd counts devices when the first one runs."""
        has_cuda = torch.backends.cuda.is_built()
        if has_cuda and torch.cuda.is_initialized():
            raise RuntimeError("CUDA is in use in this process: install the virtual GPU before the first use of CUDA")
        _native.virtual_install(self._version, allocator_settings(), self.gpu.capacity, self.gpu.memory, has_cuda)
        with contextlib.ExitStack() as undo:
            undo.callback(_native.virtual_remove)
            undo.enter_context(_replaced(torch.cuda, {"_lazy_init": lambda: None}))
            why = probes.learn()
            _interception.prepare()  # after the installation: autograd counts devices when the first backward runs
            why = why or _native.virtual_find_functions(
                torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA).raw_repr()
            )
            if why:
                raise RuntimeError(f"a virtual GPU needs another torch: {why}")
            undo.enter_context(kernels_registered())
            for module, values in self._replacements():
                undo.enter_context(_replaced(module, values))
            undo.enter_context(_replaced(operators, {"out_of_memory": self.memory.out_of_memory}))
            _native.virtual_restart()
            self._undo = undo.pop_all()

    def _replacements(self) -> list[tuple[Any, dict[str, Any]]]:
        return cuda_functions.replacements(self.gpu, self.memory) + storages.replacements() + legacy_types.replacements()

    def remove(self) -> None:
        self._undo.close()
        operators.forget()


@contextlib.contextmanager
def _replaced(module: Any, values: dict[str, Any]) -> Iterator[None]:
    """Set attributes of a module, and restore them in the end."""
    absent = object()
    before = {name: vars(module).get(name, absent) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is absent:
                delattr(module, name)
            else:
                setattr(module, name, value)
