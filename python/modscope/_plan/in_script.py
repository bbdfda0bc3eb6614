"""A plan for a script that knows nothing of it: ``modscope run --plan`` and ``modscope predict --plan``.

A global forward pre-hook sees which modules are called. At the first call of a root module of the plan it checkpoints
the plan's modules in it. It is removed when every root module was called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from modscope._plan.file import Plan, PlanError

if TYPE_CHECKING:
    from torch import nn


class PlanForRun:
    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        """``tell`` is called with each sentence to print."""
        self._plan = plan
        self._tell = tell
        self._waiting = list(plan.checkpoint)
        self._seen: set[int] = set()
        self._hook: Any = None

    def install(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._waiting:
            self._hook = register_module_forward_pre_hook(self._before_call)

    def remove(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def end(self) -> None:
        """Say which roots of the plan were never called."""
        if self._hook is not None:
            self.remove()
            roots = ", ".join(self._waiting)
            self._tell(f"the plan was not applied to {roots}: the script called no such module")

    def _before_call(self, module: nn.Module, args: object) -> None:
        import torch

        if torch.compiler.is_compiling() or id(module) in self._seen:
            return
        self._seen.add(id(module))
        root = self._root_of(module)
        if root is None:
            return
        self._waiting.remove(root)
        if not self._waiting:
            self.remove()
        try:
            self._apply(root, module)
        except PlanError as error:
            self._tell(f"the script runs without the plan for {root}: {error}")

    def _apply(self, root: str, module: nn.Module) -> None:
        from modscope._plan.apply import apply

        keep = {root: self._plan.keep[root]} if root in self._plan.keep else {}
        apply(Plan({root: self._plan.checkpoint[root]}, keep=keep), module, tell=self._tell)

    def _root_of(self, module: nn.Module) -> str | None:
        """The name in the plan of this module, or None. A root is named after its class, with a number if there are
        several, or after a variable: then it is the first module that has all modules of the plan."""
        from modscope._plan.apply import find_modules, inner_models

        kinds = {type(inner).__name__ for inner in inner_models(module)}
        suits = [root for root in self._waiting if not find_modules(module, self._plan.checkpoint[root])[1]]
        of_class = [root for root in self._waiting if root.partition("#")[0] in kinds]
        return next((root for root in of_class if root in suits), None) or next(
            iter(of_class or self._named_freely(suits)), None
        )

    def _named_freely(self, suits: list[str]) -> list[str]:
        """The roots whose name is a variable's: a class begins with a capital letter by custom."""
        return [root for root in suits if not root[:1].isupper()]


def install(path: str, tell: Callable[[str], None]) -> PlanForRun | None:
    """None, with a sentence, if the plan cannot be read any more."""
    from modscope._plan.file import load_plan

    try:
        plan = PlanForRun(load_plan(path), tell)
    except (PlanError, OSError) as error:
        tell(f"the script runs without the plan: {error}")
        return None
    plan.install()
    return plan
