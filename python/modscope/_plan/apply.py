"""``modscope.apply``: checkpoint the modules of a plan.

A module is checkpointed by an attribute ``forward`` of its own, which hides that of its class. Its hooks run outside of
the checkpoint, as with torch's checkpoint_wrapper. The attribute is a functools.partial of a function of this file, so
that copies and pickles of the model work."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

import torch
from modscope._plan.file import Plan, PlanError, load_plan, parse_plan, short_name
from modscope._read.text import clean
from torch import nn

Models = nn.Module | Mapping[str, nn.Module]
_OPTIONS = frozenset(inspect.signature(checkpoint).parameters) | {"preserve_rng_state", "function"}
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module", "base_model", "online_model")
"""What DistributedDataParallel, torch.compile, FSDP and others call the model that they wrap: captures leave these
names out (src/torch/names/module_names.c)."""
_MOST_WRAPPERS = 16  # around one model


# ---- the forward of a checkpointed module ----


@contextlib.contextmanager
def _without_statistics(norms: list[_BatchNorm]) -> Iterator[None]:
    """The recomputation must not update the running statistics of batch normalizations a second time: it updates
    copies."""
    tracking = [norm for norm in norms if norm.training and norm.track_running_stats]
    buffers = [dict(norm._buffers) for norm in tracking]
    for norm in tracking:
        norm._buffers.update(
            {name: buffer if buffer is None else buffer.clone() for name, buffer in norm._buffers.items()}
        )
    try:
        yield
    finally:
        for norm, own in zip(tracking, buffers):
            norm._buffers.update(own)


def _contexts(norms: list[_BatchNorm]) -> tuple[Any, Any]:
    return contextlib.nullcontext(), _without_statistics(norms)


def _is_cache(value: object) -> bool:
    """Whether it is a cache of keys and values of transformers, which a recomputation would extend a second time."""
    return any(kind.__name__ == "Cache" and kind.__module__.startswith("transformers.") for kind in type(value).__mro__)


def _without_cache(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """As transformers itself calls the layers that it checkpoints."""
    kwargs = {name: None if _is_cache(value) else value for name, value in kwargs.items()}
    if "use_cache" in kwargs:
        kwargs["use_cache"] = False
    return tuple(None if _is_cache(value) else value for value in args), kwargs


def run_checkpointed(
    module: nn.Module, forward: Callable[..., Any] | None, uses_cache: bool, has_norms: bool, *args: Any, **kwargs: Any
) -> Any:
    """Called as the module's ``forward``. ``forward``: an attribute that the module had already, or None."""
    run = functools.partial(type(module).forward, module) if forward is None else forward
    if not torch.is_grad_enabled():
        return run(*args, **kwargs)
    if uses_cache:
        if not module.training:
            return run(*args, **kwargs)
        args, kwargs = _without_cache(args, kwargs)
    if not _OPTIONS.isdisjoint(kwargs):  # checkpoint would take them as its own
        run, kwargs = functools.partial(run, **kwargs), {}
    if has_norms and not torch.compiler.is_compiling():
        norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm)]
        return checkpoint(run, *args, use_reentrant=False, context_fn=functools.partial(_contexts, norms), **kwargs)
    return checkpoint(run, *args, use_reentrant=False, **kwargs)


_checkpointed = run_checkpointed  # its name in pickles of modscope 0.1.0


def _is_checkpointed(module: nn.Module) -> bool:
    return getattr(module.__dict__.get("forward"), "func", None) is run_checkpointed


def _checkpoint(module: nn.Module) -> None:
    uses_cache = any(kind.__module__.startswith("transformers.") for kind in type(module).__mro__)
    has_norms = any(isinstance(child, _BatchNorm) for child in module.modules())
    module.__dict__["forward"] = functools.partial(
        run_checkpointed, module, module.__dict__.get("forward"), uses_cache, has_norms
    )


class Applied:
    """A plan that is applied to a model."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._modules = modules
        for module in modules.values():
            _checkpoint(module)

    @property
    def modules(self) -> list[str]:
        """The full names of the modules that are checkpointed."""
        return list(self._modules)

    def undo(self) -> None:
        """Restore the model. A module whose forward was replaced since then is left alone, with a warning."""
        modules, self._modules = self._modules, {}
        for name, module in modules.items():
            if not _is_checkpointed(module):
                warnings.warn(
                    f"modscope: {clean(name)} has another forward than the plan gave it, and is left as it is",
                    RuntimeWarning,
                    stacklevel=2,
                )
                continue
            before = module.__dict__.pop("forward").args[1]
            if before is not None:
                module.__dict__["forward"] = before


# ---- finding the modules ----


def _submodule(model: nn.Module, parts: Iterable[str]) -> nn.Module | None:
    for part in parts:
        found = model._modules.get(part)
        if found is None:
            return None
        model = found
    return model


def inner_models(model: nn.Module) -> list[nn.Module]:
    """The model, and what it wraps. A module may hold itself under such a name, too."""
    found = {id(model): model}
    while True:
        names = (*_WRAPPERS, "model")  # so PEFT's inner wrapper, and many that wrap nothing, which does no harm
        inner = next((child for name in names if isinstance(child := model._modules.get(name), nn.Module)), None)
        if inner is None or id(inner) in found:
            return list(found.values())
        found[id(inner)] = model = inner


def _without_wrappers(path: str) -> list[list[str]]:
    """The parts of the path, and those that follow the names of wrappers at its beginning: a plan may have been made
    with a wrapped model."""
    parts = path.split(".")
    wrappers = sum(1 for _ in itertools.takewhile(lambda part: part in _WRAPPERS, parts[:-1]))
    return [parts[count:] for count in range(min(wrappers, _MOST_WRAPPERS) + 1)]


def find_modules(model: nn.Module, paths: Iterable[str]) -> tuple[dict[str, nn.Module], list[str]]:
    """The modules that the model has, by path, and the paths that it does not have."""
    found: dict[str, nn.Module] = {}
    missing = []
    inner = inner_models(model)
    for path in paths:
        rests = _without_wrappers(path)
        tries = (_submodule(candidate, rest) for candidate in inner for rest in rests)
        module = next((module for module in tries if module is not None), None)
        if module is None:
            missing.append(path)
        else:
            found[path] = module
    return found, missing


def _models_by_root(plan: Plan, model: Models) -> dict[str, nn.Module]:
    """The model of each root of the plan. PlanError if that is not clear."""
    roots = list(plan.checkpoint)
    if isinstance(model, nn.Module):
        if len(roots) > 1:
            raise PlanError(
                f"the plan has the root modules {', '.join(roots)}: give their models by name, "
                f"as modscope.apply(plan, {{{', '.join(f'{root!r}: ...' for root in roots)}}})"
            )
        return dict.fromkeys(roots, model)
    unknown = [root for root in roots if root not in model]
    if unknown:
        raise PlanError(f"the plan has the root module {unknown[0]}, and no model of that name is given")
    return {root: model[root] for root in roots}


def _why_not(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by torch.jit, and cannot be checkpointed"
    if _is_checkpointed(module):
        return "is checkpointed by a plan already: call undo() of what modscope.apply returned first"
    return None


def apply(plan: Plan | Mapping[str, Any] | str | os.PathLike[str], model: Models) -> Applied:
    """Checkpoint the modules that a plan names: non-reentrant, with the state of random numbers and autocast preserved.

    ``plan``: a file, or what is in it. ``model``: the root module; for a plan with several root modules, a mapping from
    their names. Returns an object whose ``undo()`` restores the model. PlanError: the plan does not suit the model,
    which is unchanged."""
    if isinstance(plan, (str, os.PathLike)):
        plan = load_plan(plan)
    elif not isinstance(plan, Plan):
        plan = parse_plan(plan)
    if not isinstance(model, (nn.Module, Mapping)):
        raise PlanError(f"model is {model!r}: give an nn.Module, or a mapping from the names of root modules to them")
    modules: dict[str, nn.Module] = {}
    missing: list[str] = []
    for root, model_of_root in _models_by_root(plan, model).items():
        found, absent = find_modules(model_of_root, plan.checkpoint[root])
        modules |= {f"{root}.{path}": module for path, module in found.items()}
        missing += [f"{root}.{path}" for path in absent]
    if missing:
        more = f", and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise PlanError(
            f"the model does not have the modules {', '.join(map(short_name, missing[:4]))}{more} of the plan: was the "
            f"plan made for another model?"
        )
    return Applied(_distinct(modules))


def _distinct(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Each module once. PlanError if one cannot be checkpointed, or lies in another."""
    distinct = {id(module): (name, module) for name, module in reversed(modules.items())}
    chosen = {name: module for name, module in modules.items() if distinct[id(module)][0] == name}
    for name, module in chosen.items():
        if why := _why_not(module):
            raise PlanError(f"{name} {why}")
        for child in module.modules():
            if child is not module and id(child) in distinct:
                raise PlanError(f"{distinct[id(child)][0]} lies in {name}, which is checkpointed as a whole")
    return chosen
