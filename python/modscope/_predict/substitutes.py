"""What a script on a virtual GPU gets instead of process groups and kernels of its own, and how it is compiled.

torch.compile                 compiles for the virtual GPU; the function itself, where that cannot be done
init_process_group            a process group of this process alone, or of virtual ranks
Triton kernels                nothing is launched: a kernel writes to tensors that its caller allocated
flash_attn's functions in C   an error that says what to do
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from modscope._predict import ddp
from modscope._predict.result import CompiledFacts, RanksFacts
from modscope._virtual.operators.unknown import unknown_kernel

if TYPE_CHECKING:
    from modscope._predict.sharding import Sharding
    from modscope._virtual.compiled.compiler import Compiler
    from modscope._virtual.ranks.collectives import Ranks

_MOST_NAMES = 3
_EXTENSIONS = ("flash_attn_2_cuda", "flash_attn_cuda", "flash_attn_3_cuda", "flash_attn_3._C")


class Substitutes:
    """Installed with the virtual GPU, and removed with it."""

    def __init__(
        self,
        ranks: Ranks | None = None,
        sharding: Sharding | None = None,
        compiles: bool = True,
        activation_budget: float | None = None,
    ) -> None:
        """``ranks``: of process groups; None: they have one. ``sharding``: what fully_shard is asked. ``compiles``:
        torch.compile compiles; otherwise programs run uncompiled. ``activation_budget``: of what is compiled."""
        self._activation_budget = activation_budget
        self._ranks = ranks
        self._compiles = compiles
        self._compiler: Compiler | None = None
        self._has_compiled = False
        self._why_uncompiled = ""
        self._sharding = sharding
        self._undo = contextlib.ExitStack()
        self._groups: list[int] = []
        """The sizes that process groups were to have."""
        self._kernels: list[str] = []

    def install(self) -> None:
        try:
            self._undo.enter_context(self._compilation())
            self._undo.enter_context(self._process_groups())
            if self._sharding is not None:
                self._undo.enter_context(self._sharding.installed())
            watched: dict[str, Callable[[types.ModuleType], object]] = {"triton.runtime.jit": self._skip_triton_kernels}
            if self._compiles:
                watched["torch._inductor.compile_fx"] = lambda module: self._prepare_compiler("inductor")
            self._undo.enter_context(_imports_watched(watched))
        except BaseException:
            self._undo.close()
            raise

    def remove(self) -> None:
        self._undo.close()

    def notes(self) -> list[str]:
        """A sentence for each thing that was done in another way than on a GPU."""
        notes = []
        if self._has_compiled and self._why_uncompiled:
            notes.append(f"{self._why_uncompiled} On the GPU a compiled one needs other memory, and less time.")
        elif self._compiler is not None:
            notes += self._compiler.notes()
        if self._groups and self._ranks is not None:
            notes += self._ranks_notes(self._ranks) + (self._sharding.notes() if self._sharding is not None else [])
        elif self._ranks is not None:
            notes.append(
                "The script made no process group, so it is the same on every rank: ranks matter after "
                "init_process_group."
            )
        elif self._groups:
            ranks = f" instead of {max(self._groups)}" if max(self._groups) > 1 else ""
            notes.append(
                f"The process group has one rank{ranks}: what other ranks would hold or send is not predicted."
            )
        if self._kernels:
            names = ", ".join(self._kernels[:_MOST_NAMES]) + (", ..." if len(self._kernels) > _MOST_NAMES else "")
            notes.append(f"Triton kernels were not launched ({names}): their time is not counted.")
        return notes

    # ---- torch.compile ----

    @contextlib.contextmanager
    def _compilation(self) -> Iterator[None]:
        import torch

        original = torch.compile

        @functools.wraps(original)
        def compile(model: Any = None, **options: Any) -> Any:
            if model is None:
                return lambda decorated: compile(decorated, **options)
            self._has_compiled = True
            if not callable(model) or self._prepare_compiler(options.get("backend", "inductor")):
                return original(model, **options)  # which says what is wrong with a model that is none
            return _as_if_compiled(model) if isinstance(model, torch.nn.Module) else model

        try:
            with _attribute(torch, "compile", compile):
                yield
        finally:
            if self._compiler is not None:
                self._compiler.remove()

    def _prepare_compiler(self, backend: Any) -> bool:
        """Whether the program can be compiled by this backend of torch.compile."""
        if not self._compiles:
            self._why_uncompiled = "The program ran uncompiled, as --no-compile says."
            return False
        if self._compiler is None:
            from modscope._virtual.compiled.compiler import Compiler

            self._compiler = Compiler(self._activation_budget)
        why = self._compiler.prepare(backend if isinstance(backend, str) else "")
        if why:
            self._why_uncompiled = f"The program ran uncompiled: {why}."
        return not why

    def compiled_facts(self) -> CompiledFacts | None:
        """None: the program compiled nothing."""
        counts = self._compiler.counts if self._compiler is not None else None
        if not self._has_compiled and not (counts and counts.graphs):
            return None
        failures = counts.failures if counts else []
        return {
            "graphs": counts.graphs if counts else 0,
            "uncompiled_graphs": len(failures),
            "graph_breaks": [*counts.breaks.values()] if counts else [],
            "recompiles": counts.recompiles if counts else 0,
            "why_uncompiled": self._why_uncompiled or (failures[0] if failures else None),
        }

    # ---- process groups ----

    def ranks_facts(self) -> RanksFacts | None:
        if self._ranks is None:
            return None
        return {
            "size": self._ranks.size,
            "rank": self._ranks.rank,
            "per_node": self._ranks.per_node,
            "communicators": len(self._ranks.communicators()),
            "communicator_bytes": self._ranks.communicator_bytes(),
            "collective_bytes": self._ranks.bytes,
            "fully_shard": self._sharding.facts() if self._sharding is not None else None,
        }

    def _ranks_notes(self, ranks: Ranks) -> list[str]:
        asked = {size for size in self._groups if size > 0} - {ranks.size}
        return (
            [f"The script asked for a process group of {max(asked)} ranks; it has {ranks.size}, as --ranks says."]
            if asked
            else []
        )

    def _process_groups(self) -> contextlib.AbstractContextManager[None]:
        import torch.distributed

        if self._ranks is None or not torch.distributed.is_available():
            return self._process_group_of_one()
        from modscope._virtual.ranks import process_groups

        return process_groups.installed(self._ranks, self._groups.append)

    @contextlib.contextmanager
    def _process_group_of_one(self) -> Iterator[None]:
        import torch.distributed

        distributed: Any = torch.distributed

        if not distributed.is_available():
            yield
            return
        original = distributed.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **options: Any) -> None:
            self._groups.append(_wanted_ranks(args, options))

            original("cpu:gloo,cuda:fake", store=distributed.HashStore(), rank=0, world_size=1)

        with (
            _attribute(distributed, "init_process_group", init_process_group),
            _attribute(distributed.distributed_c10d, "init_process_group", init_process_group),
            ddp.one_rank(),
        ):
            yield

    # ---- Triton ----

    def _skip_triton_kernels(self, module: types.ModuleType) -> None:
        def run(kernel: Any, *args: Any, **options: Any) -> None:
            name = getattr(getattr(kernel, "fn", None), "__name__", "?")
            if name not in self._kernels:
                self._kernels.append(name)

        self._undo.enter_context(_attribute(module.JITFunction, "run", run))


def _as_if_compiled(model: Any) -> Any:
    """The wrapper that torch.compile returns, with ``_orig_mod``; its forward is the model's own."""
    from torch._dynamo.eval_frame import DisableContext, OptimizedModule

    return OptimizedModule(model, DisableContext())


def _wanted_ranks(args: Sequence[Any], options: dict[str, Any]) -> int:
    import os

    size = options.get("world_size", args[3] if len(args) > 3 else -1)
    text = os.environ.get("WORLD_SIZE", "1")
    return size if isinstance(size, int) and size > 0 else int(text) if text.isdecimal() else 1


# ---- modules that have kernels ----


class _Extension(types.ModuleType):
    """In place of an extension module that needs a GPU: its functions raise an error when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            raise unknown_kernel(f"{self.__name__}.{name}")

        return call


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the extensions, and notices when some modules have been imported."""

    def __init__(self, watched: dict[str, Callable[[types.ModuleType], object]]) -> None:
        self._watched = watched

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name in _EXTENSIONS:
            return importlib.machinery.ModuleSpec(name, self)
        if name in self._watched:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                self._notice(spec.loader, self._watched[name])
            return spec
        return None

    def _notice(self, loader: Any, then: Callable[[types.ModuleType], object]) -> None:
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            then(module)

        loader.exec_module = exec_module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Extension(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


@contextlib.contextmanager
def _imports_watched(watched: dict[str, Callable[[types.ModuleType], object]]) -> Iterator[None]:
    """Call functions with modules, now or when they have been imported."""
    importer = _Importer(watched)
    sys.meta_path.insert(0, importer)
    for name, then in watched.items():
        if name in sys.modules:
            then(sys.modules[name])
    try:
        yield
    finally:
        sys.meta_path.remove(importer)
        for name in _EXTENSIONS:
            if isinstance(sys.modules.get(name), _Extension):
                del sys.modules[name]


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute, and restore it in the end unless somebody else has set it since."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if getattr(owner, name) is value:
            setattr(owner, name, before)
