"""Notice when the program has imported torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class TorchFinder:
    """Finds torch where the other finders find it, and calls ``on_import`` when it has been imported."""

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._notice_import(spec)
                    return spec
        return None

    def _notice_import(self, spec: ModuleSpec) -> None:
        """The import system sets ``spec._initializing`` to False when the import ends. This is noticed by a subclass
        that overrides ``__setattr__``. A loader of our own would be on the stack during the import, and code that
        runs when the spec is read could swallow a KeyboardInterrupt."""
        plain = type(spec)
        finder = self

        def set_attribute(spec: Any, name: str, value: object) -> None:
            object.__setattr__(spec, name, value)
            if name == "_initializing" and not value:
                object.__setattr__(spec, "__class__", plain)
                finder._imported()

        spec.__class__ = type(plain.__name__, (plain,), {"__setattr__": set_attribute})

    def _imported(self) -> None:
        if "torch" in sys.modules and self in sys.meta_path:  # else the import failed
            sys.meta_path.remove(self)
            self._on_import()
