"""Make torch's compiler compile for the virtual device, and put everything back.

Dynamo and AOTAutograd need nothing: they trace with fake tensors. Inductor asks the device for its properties, Triton
for a driver, and generates a Python module for each graph. That module allocates by a function of C++ that passes by
the dispatcher, and launches kernels: both are replaced before a module is imported."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch
from modscope._virtual.compiled import caches, kernels
from modscope._virtual.compiled.assumed import Assumptions
from modscope._virtual.compiled.counts import Counts
from modscope._virtual.operators import operators
from modscope._virtual.rules import convolution
from modscope._virtual.time import times

__all__ = ["Compiler"]

_NEEDED_BY_DYNAMO = {
    "torch._C": ("_conv_determine_backend_memory_format",),
    "torch._dynamo.config": ("automatic_dynamic_local_pgo",),
    "torch._dynamo.device_interface": ("CudaInterface.get_raw_stream",),
    "torch._dynamo.output_graph": ("GraphCompileReason.__post_init__", "OutputGraph.call_user_compiler"),
    "torch._inductor.runtime.cache_dir_utils": ("cache_dir",),
}
_NEEDED = {
    "torch._C._dynamo.guards": ("_empty_strided_cuda",),
    "torch._inductor.autotune_process": ("TritonBenchmarkRequest.benchmark",),
    "torch._inductor.compile_fx": ("_compile_fx_inner",),
    "torch._inductor.config": ("compile_threads", "autotune_local_cache", "cpp_wrapper"),
    "torch._inductor.fx_passes.pad_mm": ("get_cached_should_pad",),
    "torch._inductor.output_code": ("CompiledFxGraph.__call__",),
    "torch._inductor.runtime.benchmarking": ("InductorBenchmarker.benchmark_gpu",),
    "torch._inductor.runtime.triton_heuristics": (
        "CachingAutotuner.run",
        "CachingAutotuner.precompile",
        "CachingAutotuner.copy_args_to_cpu_if_needed",
        "CachingAutotuner.maybe_clone_args",
    ),
    "triton.backends.driver": ("GPUDriver",),
    "triton.backends.nvidia.driver": ("CudaDriver",),
    "triton.runtime": ("driver._active",),
}
"""What is relied on, by module. Where one is missing, programs run uncompiled."""
_FIRST_VERSION = (2, 11)
"""Of torch, whose Inductor was tried."""
_OF_CUDA_BUILDS = ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled")
"""Names of torch._C that Inductor imports and that a build without CUDA lacks."""
_SETTINGS = {
    "compile_threads": 1,  # a worker process would have no virtual device
    "autotune_local_cache": False,  # each prediction allocates what the first run on a GPU does
    "benchmark_combo_kernel": True,  # tells the bytes of kernels
    "cpp_wrapper": False,
    "max_autotune_gemm_backends": "ATEN",  # which kernel is fastest is not known: the one that is used otherwise
    "max_autotune_conv_backends": "ATEN",
    "fx_graph_remote_cache": False,
    "autotune_remote_cache": False,
    "bundled_autotune_remote_cache": False,
}
"""Of torch._inductor.config."""


class _Unusable(Exception):
    """Why Inductor cannot compile for the device, in a sentence without its full stop."""


def _why_no_triton() -> str | None:
    if importlib.util.find_spec("triton") is not None:
        return None
    return "Inductor generates kernels for Triton, which is not installed: pip install triton"


def _check_internals(needed: dict[str, tuple[str, ...]]) -> None:
    """Everything that is needed must be there."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _FIRST_VERSION:
        raise _Unusable(
            f"compiling for a virtual GPU needs torch {_FIRST_VERSION[0]}.{_FIRST_VERSION[1]} or newer, "
            f"not {torch.__version__}"
        )
    for module, names in needed.items():
        try:
            found: Any = importlib.import_module(module)
            for name in names:
                functools.reduce(getattr, name.split("."), found)
        except (ImportError, AttributeError) as error:
            raise _Unusable(f"this version of torch or Triton compiles in another way ({error})") from error


# ---- what is put in place of torch's ----


def _empty_strided(size: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """How generated code allocates."""
    return operators.make(size, strides, dtype)


def _driver() -> Any:
    """A driver of Triton that knows its target and nothing else: the real one's constructor needs libcuda."""
    base: Any = importlib.import_module("triton.backends.driver").GPUDriver
    cuda: Any = importlib.import_module("triton.backends.nvidia.driver").CudaDriver

    class VirtualDriver(cuda):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)

    return VirtualDriver()


def _format_of_convolution() -> Callable[..., torch.memory_format]:
    """What fake tensors ask for the layout of a result. Where torch was built without cuDNN, it answers for the CPU."""
    original: Callable[..., torch.memory_format] = torch._C._conv_determine_backend_memory_format

    def format(input: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        return convolution.memory_format(input, weight) if input.is_cuda else original(input, weight, backend)

    return format


def _benchmark(benchmarker: Any, run_once: Callable[[], Any], *args: Any, **options: Any) -> Any:
    """In place of InductorBenchmarker.benchmark_gpu."""
    milliseconds = kernels.benchmark(run_once)
    return [milliseconds] if options.get("return_mode") == "all" else milliseconds


def _equally_fast(*args: Any, **options: Any) -> float:
    """In place of TritonBenchmarkRequest.benchmark: of a template's configurations, the first one is chosen."""
    return 1.0


@contextlib.contextmanager
def _attributes(owner: Any, values: dict[str, Any]) -> Iterator[None]:
    """Set attributes of a module or class, and restore them in the end."""
    absent = object()
    before = {name: vars(owner).get(name, absent) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            delattr(owner, name) if value is absent else setattr(owner, name, value)


def _names_of_cuda_builds() -> contextlib.AbstractContextManager[None]:
    missing = [name for name in _OF_CUDA_BUILDS if not hasattr(torch._C, name)]
    return _attributes(torch._C, dict.fromkeys(missing, _nothing))


def _nothing(*args: Any, **options: Any) -> None:
    return None


class _LazyTemplate:
    """A template of Inductor that is compiled when it is used first."""

    def __init__(self, compile: Callable[[str], Any], source: str) -> None:
        self._compile = lambda: compile(source)

    def __getattr__(self, name: str) -> Any:
        compiled = self._compile()
        vars(self).update(render=compiled.render)
        return getattr(compiled, name)


class Compiler:
    """torch's compiler for the virtual device. ``prepare`` installs it when a program first compiles something: to
    import Inductor takes seconds."""

    def __init__(self, activation_budget: float | None = None) -> None:
        """``activation_budget``: torch._functorch.config.activation_memory_budget while something is compiled; None: as
        the program has set it."""
        self.counts = Counts()
        self._activation_budget = activation_budget
        self._assumed = Assumptions()
        self._undo = contextlib.ExitStack()
        self._is_preparing = False
        self._why_no_dynamo: str | None = None
        self._why_no_inductor: str | None = None

    def prepare(self, backend: str) -> str:
        """Let a backend of torch.compile compile for the device from now on. Returns why it cannot, "" if it can."""
        if self._is_preparing:  # which imports Inductor
            return ""
        self._is_preparing = True
        try:
            if self._why_no_dynamo is None:
                self._why_no_dynamo = self._install(_NEEDED_BY_DYNAMO, self._dynamo)
            if self._why_no_dynamo or backend != "inductor":
                return self._why_no_dynamo
            if self._why_no_inductor is None:
                self._why_no_inductor = _why_no_triton() or self._install(_NEEDED, self._inductor)
            return self._why_no_inductor
        finally:
            self._is_preparing = False

    def remove(self) -> None:
        """Nothing that was compiled is used afterwards."""
        self._undo.close()
        self._why_no_dynamo = self._why_no_inductor = None

    def notes(self) -> list[str]:
        """A sentence for each thing that was assumed."""
        return self._assumed.notes()

    @staticmethod
    def _load_inductor() -> None:
        """Inductor compiles its templates of kernels when it is imported, most of which no program uses."""
        from torch._inductor.codegen.common import KernelTemplate

        of: Any = KernelTemplate
        original: Any = of._template_from_string
        of._template_from_string = staticmethod(lambda source: _LazyTemplate(original, source))
        try:
            import torch._inductor.select_algorithm  # noqa: F401
        finally:
            of._template_from_string = staticmethod(original)

    def _install(self, needed: dict[str, tuple[str, ...]], replace: Callable[[contextlib.ExitStack], None]) -> str:
        with contextlib.ExitStack() as undo:
            undo.enter_context(_names_of_cuda_builds())
            try:
                from torch._inductor import config  # first: other modules of Inductor start worker processes

                if needed is _NEEDED:
                    self._load_inductor()
                undo.enter_context(config.patch({n: v for n, v in _SETTINGS.items() if hasattr(config, n)}))
                _check_internals(needed)
            except (_Unusable, ImportError) as error:
                return str(error)
            replace(undo)
            self._undo.push(undo.pop_all())
        return ""

    def _dynamo(self, undo: contextlib.ExitStack) -> None:
        from torch._dynamo import config, device_interface

        stream = torch._C._cuda_getCurrentRawStream
        undo.enter_context(caches.forgotten())
        undo.enter_context(caches.own_folder())
        undo.enter_context(_attributes(device_interface, {"get_cuda_stream": stream}))
        undo.enter_context(_attributes(device_interface.CudaInterface, {"get_raw_stream": staticmethod(stream)}))
        undo.enter_context(config.patch(automatic_dynamic_local_pgo=False))
        if torch.distributed.is_available():  # virtual groups have no timeouts to extend
            groups: Any = torch.distributed.distributed_c10d
            undo.enter_context(_attributes(groups, {"_add_ephemeral_timeout_for_all_pgs": _nothing}))
        undo.enter_context(_attributes(torch._C, {"_conv_determine_backend_memory_format": _format_of_convolution()}))
        undo.enter_context(self.counts.watched())
        if self._activation_budget is not None:
            undo.enter_context(self._budgeted())

    def _inductor(self, undo: contextlib.ExitStack) -> None:
        undo.enter_context(self._for_device())

    @contextlib.contextmanager
    def _budgeted(self) -> Iterator[None]:
        """AOTAutograd decides in dynamo's call of its backend what is kept for backward."""
        from torch._dynamo.output_graph import OutputGraph
        from torch._functorch import config

        output: Any = OutputGraph
        called = output.call_user_compiler

        def call(graph: Any, *args: Any, **options: Any) -> Any:
            with config.patch(activation_memory_budget=self._activation_budget):
                return called(graph, *args, **options)

        with _attributes(output, {"call_user_compiler": call}):
            yield

    @contextlib.contextmanager
    def _for_device(self) -> Iterator[None]:
        from torch._inductor import autotune_process, compile_fx, output_code
        from torch._inductor.fx_passes import pad_mm
        from torch._inductor.runtime import benchmarking, triton_heuristics

        driver: Any = importlib.import_module("triton.runtime").driver
        graph: Any = output_code.CompiledFxGraph
        called, compiled = graph.__call__, vars(compile_fx)["_compile_fx_inner"]

        def call(graph: Any, inputs: Any) -> Any:
            self._assumed.count(graph)
            with times.compiled():
                return called(graph, inputs)

        def compile_graph(module: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            return self._compile(compiled, module, inputs, *args, **options)

        with (
            _attributes(torch._C._dynamo.guards, {"_empty_strided_cuda": _empty_strided}),
            _attributes(triton_heuristics.CachingAutotuner, {"run": kernels.run, "precompile": kernels.precompile}),
            _attributes(autotune_process.TritonBenchmarkRequest, {"benchmark": _equally_fast}),
            _attributes(benchmarking.InductorBenchmarker, {"benchmark_gpu": _benchmark}),
            _attributes(compile_fx, {"_compile_fx_inner": compile_graph}),
            _attributes(graph, {"__call__": call}),
            _attributes(pad_mm, {"get_cached_should_pad": self._should_pad}),
            _attributes(driver, {"_active": _driver()}),
        ):
            yield

    def _compile(self, compile: Callable[..., Any], module: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Compile a graph; where Inductor fails, the graph runs uncompiled, operator by operator."""
        from torch._functorch._aot_autograd.utils import make_boxed_func

        self._assumed.begin()
        try:
            graph = compile(module, inputs, *args, **options)
            config: Any = importlib.import_module("torch._inductor.config")
            self._assumed.add(autotuned=int(config.max_autotune or config.max_autotune_gemm))
            self._assumed.end(graph)
            return graph
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.counts.failures.append(f"{type(error).__name__}: {error}".splitlines()[0])
            return make_boxed_func(module.forward)

    def _should_pad(self, key: Any) -> bool:
        """Whether Inductor pads a product whose rows do not begin at multiples of 16 bytes. On a real GPU it measures
        both. Tensor cores are much faster with padding; without them it only adds copies."""
        text = str(key)  # its last part says whether float32 is computed as tf32
        by_tensor_cores = "float16" in text or text.endswith("True)")
        self._assumed.add(padded=int(by_tensor_cores))
        return by_tensor_cores
