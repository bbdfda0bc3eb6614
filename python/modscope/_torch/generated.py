"""What torch.compile generates: which module owns what a generated function allocates.

Inductor writes a Python module for each graph, from whose functions modscope learns nothing while they run. When one is
loaded, its text is read once: each kernel is written below a comment that names the nodes of dynamo's graph whose
results it computes, and dynamo's nodes tell their modules and lines. Every line that allocates gets an owner, and the
table goes to generated_code.c, which is all that is used when blocks are reported.

A buffer belongs to the module that asked for the result which is first written to it."""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from modscope import _native

__all__ = ["watch"]

# ---- dynamo's graphs ----


class _Node(NamedTuple):
    """A node of dynamo's graph."""

    owner: str
    """How dynamo reaches the module that computes it: ``L['self'].blocks.0``."""
    file: str
    function: str
    line: int


class _DynamoGraph(NamedTuple):
    nodes: dict[str, _Node]
    scopes: dict[str, dict[str, Any]]
    """``L`` and ``G``: the variables of the function that was compiled. Only modules are kept."""
    caller: int
    """The path of the call in which it was compiled."""


_graphs: dict[Any, _DynamoGraph] = {}
"""By the number of the compilation: its backward may be compiled later."""
_MOST_GRAPHS = 256
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _compilation() -> Any:
    from torch._guards import CompileContext

    compilation = CompileContext.current_compile_id()
    return compilation and (compilation.frame_id, compilation.frame_compile_id)


def _graph_compiled(output: Any, graph: Any) -> None:
    nodes = {}
    for node in graph.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack and node.op != "placeholder":
            frames = _FRAME.findall(node.meta.get("stack_trace") or "")
            file, line, function = frames[-1] if frames else ("", "0", "")
            calls = [*stack.values()]
            nodes[node.name] = _Node(calls[-1][0], file, _qualified(file, function, calls), int(line))
    bases = {node.owner[: node.owner.find("]") + 1] for node in nodes.values()}
    scopes: dict[str, dict[str, Any]] = {"L": {}, "G": {}}
    for base in bases:
        scope, name = base[:1], base[3:-2]
        value = {"L": output.local_scope, "G": output.global_scope}.get(scope, {}).get(name)
        if value is not None:
            scopes[scope][name] = _weak(value)
    while len(_graphs) >= _MOST_GRAPHS:
        _graphs.pop(next(iter(_graphs)))
    _graphs[_compilation()] = _DynamoGraph(nodes, scopes, _native.path_here())


def _qualified(file: str, function: str, calls: list[Any]) -> str:
    """The function's name with its class, if it is a method of a module that is being called."""
    for _, kind in reversed(calls):
        code = getattr(getattr(kind, function, None), "__code__", None)
        if code is not None and code.co_filename == file:
            return str(code.co_qualname)
    return function


def _weak(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None


def _owner_at(graph: _DynamoGraph, path: str) -> Any:
    """The module that dynamo reaches by this path; None if it is not found."""
    end = path.find("]") + 1
    reference = graph.scopes.get(path[:1], {}).get(path[3 : end - 2])
    found = reference() if reference else None
    for name in path[end:].split(".")[1:]:
        found = getattr(found, name, None)
    return found if isinstance(found, torch.nn.Module) else None


def _outermost(graph: _DynamoGraph, path: str) -> Any:
    """The first module on the way to the one that dynamo reaches by this path."""
    names = path[path.find("]") + 1 :].split(".")
    base = path[: path.find("]") + 1]
    ways = (base + ".".join(names[:count]) for count in range(1, len(names) + 1))
    return next((module for way in ways if (module := _owner_at(graph, way)) is not None), None)


# ---- generated text ----

_SOURCES = re.compile(r"# (?:Topologically Sorted|Unsorted) Source Nodes: \[([^\]]*)\]")
_ALLOCATION = re.compile(r"(\w+) = empty_strided_\w+\((\([^()]*\)), (\([^()]*\)), torch\.(\w+)")
_ALIAS = re.compile(r"(\w+) = (?:reinterpret_tensor\((\w+),|(\w+);)")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_KERNEL = re.compile(r"(\w+)\.run\(")
_MAPPING = re.compile(r"#   (\w+) => (.+)")
_RESULT = re.compile(r'#   %(\w+) : Tensor "(\w+)(\[[^\]]*\])(\[[^\]]*\])')
_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "i64": "int64", "i32": "int32"}
_TYPES |= {"i16": "int16", "i8": "int8", "u8": "uint8", "b8": "bool"}


class _Place(NamedTuple):
    node: str
    """Of dynamo's graph."""
    kernel: str
    modules: int
    """How many modules the kernel serves."""


class _Text:
    """The text of a generated module. ``places``: of each line that allocates."""

    def __init__(self, text: str, graph: _DynamoGraph) -> None:
        self._graph = graph
        self._lines = text.splitlines()
        self._results = dict(self._read_results())
        self.places: dict[int, _Place] = {}
        self._pending: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Buffers that nothing has used yet: where they were allocated, and their shape, strides and type."""
        self._read()

    def _read_results(self) -> Iterator[tuple[str, list[tuple[tuple[str, ...], str]]]]:
        """What each kernel returns, by the comment above it: shape, strides and type of each result, and the node of
        dynamo's graph from which it is."""
        sources: dict[str, str] = {}
        specs: dict[str, tuple[str, ...]] = {}
        returned: list[str] = []
        for line in self._lines:
            if _SOURCES.match(line):
                sources, specs, returned = {}, {}, []
            elif mapping := _MAPPING.match(line):
                sources |= dict.fromkeys(mapping[2].split(", "), mapping[1])
            elif result := _RESULT.match(line):
                shape, strides = ("(" + text[1:-1].replace(" ", "") + ")" for text in (result[3], result[4]))
                specs[result[1]] = (shape, strides, _TYPES.get(result[2], result[2]))
            elif line.startswith("#   return "):
                returned = [name.strip("% ") for name in line[11:].split(",")]
            elif returned and " = async_compile." in line:
                yield line.partition(" = ")[0], [(specs.get(name, ()), sources.get(name, "")) for name in returned]
                returned = []

    def _read(self) -> None:
        nodes: list[str] = []
        was_used = False
        for number, line in enumerate(self._lines, 1):
            if not line.startswith((" ", "\t")):
                continue
            text = line.strip()
            if sources := _SOURCES.match(text):
                listed = [name for name in sources[1].split(", ") if name in self._graph.nodes]
                nodes, was_used = (listed, False) if listed or was_used else (nodes, False)
            elif allocation := _ALLOCATION.match(text):
                spec = (*[part.replace(" ", "").replace(",)", ")") for part in allocation.groups()[1:3]], allocation[4])
                self._pending[allocation[1]] = (number, spec)
            elif (alias := _ALIAS.match(text)) and (alias[2] or alias[3]) in self._pending:
                self._pending[alias[1]] = self._pending[alias[2] or alias[3]]
            elif not text.startswith(("#", "del ", "assert_", "return ", "raw_stream", "with ", "def ")):
                self._use(number, text, nodes)
                was_used = True

    def _use(self, number: int, text: str, nodes: list[str]) -> None:
        """A statement runs a kernel or an operator."""
        if not nodes:
            return
        modules = len({self._graph.nodes[name].owner for name in nodes})
        kernel = _KERNEL.match(text)
        called = kernel[1] if kernel else text.partition("(")[0].rpartition(" = ")[2]
        self.places[number] = _Place(nodes[-1], called, modules)
        results = [*self._results.get(called, ())]
        names = [*dict.fromkeys(name for name in _NAME.findall(text) if name in self._pending)]
        for name in sorted(names, key=lambda name: self._pending[name][0]):
            line, spec = self._pending.pop(name)
            at = next((i for i, result in enumerate(results) if result[0] == spec), -1)
            node = results[at][1] if at >= 0 else ""
            del results[: at + 1]
            self.places.setdefault(line, _Place(node if node in self._graph.nodes else nodes[-1], called, modules))


# ---- functions ----


def _functions(module: types.ModuleType) -> Iterator[types.CodeType]:
    for value in list(vars(module).values()):
        members = [value, *vars(value).values()] if isinstance(value, type) else [value]
        for member in members:
            if isinstance(member, types.FunctionType) and member.__code__.co_filename == module.__file__:
                yield member.__code__


def _loaded(module: Any) -> None:
    """A generated module was loaded."""
    graph = _graphs.get(_compilation())
    if graph is None or not graph.nodes or not callable(getattr(module, "call", None)):
        return
    with open(module.__file__, encoding="utf-8") as file:
        places = _Text(file.read(), graph).places
    for code in _functions(module):
        _add(code, places, graph)


def _add(code: types.CodeType, places: dict[int, _Place], graph: _DynamoGraph) -> None:
    own = [*dict.fromkeys(places[line] for _, _, line in code.co_lines() if line in places)]
    if not own:
        return
    index = {place: i for i, place in enumerate(own)}
    ranges = [(begin, end, index[places[line]]) for begin, end, line in code.co_lines() if line in places]
    nodes = [graph.nodes[place.node] for place in own]
    shown = [(node.file, node.function, node.line, _called(place)) for node, place in zip(nodes, own)]
    _native.add_generated_code(code, ranges, tuple(shown), [*_callers(graph, [node.owner for node in nodes])])


def _called(place: _Place) -> str:
    return place.kernel + (f" (for {place.modules} modules)" if place.modules > 1 else "")


def _callers(graph: _DynamoGraph, owners: list[str]) -> Iterator[tuple[int, list[int]]]:
    """The owners of places, by the caller's path. What one layer's forward was compiled to, others of its class may
    run, too: dynamo reaches each as ``self``."""
    variables = graph.scopes["L"]
    name = next((each for each in ("self", "fn") if each in variables), "")
    own = variables[name]() if name else None
    if name == "fn" and not isinstance(own, torch.nn.Module):  # what torch.compile has made of a module
        own = next((each for path in owners if (each := _outermost(graph, path)) is not None), None)
    if not isinstance(own, torch.nn.Module):
        yield graph.caller, _numbers(graph, owners)
        return
    others = [module for module in _native.known_instances(type(own)) if module is not own]
    if not others or graph.caller == _native.path_of_module(own):  # else it is not known which of them runs
        yield graph.caller, _numbers(graph, owners)
    for module in others:
        scopes = {**graph.scopes, "L": {**variables, name: weakref.ref(module)}}
        yield _native.path_of_module(module), _numbers(graph._replace(scopes=scopes), owners)


def _numbers(graph: _DynamoGraph, owners: list[str]) -> list[int]:
    found = {path: _owner_at(graph, path) for path in owners}
    numbers = {path: _native.path_of_module(module) if module is not None else 0 for path, module in found.items()}
    return [numbers[path] for path in owners]


# ---- watching torch's compiler ----


class _Watched:
    """A function of a class, and what is called with its arguments and its result."""

    def __init__(self, owner: Any, name: str, before: Callable[..., None] | None, after: Callable[[Any], None]) -> None:
        self._owner, self._name, self._before, self._after = owner, name, before, after
        self._original = vars(owner)[name]
        is_class_method = isinstance(self._original, classmethod)
        call = self._original.__func__ if is_class_method else self._original

        @functools.wraps(call)
        def run(*args: Any, **options: Any) -> Any:
            if self._before is not None:
                _try(self._before, *args[:2])
            result = call(*args, **options)
            _try(self._after, result)
            return result

        self._ours = classmethod(run) if is_class_method else run
        setattr(owner, name, self._ours)

    def restore(self) -> None:
        """Somebody else may have replaced the function meanwhile: then ours stays, and does nothing more."""
        if vars(self._owner)[self._name] is self._ours:
            setattr(self._owner, self._name, self._original)
        self._before, self._after = None, _nothing


def _try(function: Callable[..., None], *args: Any) -> None:
    """The program must not fail because its generated code is not understood."""
    with contextlib.suppress(Exception):
        function(*args)


def _nothing(result: Any) -> None:
    return None


def _watch_graphs(module: Any) -> _Watched:
    return _Watched(module.OutputGraph, "call_user_compiler", _graph_compiled, _nothing)


def _watch_code(module: Any) -> _Watched:
    return _Watched(module.PyCodeCache, "load_by_key_path", None, _loaded)


_WATCHES = {"torch._dynamo.output_graph": _watch_graphs, "torch._inductor.codecache": _watch_code}


def _found(spec: importlib.machinery.ModuleSpec | None) -> None:
    """One of these modules of torch is about to be imported. A finder of our own would be seen in sys.meta_path."""
    loader: Any = spec.loader if spec is not None and spec.name in _WATCHES else None
    if loader is None:
        return
    execute = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        if _watched:
            _begin(module)

    loader.exec_module = exec_module


def _begin(module: Any) -> None:
    with contextlib.suppress(AttributeError, KeyError):  # this torch has no such function: owners are not known
        _watched.append(_WATCHES[module.__name__](module))


_watched: list[_Watched] = []


def watch(wanted: bool) -> None:
    """Watch what is compiled and loaded from now on, or no longer."""
    if wanted == bool(_watched):
        return
    if wanted:
        _watched.append(_Watched(importlib.machinery.PathFinder, "find_spec", None, _found))
        for name in _WATCHES:
            if name in sys.modules:
                _begin(sys.modules[name])
    else:
        while _watched:
            _watched.pop().restore()
        _graphs.clear()
