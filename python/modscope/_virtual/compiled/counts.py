"""How a program was compiled: graphs, and the places at which they broke."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, TypedDict

import torch

__all__ = ["Counts", "GraphBreak"]

_TORCH, _PYTHON = os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.__file__) + os.sep


class GraphBreak(TypedDict):
    """A place in the program at which dynamo ended a graph."""

    file: str
    line: int
    reason: str


class Counts:
    """What dynamo and Inductor did since ``watched`` was entered."""

    def __init__(self) -> None:
        self.graphs = 0
        self.recompiles = 0
        self.breaks: dict[tuple[str, int], GraphBreak] = {}
        self.failures: list[str] = []
        """Why graphs run uncompiled."""
        self._seen: set[tuple[int, int]] = set()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Dynamo makes a reason for each graph that it ends."""
        from torch._dynamo.output_graph import GraphCompileReason, OutputGraph

        reasons: Any = GraphCompileReason
        output: Any = OutputGraph
        made, called = reasons.__post_init__, output.call_user_compiler

        def note(reason: Any) -> None:
            made(reason)
            if reason.graph_break:
                self._add_break(reason)

        def call(graph: Any, *args: Any, **options: Any) -> Any:
            result = called(graph, *args, **options)
            self._add_graph()
            return result

        reasons.__post_init__, output.call_user_compiler = note, call
        try:
            yield
        finally:
            reasons.__post_init__, output.call_user_compiler = made, called

    def _add_break(self, reason: Any) -> None:
        """At the innermost line of the program's own code; breaks that torch itself asks for are not counted."""
        own = [frame for frame in reason.user_stack if not _is_of_torch_or_python(frame.filename)]
        if own:
            place = (own[-1].filename, int(own[-1].lineno or 0))
            self.breaks[place] = GraphBreak(file=place[0], line=place[1], reason=_first_sentence(reason.reason))

    def _add_graph(self) -> None:
        from torch._guards import CompileContext

        self.graphs += 1
        compilation = CompileContext.current_compile_id()
        if compilation is None or compilation.frame_id is None:
            return
        which = (compilation.frame_id, int(compilation.frame_compile_id or 0))
        if which[1] > 0 and which not in self._seen:
            self.recompiles += 1
        self._seen.add(which)


def _first_sentence(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return lines[0] if lines else ""


def _is_of_torch_or_python(file: str) -> bool:
    return file.startswith(_TORCH) or (file.startswith(_PYTHON) and "site-packages" not in file)
