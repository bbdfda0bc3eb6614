"""What a Triton kernel of Inductor does on the virtual device: it computes nothing, but takes its time, and in its
first call the memory that autotuning takes.

Inductor's CachingAutotuner has a kernel's configurations. With several of them, its first call measures each one: it
runs the kernel on copies of what it changes, beside a buffer as large as the L2 cache, which is cleared in between."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from modscope._virtual.operators import known
from modscope._virtual.time import times

__all__ = ["benchmark", "precompile", "run"]

_seconds: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
"""How long the device runs each kernel that was called."""


def precompile(kernel: Any, *args: Any, **kwargs: Any) -> None:
    """In place of CachingAutotuner.precompile: Triton compiles nothing."""


def run(kernel: Any, *args: Any, stream: Any = None, benchmark_run: bool = False, **kwargs: Any) -> None:
    """In place of CachingAutotuner.run."""
    seconds = _seconds.get(kernel)
    if seconds is None:
        _autotune(kernel, args, kwargs)
        seconds = _seconds[kernel] = _time_of(kernel, args)
    for name, argument in zip(kernel.fn.arg_names, args, strict=False):
        if name in kernel.mutated_arg_names and isinstance(argument, torch.Tensor):
            known.forget(argument)
    times.run_kernel(seconds)


def _autotune(kernel: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Allocate what measuring the configurations allocates, once: it is the same for each of them."""
    if len(kernel.configs or ()) < 2 and not kernel.inductor_meta.get("coordinate_descent_tuning"):
        return
    on_host = kernel.copy_args_to_cpu_if_needed(*args, **kwargs)
    benchmark(lambda: kernel.maybe_clone_args(on_host, *args, **kwargs))


def benchmark(run_once: Any) -> float:
    """Allocate what InductorBenchmarker.benchmark_gpu allocates, in its order. Returns the milliseconds that it
    measures."""
    run_once()
    cache = torch.cuda.get_device_properties().L2_cache_size
    buffer = torch.empty(cache // 4, dtype=torch.int, device="cuda")
    buffer.zero_()
    begin = times.now()
    run_once()
    milliseconds = 1e3 * (times.now() - begin)
    del buffer
    return milliseconds


def _time_of(kernel: Any, args: Sequence[Any]) -> float:
    """By the bytes and the operations that Inductor counted for the kernel; where it counted none, by the tensors that
    the kernel gets."""
    gigabytes, operations = (kernel.inductor_meta.get(name) for name in ("kernel_num_gb", "kernel_flop"))
    tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
    if gigabytes is None:
        bytes = float(sum(tensor.nbytes for tensor in tensors))
    else:
        bytes = 1e9 * gigabytes
    dtype = max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.is_floating_point, default=torch.float32)
    return times.kernel_seconds(bytes, float(operations or 0), dtype)
