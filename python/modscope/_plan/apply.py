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
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

import torch
from modscope._plan import selective
from modscope._plan.file import Keep, Plan, PlanError, load_plan, parse_plan, short_name
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


def _norms_of(module: nn.Module) -> list[_BatchNorm]:
    return [child for child in module.modules() if isinstance(child, _BatchNorm)]


def _contexts(norms: list[_BatchNorm]) -> tuple[Any, Any]:
    return contextlib.nullcontext(), _without_statistics(norms)


@contextlib.contextmanager
def _both(outer: Any, inner: Any) -> Iterator[None]:
    with outer, inner:
        yield


def _selective_contexts(
    norms: list[_BatchNorm], places: selective.KeptOperators, refuse: selective.Refuse
) -> tuple[Any, Any]:
    """The statistics are copied outside of the recomputation's context, which counts operators."""
    forward, again = selective.contexts(places, refuse)
    return forward, _both(_without_statistics(norms), again) if norms else again


def _is_cache(value: object) -> bool:
    """Whether it is a cache of keys and values of transformers, which a recomputation would extend a second time."""
    return any(kind.__name__ == "Cache" and kind.__module__.startswith("transformers.") for kind in type(value).__mro__)


def _without_cache(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """As transformers itself calls the layers that it checkpoints."""
    kwargs = {name: None if _is_cache(value) else value for name, value in kwargs.items()}
    if "use_cache" in kwargs:
        kwargs["use_cache"] = False
    return tuple(None if _is_cache(value) else value for value in args), kwargs


def _prepare(
    module: nn.Module,
    forward: Callable[..., Any] | None,
    uses_cache: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool]:
    """What is called, with which arguments, and whether it is checkpointed."""
    run = functools.partial(type(module).forward, module) if forward is None else forward
    if not torch.is_grad_enabled() or (uses_cache and not module.training):
        return run, args, kwargs, False
    if uses_cache:
        args, kwargs = _without_cache(args, kwargs)
    if not _OPTIONS.isdisjoint(kwargs):  # checkpoint would take them as its own
        run, kwargs = functools.partial(run, **kwargs), {}
    return run, args, kwargs, True


def run_checkpointed(
    module: nn.Module, forward: Callable[..., Any] | None, uses_cache: bool, has_norms: bool, *args: Any, **kwargs: Any
) -> Any:
    """Called as the module's ``forward``. ``forward``: an attribute that the module had already, or None."""
    run, args, kwargs, is_checkpointed = _prepare(module, forward, uses_cache, args, kwargs)
    if not is_checkpointed:
        return run(*args, **kwargs)
    if has_norms and not torch.compiler.is_compiling():
        context_fn = functools.partial(_contexts, _norms_of(module))
        return checkpoint(run, *args, use_reentrant=False, context_fn=context_fn, **kwargs)
    return checkpoint(run, *args, use_reentrant=False, **kwargs)


_checkpointed = run_checkpointed  # its name in pickles of modscope 0.1.0

Tell = Callable[[str], None]
_tells: weakref.WeakKeyDictionary[nn.Module, Tell] = weakref.WeakKeyDictionary()
"""Who is told that a module differs from its plan, instead of an error. It is no attribute of the module, whose copies
and pickles would have it."""


def run_selective(
    module: nn.Module,
    forward: Callable[..., Any] | None,
    uses_cache: bool,
    name: str,
    places: selective.KeptOperators,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a checkpointed module that keeps the results of some operators."""
    run, args, kwargs, is_checkpointed = _prepare(module, forward, uses_cache, args, kwargs)
    if not is_checkpointed:
        return run(*args, **kwargs)
    if torch.compiler.is_compiling():
        context_fn: Any = functools.partial(selective.contexts_of_compiled, places)
    else:
        refuse = functools.partial(_refuse, module, name)
        context_fn = functools.partial(_selective_contexts, _norms_of(module), places, refuse)
    return checkpoint(run, *args, use_reentrant=False, context_fn=context_fn, **kwargs)


def _refuse(module: nn.Module, name: str, difference: str) -> None:
    """Without an error, the module is checkpointed as a whole from its next call on."""
    sentence = f"the plan does not suit {name}: {difference}. Was it made for another model, or for other inputs?"
    tell = _tells.get(module)
    if tell is None:
        raise PlanError(sentence)
    if _own_forward(module) is run_selective:
        _checkpoint(module, module.__dict__["forward"].args[1], name, ())
    tell(f"{sentence} It is checkpointed as a whole")


def _own_forward(module: nn.Module) -> Any:
    return getattr(module.__dict__.get("forward"), "func", None)


def _is_checkpointed(module: nn.Module) -> bool:
    return _own_forward(module) in (run_checkpointed, run_selective)


def _checkpoint(
    module: nn.Module, before: Callable[..., Any] | None, name: str, places: selective.KeptOperators
) -> None:
    """``before``: an attribute ``forward`` that the module had without the plan."""
    uses_cache = any(kind.__module__.startswith("transformers.") for kind in type(module).__mro__)
    if places:
        module.__dict__["forward"] = functools.partial(run_selective, module, before, uses_cache, name, places)
        return
    has_norms = bool(_norms_of(module))
    module.__dict__["forward"] = functools.partial(run_checkpointed, module, before, uses_cache, has_norms)


class Applied:
    """A plan that is applied to a model."""

    def __init__(self, modules: dict[str, nn.Module], keep: Keep | None = None, tell: Tell | None = None) -> None:
        self._modules = modules
        for name, module in modules.items():
            if tell is not None:
                _tells[module] = tell
            places = tuple((place.operator, place.call, place.of) for place in (keep or {}).get(name, ()))
            _checkpoint(module, module.__dict__.get("forward"), name, places)

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


def apply(
    plan: Plan | Mapping[str, Any] | str | os.PathLike[str], model: Models, *, tell: Tell | None = None
) -> Applied:
    """Checkpoint the modules that a plan names: non-reentrant, with the state of random numbers and autocast preserved.
    The results that the plan keeps are not computed again.

    ``plan``: a file, or what is in it. ``model``: the root module; for a plan with several root modules, a mapping from
    their names. Returns an object whose ``undo()`` restores the model. PlanError: the plan does not suit the model,
    which is unchanged. Which operators a module calls is known when it runs: its first call raises PlanError if one
    whose result is to be kept is not there. With ``tell``, that is called with a sentence instead, and the module is
    checkpointed as a whole."""
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
    keep = {f"{root}.{path}": places for root, of_root in plan.keep.items() for path, places in of_root.items()}
    return Applied(_distinct(modules), keep, tell)


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
