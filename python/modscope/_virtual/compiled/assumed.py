"""What was assumed where Inductor decides by measuring on a real GPU. Of a graph that comes from the cache it was
decided when it was compiled: that is kept beside the cache."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from modscope._virtual.compiled import caches

__all__ = ["Assumptions", "Assumed"]


class Assumed(NamedTuple):
    """Of one graph, or of all."""

    padded: int = 0
    """How many products were taken to be padded."""
    autotuned: int = 0
    """1: kernels for products and convolutions are chosen by measuring them."""

    def plus(self, other: Assumed) -> Assumed:
        return Assumed(self.padded + other.padded, self.autotuned + other.autotuned)


def _file(key: str) -> str:
    return os.path.join(caches.folder(), "assumed", key)


class Assumptions:
    """What was assumed of the graphs that a program has run."""

    def __init__(self) -> None:
        self.all = Assumed()
        self._running = Assumed()
        self._of_graphs: dict[str, Assumed] = {}
        self._counted: set[str] = set()

    def begin(self) -> None:
        """A graph is compiled from now on."""
        self._running = Assumed()

    def add(self, **counts: int) -> None:
        self._running = self._running.plus(Assumed(**counts))

    def end(self, graph: Any) -> None:
        """The graph was compiled, or comes from the cache."""
        key = getattr(graph, "_fx_graph_cache_key", None)
        if not key:
            self.all = self.all.plus(self._running)
        elif any(self._running) and not os.path.exists(_file(key)):
            self._of_graphs[key] = self._running
            try:
                os.makedirs(os.path.dirname(_file(key)), exist_ok=True)
                with open(f"{_file(key)}.{os.getpid()}", "w", encoding="ascii") as stream:
                    json.dump(self._running, stream)
                os.replace(stream.name, _file(key))
            except OSError:
                pass

    def count(self, graph: Any) -> None:
        """The graph runs."""
        key = getattr(graph, "_fx_graph_cache_key", None)
        if not key or key in self._counted:
            return
        self._counted.add(key)
        found = self._of_graphs.get(key)
        try:
            if found is None:
                with open(_file(key), encoding="ascii") as stream:
                    found = Assumed(*json.load(stream))
        except (OSError, ValueError, TypeError):
            return  # nothing was assumed
        self.all = self.all.plus(found)

    def notes(self) -> list[str]:
        """A sentence for each thing that was assumed."""
        notes = []
        if self.all.padded:
            notes.append(
                f"Inductor was taken to pad {self.all.padded} matrix products, whose rows do not begin at multiples of "
                "16 bytes: on the GPU it measures that."
            )
        if self.all.autotuned:
            graphs = "graph was" if self.all.autotuned == 1 else "graphs were"
            notes.append(
                f"{self.all.autotuned} {graphs} compiled with max-autotune, and taken to use the kernels for products "
                "and convolutions that are used without it: on the GPU Inductor measures which ones are fastest."
            )
        return notes
