"""A checkpointed module that keeps the results of some operators, and does not compute these again in backward.

An operator is known by its place in the module's forward: the n-th call of ``aten::addmm`` in one call of the module.
Places are counted in forward and in the recomputation, each from the beginning.

In compiled code this is torch's own selective checkpointing. In eager code it is not, which refuses (torch 2.13 and
2.15) a recomputation that casts a weight that autocast had cast before, and a second backward of one graph."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch

KeptOperators = tuple[tuple[str, int, int], ...]
"""Of each operator that is kept: its name, which of its calls, and how many calls it has; 0: any number. Plain tuples,
as torch.compile compares them with those that it has compiled for."""

Refuse = Callable[[str], None]
"""Called with what is different in the model, when a module has run."""


def name_of(operator: Any) -> str:
    """ "aten::addmm", "aten::mul.Tensor"."""
    return operator.name() if hasattr(operator, "name") else str(operator)


def why_not(operator: Any) -> str | None:
    """Why the operator's result cannot be kept; None: it can. What shares memory with a tensor that is computed again
    would not change when that does."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    if schema.is_mutable:
        return "changes a tensor in place"
    return "returns a view" if any(result.alias_info is not None for result in schema.returns) else None


def _is_random(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it draws random numbers. Attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    for i, argument in enumerate(operator._schema.arguments):
        if argument.name == "dropout_p":
            return bool(kwargs.get("dropout_p", args[i] if i < len(args) else argument.default_value))
    return True


# ---- eager code ----


class _Kept(NamedTuple):
    result: Any
    """Its tensors, without their history."""
    versions: list[int]
    is_random: bool

    def is_changed(self) -> bool:
        """Whether the program has changed it in place since."""
        return self.versions != _versions(self.result)


def _versions(result: Any) -> list[int]:
    return [leaf._version for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _without_history(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # Below autograd a view would not share the count of changes in place.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return value.detach()


class _Region:
    """One call of a checkpointed module."""

    def __init__(self, places: KeptOperators) -> None:
        self.wanted = {(name, call) for name, call, _ in places}
        self.kept: dict[tuple[str, int], _Kept] = {}

    def drop_random(self) -> None:
        self.kept = {place: each for place, each in self.kept.items() if not each.is_random}


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # compiled functions that the module calls run as they are

    def __init__(self, region: _Region) -> None:
        super().__init__()
        self.region = region
        self.counts: Counter[str] = Counter()


class _Keep(_Mode):
    """In forward. A checkpoint sets the random numbers back to those of its beginning, so what is computed again draws
    the same ones only if nothing before it is left out: after an operator that is kept and draws random numbers, each
    one that draws any is kept too. If that is not possible, none is kept."""

    keeps_random = False
    draws_again = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = name_of(func)
        self.counts[name] += 1
        place = name, self.counts[name]
        is_random = _is_random(func, args, kwargs)
        is_wanted = place in self.region.wanted or (self.keeps_random and is_random)
        if is_wanted and why_not(func) is None and not (self.draws_again and is_random):
            self.keeps_random |= is_random
            kept = tree_map(_without_history, result)
            self.region.kept[place] = _Kept(kept, _versions(kept), is_random)
        elif self.keeps_random and is_random:
            self.draws_again = True
            self.region.drop_random()
        return result


class _Reuse(_Mode):
    """In the recomputation. What is not there any more, or was changed in place, is computed again: so in a second
    backward of one graph."""

    def __enter__(self) -> Any:
        self.counts.clear()
        if any(each.is_random and each.is_changed() for each in self.region.kept.values()):
            self.region.drop_random()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> Any:
        self.region.kept.clear()
        return super().__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        self.counts[name] += 1
        kept = self.region.kept.pop((name, self.counts[name]), None)
        return func(*args, **(kwargs or {})) if kept is None or kept.is_changed() else kept.result


def _difference(places: KeptOperators, counts: Counter[str]) -> str | None:
    """What the module does otherwise than the plan says, first."""
    for name, call, of in places:
        found = counts[name]
        if found < call or (of and found != of):
            planned = f"call {call} of {of}" if of else f"call {call}"
            return f"it keeps the result of {name}, {planned}, and the module calls {name} {found} times"
    return None


@contextlib.contextmanager
def _checked(mode: _Keep, places: KeptOperators, refuse: Refuse) -> Iterator[None]:
    with mode:
        yield
    difference = _difference(places, mode.counts)
    if difference is not None:
        refuse(difference)


def contexts(places: KeptOperators, refuse: Refuse) -> tuple[Any, Any]:
    """For a call of a module: what its forward and what its recomputation run in."""
    region = _Region(places)
    return _checked(_Keep(region), places, refuse), _Reuse(region)


# ---- compiled code ----


class _Policy:
    """torch asks it in forward, and before torch 2.13 in the recomputation too."""

    def __init__(self, places: KeptOperators) -> None:
        self._wanted = {(name, call) for name, call, _ in places}
        self._counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self._keeps_random = {False: False, True: False}

    def __call__(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        from torch.utils.checkpoint import CheckpointPolicy

        again, name = bool(context.is_recompute), name_of(operator)
        self._counts[again][name] += 1
        is_random = _is_random(operator, args, kwargs)
        is_kept = (name, self._counts[again][name]) in self._wanted or (self._keeps_random[again] and is_random)
        if not is_kept or why_not(operator) is not None:
            return CheckpointPolicy.PREFER_RECOMPUTE
        self._keeps_random[again] |= is_random
        return CheckpointPolicy.MUST_SAVE


def contexts_of_compiled(places: KeptOperators) -> tuple[Any, Any]:
    """The contexts for a module in compiled code, in which torch checkpoints it."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    found: tuple[Any, Any] = create_selective_checkpoint_contexts(_Policy(places))
    return found
