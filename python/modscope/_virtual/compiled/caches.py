"""Inductor's caches while the virtual device is installed.

What is compiled for the device has kernels that do nothing, so that it must never reach the caches of real runs: files
go to a folder of modscope's own, and what torch remembers in memory is forgotten before and after."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from modscope import _capture

__all__ = ["folder", "forgotten", "own_folder"]

_OF_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.utils._triton")
"""Where torch's compiler is."""
_CACHED = type(functools.cache(lambda: None))
_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@functools.cache
def folder() -> str:
    """The folder for files that Inductor keeps. Several processes may use it at once: Inductor writes a file under
    another name first. Where none can be made, it is one for this process only."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    path = os.path.join(base, "modscope", "compiled", f"{_capture.version}-torch{torch.__version__}-python{python}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            return os.path.abspath(path)
    except OSError:
        pass
    path = tempfile.mkdtemp(prefix="modscope-compiled-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _modules() -> list[Any]:
    return [
        module for name, module in list(sys.modules.items()) if name.startswith(_OF_COMPILER) and module is not None
    ]


def _replace_everywhere(function: Any, other: Any) -> None:
    """Put a function in place of another in every module of the compiler, which import each other's by name."""
    for module in _modules():
        for name, value in list(vars(module).items()):
            if value is function:
                setattr(module, name, other)


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """Inductor keeps its files in ``folder()`` meanwhile, whatever the environment says."""
    from torch._inductor.runtime import cache_dir_utils

    theirs = cache_dir_utils.cache_dir
    ours = lambda: folder()
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder(), "triton")
    _replace_everywhere(theirs, ours)
    try:
        yield
    finally:
        _replace_everywhere(ours, theirs)
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            elif os.environ.get(name, folder()).startswith(folder()):
                os.environ.pop(name, None)


_REMEMBER_DEVICE = (
    "torch.utils._triton",
    "torch._dynamo.device_interface",
    "torch._dynamo.trace_rules",
    "torch._dynamo.variables.torch",
    "torch._inductor.codecache",
    "torch._inductor.runtime",
    "torch._inductor.utils",
)
"""Modules whose functions remember something of the device, or torch's functions that are replaced with it. Functions
of others register what they return, and must not do that twice."""


def _forget_in_memory() -> None:
    """Dynamo's compiled code, and what functions of the compiler remember of the device."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    for name, module in list(sys.modules.items()):
        if name.startswith(_REMEMBER_DEVICE):
            for value in list(vars(module).values()):
                _forget_of(value)
                if isinstance(value, type) and value.__module__ == name:
                    for member in list(vars(value).values()):
                        _forget_of(getattr(member, "__func__", member))
    interface: Any = sys.modules.get("torch._dynamo.device_interface")
    getattr(interface, "caching_worker_device_properties", {}).clear()


def _forget_of(value: Any) -> None:
    if isinstance(value, _CACHED):
        value.cache_clear()


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """What was compiled before is compiled again in here, and what was compiled in here is compiled again after."""
    _forget_in_memory()
    try:
        yield
    finally:
        _forget_in_memory()
