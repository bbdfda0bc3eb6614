"""What torch.cuda asks of the device, answered for the virtual one.

torch.cuda is Python code that calls functions of torch._C. Those functions are replaced here, so that torch.cuda itself
still checks arguments and formats results. What it does not get from torch._C is replaced in its own modules.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch.cuda.amp.common
import torch.cuda.graphs
import torch.cuda.nccl
import torch.cuda.nvtx
import torch.profiler

import torch
from modscope import _native
from modscope._virtual.device import graphs, pools, streams
from modscope._virtual.device.memory import Memory
from modscope._virtual.device.properties import DeviceProperties
from modscope._virtual.gpus import Gpu
from modscope._virtual.operators import operators
from modscope._virtual.operators.operators import check_ordinal
from modscope._virtual.rules import matrix_products
from modscope._virtual.time import times

__all__ = ["replacements"]

_CUDA = 1  # torch's number of the device type
_CUDA_VERSION = "13.0"
_CUDNN_VERSION = 92000
_NCCL_VERSION = (2 << 32) | (28 << 16) | 9
_BUILT_FOR = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


def _answer(value: Any) -> Callable[..., Any]:
    """A function of its own for each name: dynamo distinguishes torch's functions by identity."""
    return lambda *_, **__: value


# ---- devices and streams ----


def _exchange_device(index: int) -> int:
    check_ordinal(index)
    return int(_native.virtual_set_device(index)) if index >= 0 else -1


def _set_device(index: int) -> None:
    """As CUDA does, leave the current device as it is where the index is negative."""
    _exchange_device(index)


def _stream(number: int, index: int = 0) -> tuple[int, int, int]:
    """As torch._C names a stream: its number, the device's index and type."""
    check_ordinal(index)
    return (number, index, _CUDA)


def _current_stream(index: int = 0) -> tuple[int, int, int]:
    check_ordinal(index)
    return _stream(_native.virtual_stream(index), index)


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    _exchange_device(device_index)
    _native.virtual_set_stream(stream_id)


def _device_functions(gpu: Gpu, count: int) -> dict[str, Any]:
    arch = f"sm_{gpu.capability[0]}{gpu.capability[1]}"
    return {
        "_has_cuda": True,
        "_has_cudnn": True,
        "_cuda_init": _answer(None),
        "_get_accelerator": lambda check=None: torch.device("cuda"),
        "_cuda_getDeviceCount": _answer(count),
        "_cuda_getDevice": lambda: _native.virtual_device(),
        "_cuda_setDevice": lambda index: _set_device(index),
        "_accelerator_setDeviceIndex": lambda index: _set_device(index),
        "_accelerator_getDefaultGenerator": lambda index: torch.cuda.default_generators[_index(index)],
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": lambda index: _exchange_device(index),  # dynamo refuses the same function twice
        "_cuda_synchronize": lambda *_: times.wait(),
        "_cuda_hasPrimaryContext": _answer(True),
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_getCompiledVersion": _answer(13000),
        "_cuda_getArchFlags": _answer(" ".join(sorted({*_BUILT_FOR, arch}, key=lambda name: int(name[3:])))),
        "_cuda_ipc_collect": _answer(None),
        "_cuda_sleep": _answer(None),
        "_cuda_getCurrentStream": _current_stream,
        "_cuda_getDefaultStream": lambda index=0: _stream(0, index),
        "_cuda_getCurrentRawStream": lambda index=0: _current_stream(index)[0],
        "_cuda_getStreamFromExternal": _stream,
        "_cuda_setStream": _set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: graphs.is_capturing(),
    }


def _backend_choices() -> dict[str, Any]:
    """Where the CUDA hooks say that a library is not there, torch refuses to choose it."""
    chosen: dict[str, Any] = {}
    functions: dict[str, Any] = {}
    for what in ("linalg", "blas", "rocm_fa"):
        get, set = f"_get_{what}_preferred_backend", f"_set_{what}_preferred_backend"
        if hasattr(torch._C, get):
            chosen[what] = getattr(torch._C, get)()
            functions[get] = lambda what=what: chosen[what]
            functions[set] = lambda value, what=what: chosen.update({what: value})
    return functions


def _copies_between_devices() -> dict[str, Any]:
    """The functions of torch.cuda.comm and DataParallel."""

    def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.cuda(device) for device in devices)

    def scatter(tensor: torch.Tensor, devices: Sequence[int], sizes: Any = None, dim: int = 0, *_: Any) -> Any:
        parts = tensor.split(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
        return tuple(part.cuda(device) for part, device in zip(parts, devices))

    def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
        where = "cpu" if destination == -1 else "cuda" if destination is None else f"cuda:{destination}"
        return torch.cat([tensor.to(where) for tensor in tensors], dim)

    return {
        "_broadcast": broadcast,
        "_broadcast_out": lambda tensor, outputs: tuple(output.copy_(tensor) for output in outputs),
        "_broadcast_coalesced": lambda tensors, devices, buffer_size: [
            [tensor.cuda(device) for tensor in tensors] for device in devices
        ],
        "_scatter": scatter,
        "_scatter_out": lambda tensor, outputs, dim=0, *_: tuple(
            output.copy_(part)
            for output, part in zip(outputs, tensor.split([output.size(dim) for output in outputs], dim))
        ),
        "_gather": gather,
        "_gather_out": lambda tensors, output, dim: output.copy_(
            torch.cat([tensor.to(output.device) for tensor in tensors], dim)
        ),
    }


def _clear_workspaces() -> None:
    operators.give_kept_back()
    matrix_products.forget_workspaces()


def _library_functions() -> dict[str, Any]:
    """cuBLAS, cuDNN, NCCL, tunable operators and others: settings that nothing here reads."""
    mode: dict[str, Any] = {"sync_debug": 0, "benchmark_limit": 10}
    return {
        "_cuda_getCurrentBlasHandle": _answer(1),
        "_cuda_getCurrentSolverHandle": _answer(1),
        "_cuda_clearCublasWorkspaces": lambda: _clear_workspaces(),
        "_cuda_getCublasWorkspaceSize": _answer(0),
        "_cuda_setCublasWorkspaceSize": _answer(None),
        "_cuda_getCublasLtWorkspaceSize": _answer(0),
        "_cuda_setCublasLtWorkspaceSize": _answer(None),
        "_cuda_set_sync_debug_mode": lambda value: mode.update(sync_debug=value),
        "_cuda_get_sync_debug_mode": lambda: mode["sync_debug"],
        "_cuda_set_cudnn_benchmark_limit": lambda value: mode.update(benchmark_limit=value),
        "_cuda_get_cudnn_benchmark_limit": lambda: mode["benchmark_limit"],
        "_cuda_get_conv_benchmark_empty_cache": _answer(False),
        "_cudnn_set_conv_benchmark_empty_cache": _answer(None),
        "_cuda_tunableop_is_enabled": _answer(False),
        "_cuda_tunableop_enable": _answer(None),
        "_cuda_tunableop_tuning_is_enabled": _answer(False),
        "_cuda_tunableop_tuning_enable": _answer(None),
        "_cuda_record_untuned_is_enabled": _answer(False),
        "_is_flash_attention_available": _answer(True),
        **_backend_choices(),
        "_nccl_version": _answer(_NCCL_VERSION),
        "_nccl_version_suffix": _answer(b""),
    }


# ---- objects ----


class _Generator(torch.Generator):
    """The default generator of the device. Its state is a seed and an offset, as that of a real one."""

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.initial_seed() % (1 << 63), 0], dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> torch.Generator:
        if new_state.dtype != torch.uint8 or new_state.numel() != 16:
            raise RuntimeError("RNG state is wrong size: that of a CUDA generator has 16 bytes")
        self.manual_seed(int(new_state.cpu().contiguous().view(torch.int64)[0]))
        return self

    def clone_state(self) -> torch.Generator:
        """Compiled code keeps such a copy for dropout in what is computed again, and needs the device's index."""
        return _Generator(device=self.device)

    def graphsafe_get_state(self) -> torch.Generator:
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> torch.Generator:
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        index: int | None = torch.Generator.device.__get__(self).index
        return torch.device("cuda", index or 0)

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        return self


def _cudart(memory: Memory) -> Any:
    class Error(int):
        success = 0

    return types.SimpleNamespace(
        cudaError=Error,
        cudaGetErrorString=_answer("no error"),
        cudaProfilerStart=_answer(0),
        cudaProfilerStop=_answer(0),
        cudaHostRegister=_answer(0),
        cudaHostUnregister=_answer(0),
        cudaStreamCreate=_answer(0),
        cudaStreamDestroy=_answer(0),
        cudaMemGetInfo=lambda device=None: memory.info(_index(device)),
    )


def _nvtx() -> Any:
    names = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA", "deviceRangeStart", "deviceRangeEnd")
    return types.SimpleNamespace(**{name: _answer(0) for name in names})


def _index(device: Any) -> int:
    return int(torch.cuda._utils._get_device_index(device, optional=True))


def _processes(memory: Memory, device: int) -> str:
    used = memory.bytes("reserved_bytes", "current", device) / (1 << 20)
    return f"GPU:{device}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"


# ---- torch's modules ----


# ---- torch.cuda.FloatTensor and its like: where torch was built without CUDA, they cannot be called ----

_DTYPES_BY_TYPE = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _TensorType(type):
    """A class that makes tensors of a dtype on the device. isinstance() says that such tensors belong to it."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(sizes, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def _legacy_types() -> dict[str, Any]:
    if torch.backends.cuda.is_built():
        return {}
    return {
        name: _TensorType(f"torch.cuda.{name}", (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"})
        for name, dtype in _DTYPES_BY_TYPE.items()
    }


def _cuda_module(gpu: Gpu, memory: Memory, functions: dict[str, Any], count: int) -> dict[str, Any]:
    installed_in = os.getpid()
    properties = [DeviceProperties(gpu, index) for index in range(count)]
    return {
        "_initialized": True,
        "_cached_device_count": count,
        "_cudart": _cudart(memory),
        "_is_in_bad_fork": lambda: os.getpid() != installed_in,
        "_exchange_device": functions["_cuda_exchangeDevice"],
        "_maybe_exchange_device": functions["_cuda_maybeExchangeDevice"],
        "_CudaDeviceProperties": DeviceProperties,
        "_get_device_properties": lambda index: properties[index],
        "default_generators": tuple(_Generator(device=f"cuda:{index}") for index in range(count)),
        "device_count": _answer(count),
        "is_available": _answer(True),
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
        "Event": streams.Event,
        "utilization": _answer(0),
        "memory_usage": _answer(0),
        "temperature": _answer(40),
        "power_draw": _answer(0),
        "clock_rate": _answer(properties[0].clock_rate // 1000),
        "device_memory_used": lambda device=None: gpu.memory - memory.info(_index(device))[0],
        "list_gpu_processes": lambda device=None: _processes(memory, _index(device)),
        **_legacy_types(),
    }


def replacements(gpu: Gpu, memory: Memory, count: int) -> list[tuple[Any, dict[str, Any]]]:
    """What to set in which object while so many virtual devices are installed."""
    cudnn_module: Any = torch.backends.cudnn
    private = pools.Pools(memory)
    graph = graphs.graph_class(private)
    mem_pool = type("MemPool", (pools.MemPool,), {"_pools": private, "__module__": "torch.cuda.memory"})
    functions = {
        **_device_functions(gpu, count),
        **_library_functions(),
        **_copies_between_devices(),
        **memory.functions(),
        **private.functions(),
    }
    has_cuda = torch.backends.cuda.is_built()
    # without CUDA among them, the profiler would record events of its own
    activities = torch.profiler.supported_activities()
    cudnn = {"is_available": _answer(True), "version": _answer(_CUDNN_VERSION), "_init": _answer(True)}
    return [
        (torch._C, functions),
        (torch.cuda, {**_cuda_module(gpu, memory, functions, count), "CUDAGraph": graph, "MemPool": mem_pool}),
        (
            torch.cuda.streams,
            {"Stream": streams.Stream, "ExternalStream": streams.ExternalStream, "Event": streams.Event},
        ),
        (
            torch.cuda.graphs,
            {
                "CUDAGraph": graph,
                "_graph_pool_handle": private.new_handle,
                "_cuda_isCurrentStreamCapturing": functions["_cuda_isCurrentStreamCapturing"],
            },
        ),
        (torch.cuda.graphs.graph, {"default_capture_stream": None}),
        (
            torch.cuda.memory,
            {
                "list_gpu_processes": lambda device=None: _processes(memory, _index(device)),
                "MemPool": mem_pool,
                **{
                    name: private.functions()[name]
                    for name in (
                        "_cuda_beginAllocateCurrentThreadToPool",
                        "_cuda_beginAllocateToPool",
                        "_cuda_endAllocateToPool",
                        "_cuda_releasePool",
                    )
                    if hasattr(torch.cuda.memory, name)
                },
            },
        ),
        (torch.cuda.nvtx, {"_nvtx": _nvtx()}),
        (torch.cuda.nccl, {"is_available": _answer(False)}),  # torch.cuda.comm then adds up without it
        (torch.cuda.amp.common, {"amp_definitely_not_available": lambda: False}),
        (cudnn_module.m, cudnn),
        (
            torch.autograd.profiler,
            {"_supported_activities": lambda: {*activities, torch.profiler.ProfilerActivity.CUDA}},
        ),
        (torch.version, {} if has_cuda else {"cuda": _CUDA_VERSION}),
    ]
